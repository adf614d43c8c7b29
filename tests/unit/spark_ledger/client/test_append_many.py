"""append_many: one future for a batch, whose entries get ids next to each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from spark_ledger.client.blocking import LedgerConnection
from spark_ledger.client.completions import batch_completions, fail_all
from spark_ledger.client.payloads import check_batch
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.errors import (
    AddOutcomeUnknownError,
    ConfigurationError,
    EntryTooLargeError,
    LedgerClosedError,
    TooManyRequestsError,
)
from spark_ledger.limits.client import APPEND_BATCH_ENTRIES_MAX
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from tests.unit.spark_ledger.client.world import World, run


def test_batch_is_told_its_ids_once_its_last_entry_is_confirmed() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        for bookie in world.bookies.values():
            bookie.hold = True
        lone = writer.append_nowait(b"alone")
        payloads: list[Any] = [b"1", bytearray(b"2"), memoryview(b"3")]
        batch = writer.append_many_nowait(payloads)
        last = writer.append_nowait(b"behind")
        assert (writer.last_add_pushed, writer.length) == (4, 5 + 3 + 6)
        await asyncio.sleep(0.01)
        assert not batch.done()
        for bookie in world.bookies.values():
            bookie.hold = False
            bookie.release()
        assert (await lone, await batch, await last) == (0, range(1, 4), 4)
        assert await writer.append_many(b"%d" % n for n in range(3)) == range(5, 8)
        assert len(await writer.append_many([])) == 0
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        found = [entry.payload async for entry in reader.read(0, 7)]
        assert found == [b"alone", b"1", b"2", b"3", b"behind", b"0", b"1", b"2"]

    run(test)


def test_batch_whose_caller_leaves_is_stored() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        batch = writer.append_many_nowait([b"1", b"2"])
        batch.cancel()
        assert await writer.append(b"after") == 2
        await writer.close()
        assert writer.last_add_confirmed == 2

    run(test)


def test_batch_in_flight_is_told_once_what_ended_its_ledger() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        assert await writer.append_many([b"1", b"2"]) == range(2)
        for bookie in world.bookies.values():
            bookie.hold = True
        batch = writer.append_many_nowait([b"3", b"4", b"5"])
        await writer.abandon()
        with pytest.raises(AddOutcomeUnknownError):
            await batch
        with pytest.raises(LedgerClosedError):
            await writer.append_many([b"6"])

    run(test)


def test_batch_of_which_a_part_is_confirmed_is_not_told_yet() -> None:
    future: Future[range] = Future()
    first, second, last = batch_completions(future, 3)
    first.set_result(7)
    second.set_result(8)
    assert not future.done() and not last.done()
    fail_all([last], LedgerClosedError("the rest is lost"))
    assert last.done() and isinstance(future.exception(0), LedgerClosedError)


def test_batch_that_cannot_be_taken_is_refused_before_anything_is_appended() -> None:
    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=1 << 20)
        writer = await client.create_ledger()
        half = bytes(1 << 19)
        refused: list[tuple[Any, type[Exception], str]] = [
            ([b"good", bytes(ENTRY_PAYLOAD_BYTES_MAX + 1)], EntryTooLargeError, "at most"),
            ([b"good", "text"], ConfigurationError, "encode it first"),
            (b"one payload", ConfigurationError, "use append"),
            ([half, half, b"x"], ConfigurationError, "in parts"),
            ([b""] * (APPEND_BATCH_ENTRIES_MAX + 1), ConfigurationError, "in parts"),
        ]
        for payloads, error, words in refused:
            with pytest.raises(error, match=words):
                writer.append_many_nowait(payloads)
            with pytest.raises(error, match=words):
                await writer.append_many(payloads)
        assert writer.last_add_pushed == -1
        with pytest.raises(TooManyRequestsError):
            for _ in range(100):
                writer.append_many_nowait([half, half])
        await writer.close()
        with pytest.raises(LedgerClosedError):
            await writer.append_many([b"late"])
        with pytest.raises(LedgerClosedError):
            writer.append_many_nowait([])

    run(test)


@pytest.fixture
def connection() -> Iterator[LedgerConnection]:
    world, portal = World(3), BlockingPortal.get()
    portal.call(world.start())
    yield LedgerConnection(portal, portal.call(world.client()))
    portal.call(world.close())


def test_batches_of_threads_do_not_mix(connection: LedgerConnection) -> None:
    writer = connection.create_ledger()
    found: dict[range, int] = {}

    def append(number: int) -> None:
        futures = [
            writer.append_many_async(b"%d" % number for _ in range(1 + batch % 3))
            for batch in range(30)
        ]
        found.update(dict.fromkeys((future.result(60) for future in futures), number))

    threads = [threading.Thread(target=append, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(i for ids in found for i in ids) == list(range(4 * 60))
    assert (writer.last_add_pushed, writer.length) == (239, 240)
    writer.close()
    reader = connection.open_ledger(writer.ledger_id)
    payloads = [entry.payload for entry in reader.read(0, 239)]
    for ids, number in found.items():
        assert {payloads[i] for i in ids} == {b"%d" % number}


def test_batch_of_the_blocking_writer_is_checked_and_refused(connection: LedgerConnection) -> None:
    writer = connection.create_ledger()
    assert writer.append_many([b"1", b"2"]) == range(2)
    assert len(writer.append_many([])) == 0
    with pytest.raises(ConfigurationError, match="use append"):
        writer.append_many_async(b"one payload")  # type: ignore[arg-type]
    told: list[object] = []
    done = threading.Event()

    def callback(_future: object) -> None:
        try:
            writer.append_many([b"and wait"])
        except ConfigurationError as error:
            told.append(error)
        done.set()

    BlockingPortal.get().loop.call_soon_threadsafe(callback, None)
    assert done.wait(60) and "must not wait" in str(told[0])
    writer.close()
    with pytest.raises(LedgerClosedError):
        writer.append_many([b"late", b"later"])
    assert (writer.last_add_pushed, writer.length) == (1, 2)


@pytest.mark.parametrize(
    ("payloads", "bytes_max"),
    [
        ([b""] * APPEND_BATCH_ENTRIES_MAX, 1),
        ([bytes(5)] * 2, 10),
        ([bytes(11)], 10),
        ([bytes(ENTRY_PAYLOAD_BYTES_MAX)], 10),
    ],
)
def test_batch_at_its_bounds_is_taken(payloads: list[bytes], bytes_max: int) -> None:
    """A single entry may have more bytes than are in flight else: it would never be appended."""
    assert check_batch(payloads, bytes_max) == payloads
