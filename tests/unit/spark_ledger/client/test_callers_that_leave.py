"""Callers that are cancelled, or whose ``wait_for`` ends: nobody else is harmed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import LedgerClosedError, LedgerError
from spark_ledger.types import LedgerState
from tests.unit.spark_ledger.client.world import World, run_virtually

PART = 16 * 1024


def hold(world: World, held: bool = True) -> None:
    """Whether the bookies keep their answers; when they do not any more, all are given."""
    for bookie in world.bookies.values():
        bookie.hold = held
        if not held:
            bookie.release()


async def leave(work: Awaitable[object], how: str) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    if how == "cancelled":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 0.01)


def run_quietly(test: Callable[[World], Awaitable[None]], *, bookies: int = 3) -> None:
    """In virtual time: a sleep lets all others run. The loop is told of no error that nobody
    handles."""
    errors: list[object] = []

    async def quietly(world: World) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: errors.append(seen))
        await test(world)
        gc.collect()
        await asyncio.sleep(0)

    run_virtually(quietly, bookies=bookies)
    assert errors == []


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
@pytest.mark.parametrize("which", [0, 1, 4])
def test_append_whose_caller_leaves_is_stored_and_harms_no_other(how: str, which: int) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        hold(world)
        appends = [asyncio.ensure_future(writer.append(b"%d" % n)) for n in range(5)]
        await asyncio.sleep(0.01)
        await leave(appends[which], how)
        hold(world, False)
        others = [append for n, append in enumerate(appends) if n != which]
        assert await asyncio.gather(*others) == [n for n in range(5) if n != which]
        assert await writer.append(b"after") == 5
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        entries = [entry.payload async for entry in reader.read(0, 5)]
        assert entries == [b"0", b"1", b"2", b"3", b"4", b"after"]

    run_quietly(test)


@pytest.mark.parametrize("which", range(4))
def test_append_whose_caller_left_does_not_hide_the_error_from_others(which: int) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"before")
        hold(world)
        futures = [writer.append_nowait(b"x") for _ in range(3)]
        await asyncio.sleep(0.01)
        futures += [writer.append_nowait(b"queued")]
        futures[which].cancel()
        flushing = asyncio.ensure_future(writer.flush())
        await client.close()
        results = await asyncio.gather(*futures, flushing, return_exceptions=True)
        for number, result in enumerate(results):
            if number == which:
                assert isinstance(result, asyncio.CancelledError)
            else:
                assert isinstance(result, LedgerError), number
        assert len({id(result) for result in results}) == len(results)

    run_quietly(test)


def test_waiter_for_room_that_leaves_harms_no_other() -> None:
    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=4 * PART)
        writer = await client.create_ledger()
        hold(world)
        first = [writer.append_nowait(bytes(PART)) for _ in range(4)]
        assert not writer.has_room
        appends = [asyncio.ensure_future(writer.append(bytes(PART))) for _ in range(4)]
        await asyncio.sleep(0.01)
        assert writer.last_add_pushed == 3, "they wait"
        await leave(appends[0], "cancelled")
        await leave(appends[2], "timeout")
        hold(world, False)
        assert await asyncio.gather(*first) == [0, 1, 2, 3]
        assert sorted(await asyncio.gather(appends[1], appends[3])) == [4, 5]
        await writer.close()
        assert writer.last_add_confirmed == 5

    run_quietly(test)


def test_many_that_wait_for_room_go_on_as_there_is_room() -> None:
    """Were all to go on at once, they would be far above the bound, and most refused."""

    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=4 * PART)
        writer = await client.create_ledger()
        hold(world)
        appends = [asyncio.ensure_future(writer.append(bytes(PART))) for _ in range(100)]
        await asyncio.sleep(0.01)
        before = writer.last_add_pushed
        assert before < 10
        for bookie in world.bookies.values():
            bookie.release()  # what they hold, and they hold what comes then
        await asyncio.sleep(0.01)
        assert before < writer.last_add_pushed <= before + 10
        hold(world, False)
        assert await asyncio.gather(*appends) == list(range(100))
        await writer.close()

    run_quietly(test)


def test_waiter_for_room_is_told_when_the_ledger_fails() -> None:
    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=4 * PART)
        writer = await client.create_ledger()
        hold(world)
        first = [writer.append_nowait(bytes(PART)) for _ in range(4)]
        waiting = [asyncio.ensure_future(writer.append(bytes(PART))) for _ in range(3)]
        await asyncio.sleep(0.01)
        await leave(waiting[1], "cancelled")
        await writer.abandon()
        async with asyncio.timeout(5):
            results = await asyncio.gather(*first, *waiting, return_exceptions=True)
        assert sum(isinstance(result, LedgerError) for result in results) == 6

    run_quietly(test)


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_close_whose_caller_leaves_is_finished(how: str) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        hold(world)
        append = writer.append_nowait(b"x")
        await leave(writer.close(), how)
        assert writer.is_closed
        with pytest.raises(LedgerClosedError):
            writer.append_nowait(b"y")
        hold(world, False)
        assert await append == 0
        await writer.close()
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 0)
        assert writer not in client._context.writers
        assert not +client._context.load, "its bookies count as used no more"

    run_quietly(test)


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_flush_whose_caller_leaves_harms_no_other(how: str) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        hold(world)
        appends = [writer.append_nowait(b"x") for _ in range(3)]
        flushing = asyncio.ensure_future(writer.flush())
        await leave(writer.flush(), how)
        await asyncio.sleep(0.01)
        assert not flushing.done()
        hold(world, False)
        await flushing
        assert all(append.done() for append in appends), "not at the first of them"
        await writer.close()

    run_quietly(test)


def test_flush_waits_for_all_that_was_appended() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        hold(world)
        for _ in range(5):
            writer.append_nowait(b"x")
            await asyncio.sleep(0.001)
        flushing = asyncio.ensure_future(writer.flush())
        for _ in range(20):
            for bookie in world.bookies.values():
                if bookie._held:
                    bookie._held.pop(0)()
            await asyncio.sleep(0.001)
            assert flushing.done() <= (writer.last_add_confirmed == 4)
        await flushing
        hold(world, False)
        await writer.close()

    run_quietly(test)


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_opening_whose_caller_leaves_can_be_repeated(how: str) -> None:
    """A recovery that is broken off anywhere: the next one closes the ledger at the same entry."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        for n in range(3):
            await writer.append(b"%d" % n)
        hold(world)
        await leave(client.open_ledger(writer.ledger_id, recover=True), how)
        hold(world, False)
        reader = await client.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 2
        assert [e.payload async for e in reader.read(0, 2)] == [b"0", b"1", b"2"]
        await writer.abandon()

    run_quietly(test)


