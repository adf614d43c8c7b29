"""The blocking face used wrongly: after its connection ended, in callbacks, in a forked child."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_ledger.client.blocking import LedgerConnection
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.errors import (
    AddOutcomeUnknownError,
    ConfigurationError,
    LedgerClosedError,
    LedgerError,
    NotEnoughBookiesError,
)
from tests.unit.spark_ledger.client.world import World, run

DEADLINE_S = 10


@pytest.fixture
def world() -> Iterator[World]:
    made = World(3)
    portal = BlockingPortal.get()
    portal.call(made.start())
    yield made
    portal.call(made.close())


def connect(world: World) -> LedgerConnection:
    portal = BlockingPortal.get()
    return LedgerConnection(portal, portal.call(world.client()))


def error_of(future: Any) -> LedgerError:
    error = future.exception(DEADLINE_S)
    assert isinstance(error, LedgerError)
    return error


def test_a_writer_does_not_outlive_its_connection(world: World) -> None:
    client = connect(world)
    writer = client.create_ledger()
    writer.append(b"confirmed")
    for bookie in world.bookies.values():
        bookie.hold = True  # what is appended now stays in flight
    pending = writer.append_async(b"in flight")
    client.close()
    assert isinstance(error_of(pending), AddOutcomeUnknownError)
    with pytest.raises(LedgerClosedError, match="connection was closed"):
        writer.append(b"later")
    assert isinstance(error_of(writer.append_async(b"later")), LedgerClosedError)
    with pytest.raises(LedgerClosedError, match="recover=True"):
        writer.close()


def test_a_reader_does_not_outlive_its_connection(world: World) -> None:
    client = connect(world)
    writer = client.create_ledger()
    writer.append(b"confirmed")
    closed = client.create_ledger()
    closed.append(b"confirmed")
    closed.close()
    readers = [client.open_ledger(closed.ledger_id), client.open_ledger(writer.ledger_id)]
    begun = readers[0].read(0, 0)
    client.close()
    with pytest.raises(LedgerClosedError):
        list(begun)
    with pytest.raises(LedgerClosedError):
        list(readers[0].read(0, 0))
    with pytest.raises(LedgerError):
        readers[1].refresh()


def test_a_callback_that_would_wait_for_its_own_thread_is_told_so(world: World) -> None:
    with connect(world) as client, client.create_ledger() as writer:
        seen: list[BaseException] = []
        called = threading.Event()

        def callback(_: object) -> None:
            for misuse in (lambda: writer.append(b"x"), writer.flush, client.list_ledgers):
                try:
                    misuse()
                except ConfigurationError as error:
                    seen.append(error)
            writer.append_async(b"this is how")
            called.set()

        for bookie in world.bookies.values():
            bookie.hold = True  # so that the callback is there before the answer
        writer.append_async(b"first").add_done_callback(callback)
        for bookie in world.bookies.values():
            bookie.hold = False
            BlockingPortal.get().loop.call_soon_threadsafe(bookie.release)
        assert called.wait(DEADLINE_S)
        assert len(seen) == 3
        writer.flush()
        assert writer.last_add_confirmed == 1


def test_a_closed_writer_says_so_whatever_happened_before() -> None:
    async def test(world: World) -> None:
        writer = await (await world.client()).create_ledger()
        world.kill("b0")
        world.kill("b1")
        with pytest.raises(NotEnoughBookiesError):
            await writer.append(b"x")
        with pytest.raises(NotEnoughBookiesError):
            await writer.append(b"y")
        await writer.close()
        with pytest.raises(LedgerClosedError):
            await writer.append(b"z")

    run(test)


def test_an_append_cannot_be_cancelled(world: World) -> None:
    with connect(world) as client, client.create_ledger() as writer:
        futures = [writer.append_async(b"x") for _ in range(100)]
        assert not any(future.cancel() for future in futures)
        assert [future.result(DEADLINE_S) for future in futures] == list(range(100))


def test_every_append_after_a_failure_has_an_error_of_its_own(world: World) -> None:
    with connect(world) as client:
        writer = client.create_ledger()
        client.open_ledger(writer.ledger_id, recover=True)
        errors = [error_of(writer.append_async(b"x")) for _ in range(10)]
        assert len({id(error) for error in errors}) == 10
        assert len({(type(error), str(error)) for error in errors}) == 1


def test_a_forked_child_is_told_to_connect_again(world: World) -> None:
    with connect(world) as client, client.create_ledger() as writer:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            told = 0
            try:
                for misuse in (lambda: writer.append(b"x"), writer.close, client.list_bookies):
                    try:
                        misuse()
                    except LedgerClosedError as error:
                        told += "in the child" in str(error)
            finally:
                os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_question_that_raises_ends_the_writer_with_an_error() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()

        async def broken(_: object) -> Any:
            raise ZeroDivisionError("a bug")

        writer._choose = broken  # type: ignore[method-assign, assignment]
        world.kill("b0")
        world.kill("b1")
        for _ in range(2):
            with pytest.raises(LedgerError, match="a bug") as raised:
                await writer.append(b"x")
            assert isinstance(raised.value.__cause__, ZeroDivisionError), "with its traceback"

    run(test)


@pytest.mark.parametrize("ids", [("0", 0), (0, None), (0.0, 0), (True, True), (0, "x")])
def test_ranges_are_whole_numbers(world: World, ids: tuple[Any, Any]) -> None:
    with connect(world) as client, client.create_ledger() as writer:
        writer.append(b"x")
        reader = client.open_ledger(writer.ledger_id)
        with pytest.raises(ConfigurationError, match="no range"):
            reader.read(*ids)


def test_what_tail_cannot_follow_is_refused_at_once(world: World) -> None:
    with connect(world) as client, client.create_ledger() as writer:
        reader = client.open_ledger(writer.ledger_id)
        for start in (-1, "0", None, 1.0):
            with pytest.raises(ConfigurationError, match="tail starts"):
                reader.tail(start)  # type: ignore[arg-type]
        for idle_timeout in (-1, "5", float("nan")):
            with pytest.raises(ConfigurationError, match="idle_timeout"):
                reader.tail(0, idle_timeout=idle_timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("custom", [["a"], "x", {"a": 1}, {1: "a"}, {"x": "\ud800"}])
def test_custom_metadata_are_text(world: World, custom: Any) -> None:
    with connect(world) as client, pytest.raises(ConfigurationError, match="custom_metadata"):
        client.create_ledger(custom_metadata=custom)


def test_key_of_the_ledgers_of_streams_is_refused(world: World) -> None:
    """Keepers of before delete closed ledgers that have it and ``stream``."""
    with connect(world) as client:
        with pytest.raises(ConfigurationError, match="'stream_id': ledgers of streams have this"):
            client.create_ledger(custom_metadata={"stream_id": "42"})
        client.create_ledger(custom_metadata={"stream": "orders", "purpose": "mine"}).close()
