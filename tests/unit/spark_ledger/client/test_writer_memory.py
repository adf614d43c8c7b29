"""What a writer keeps of entries, what it counts, and what it says once it was taken over."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import pytest

from spark_ledger.client.blocking_writer import BlockingWriter
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import (
    FencedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    TooManyRequestsError,
)
from spark_ledger.limits import KIB
from spark_ledger.limits.client import WRITER_ENTRY_BYTES
from spark_ledger.metadata.memory import Outcome
from spark_ledger.types import BookieId, BookieStatus
from tests.unit.spark_ledger.client.test_writer import lose
from tests.unit.spark_ledger.client.world import World
from tests.unit.spark_ledger.client.world import run_virtually as run


def kept(writer: LedgerWriter) -> int:
    """The frames that are kept."""
    frames = writer._frames
    assert len(frames._parts) == 2 * len(frames._sizes)
    return len(frames._sizes)


@pytest.mark.parametrize("appended_at_once", [1, 10])
def test_writer_of_years_keeps_no_frame_that_every_bookie_holds(appended_at_once: int) -> None:
    async def test(world: World) -> None:
        writer = await (await world.client()).create_ledger()
        most = 0
        for _ in range(20):
            await asyncio.gather(*[writer.append(b"x") for _ in range(appended_at_once)])
            await asyncio.sleep(0.1)
            most = max(most, kept(writer))
        assert most <= 2 * appended_at_once
        assert kept(writer) == 0
        await writer.close()

    run(test)


@pytest.mark.parametrize("at_once", [1, 100])
@pytest.mark.parametrize("slow", [["b0", "b1", "b2"], ["b0"]])
def test_entries_without_a_byte_fill_a_writer(slow: list[str], at_once: int) -> None:
    """Their objects take memory all the same: a producer had to wait for nothing, and bookies that
    are slow, or one of them, cost its process all that it had."""

    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=64 * KIB)
        writer = await client.create_ledger()
        for name in slow:
            world.bookies[BookieId(name)].hold = True
        appended: list[asyncio.Future[range]] = []
        while writer.has_room and len(appended) * at_once < 1000:
            appended.append(writer.append_many_nowait([b""] * at_once))
            await asyncio.sleep(0)
        entries = len(appended) * at_once
        assert 64 * KIB <= WRITER_ENTRY_BYTES * entries < 64 * KIB + WRITER_ENTRY_BYTES * at_once
        for name in slow:
            world.bookies[BookieId(name)].hold = False
            world.bookies[BookieId(name)].release()
        await writer.wait_for_room()
        await asyncio.gather(*appended)
        await writer.close()
        assert (writer.last_add_confirmed, writer.length) == (entries - 1, 0)

    run(test)


def test_producer_of_empty_entries_that_never_waits_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_ledger.client.writer.APPEND_BATCH_ENTRIES_MAX", 10)

    async def test(world: World) -> None:
        writer = await (await world.client()).create_ledger()
        for bookie in world.bookies.values():
            bookie.hold = True
        first = writer.append_nowait(b"")
        appended = [writer.append_many_nowait([b""] * 10) for _ in range(4)]
        appended.append(writer.append_many_nowait([b""]))
        with pytest.raises(TooManyRequestsError, match="41 entries"):
            writer.append_many_nowait([b""])
        for bookie in world.bookies.values():
            bookie.hold = False
            bookie.release()
        await asyncio.gather(first, *appended)
        await writer.close()

    run(test)


def test_threads_that_wait_for_room_are_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are woken together have a batch each: what some of them left was refused, behind
    what the others had left, though each had waited."""
    monkeypatch.setattr("spark_ledger.client.writer.APPEND_BATCH_ENTRIES_MAX", 10)

    async def test(world: World) -> None:
        writer = await (await world.client()).create_ledger()
        portal = SimpleNamespace(is_running=True, loop=asyncio.get_running_loop())
        blocking = BlockingWriter(cast(BlockingPortal, portal), writer)
        for bookie in world.bookies.values():
            bookie.hold = True
        first = writer.append_nowait(b"")
        appended: list[Future[range]] = []
        for _ in range(2):
            appended += [blocking.append_many_async([b""] * 10) for _thread in range(5)]
            blocking._deliver()  # as for the next one that has come to wait
        for bookie in world.bookies.values():
            bookie.hold = False
            bookie.release()
        await first
        ranges = [await asyncio.wrap_future(future) for future in appended]
        assert ranges == [range(i, i + 10) for i in range(1, 101, 10)]
        await writer.close()

    run(test)


@pytest.mark.parametrize("busy_entry", [1, 7])
def test_bookie_that_was_busy_gets_what_the_others_have_confirmed_meanwhile(
    busy_entry: int,
) -> None:
    """Confirmed is no reason to give frames up: it is asked to take them after its pause."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        busy = world.bookies[BookieId("b0")]
        for number in range(8):
            if number == busy_entry:
                busy.refuse_next = (BookieStatus.TOO_MANY_REQUESTS, "it has much to do")
            await writer.append(b"%d" % number)
        assert writer.last_add_confirmed == 7, "two of three have them"
        held = busy.ledgers[writer.ledger_id].entries
        assert busy_entry not in held
        await asyncio.sleep(5)
        assert sorted(held) == list(range(8)) and kept(writer) == 0
        assert client.counters.ensemble_changes == 0
        assert client.context.suspects.now() == set(), "who is busy is well"
        await writer.close()

    run(test)


def test_ensemble_change_is_not_counted_when_nobody_was_found() -> None:
    """An operator looks at this number for bookies that fail: a choice of nobody changes nothing,
    however often it is repeated."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"x")
        world.kill("b0")
        await writer.append(b"x")
        await asyncio.sleep(2)
        assert client.counters.ensemble_changes == 0
        world.kill("b1")
        with pytest.raises(NotEnoughBookiesError):
            await writer.append(b"x")
        assert client.counters.ensemble_changes == 0
        await writer.close()

    run(test)


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_ledger_is_left_open_once_its_writer_has_ended_and_could_not_close_it(
    is_abandoned: bool,
) -> None:
    """Whoever sees that has it recovered: not while it is written, and not once it is closed."""

    async def test(world: World) -> None:
        client = await world.client()
        writer, other = await client.create_ledger(), await client.create_ledger()
        await writer.append(b"x")
        assert not writer.is_left_open
        if is_abandoned:
            await writer.abandon()
        else:
            lose(client, "transaction", [Outcome.UNAVAILABLE])
            with pytest.raises(MetadataUnavailableError):
                await writer.close()
        assert writer.is_left_open
        await other.close()
        assert not other.is_left_open

    run(test)


@pytest.mark.parametrize("is_closed_first", [False, True])
def test_writer_that_was_taken_over_says_so_whatever_is_asked_of_it(is_closed_first: bool) -> None:
    """Not that it is closed: whoever lost a ledger to another client has to know. And it is none
    that was left open, which somebody would recover once more."""

    async def test(world: World) -> None:
        client, other = await world.client(), await world.client()
        writer = await client.create_ledger()
        await writer.append(b"x")
        await other.open_ledger(writer.ledger_id, recover=True)
        with pytest.raises(FencedError):
            await writer.append(b"y")
        if is_closed_first:
            await writer.close()
        for ask in (writer.append, writer.append_nowait):
            with pytest.raises(FencedError):
                await ask(b"z")
        await writer.close()
        assert not writer.is_left_open

    run(test)