def test_creation_whose_caller_leaves_harms_no_later_one() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        for turns in range(12):
            creating = asyncio.ensure_future(client.create_ledger())
            for _ in range(turns):
                await asyncio.sleep(0)
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)
        writer = await client.create_ledger()
        assert await writer.append(b"x") == 0
        await writer.close()
        ids = await client.list_ledgers()
        assert len(ids) == len(set(ids)) and writer.ledger_id == ids[-1]

    run_quietly(test)


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_tail_that_is_left_asks_nobody_any_more(how: str) -> None:
    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=0.01)
        writer = await client.create_ledger()
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        seen: list[bytes] = []

        async def follow() -> None:
            async for entry in reader.tail(0):
                seen.append(entry.payload)  # noqa: PERF401 - looked at while it runs

        before = asyncio.all_tasks()
        following = asyncio.ensure_future(follow())
        while not seen:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        ledgers = [bookie.ledgers[writer.ledger_id] for bookie in world.bookies.values()]
        assert any(ledger.watches for ledger in ledgers), "it waits at the bookies"
        await leave(following, how)
        assert asyncio.all_tasks() == before, "no poll outlives it"
        assert not store_watches(client, writer), "nor at the metadata"
        other = asyncio.ensure_future(anext(aiter(reader.tail(1))))
        await asyncio.sleep(0.01)
        await writer.append(b"1")
        async with asyncio.timeout(5):
            assert (await other).payload == b"1"
        await writer.close()

    run_quietly(test)


def store_watches(client: object, writer: LedgerWriter) -> list[object]:
    tree = client.store.tree  # type: ignore[attr-defined]
    return [path for path in tree._watches if path.startswith("ledgers/")]
