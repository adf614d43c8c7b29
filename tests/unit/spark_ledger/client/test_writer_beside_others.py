"""A writer that others use meanwhile: its room, a flush beside appends, a close beside an end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.errors import AddOutcomeUnknownError, LedgerClosedError
from spark_ledger.limits import KIB
from spark_ledger.limits.client import WRITER_CLOSE_GRACE_S, WRITER_ENTRY_BYTES
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_each_producer_that_waited_for_room_finds_some() -> None:
    """All are woken at once, and the first of them may take all there is."""

    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=64 * KIB)
        writer = await client.create_ledger()

        async def produce() -> None:
            for _ in range(4):
                await writer.wait_for_room()
                assert writer.has_room
                await writer.append_nowait(bytes(64 * KIB))

        await asyncio.gather(*(produce() for _ in range(5)))
        assert writer.last_add_confirmed == 19
        await writer.close()

    run_virtually(test)


def test_room_is_taken_in_the_moment_in_which_a_batch_is_queued() -> None:
    """Not when it is sent: others append in the same turn of the loop, and other threads look."""

    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=64 * KIB)
        writer = await client.create_ledger()
        first = writer.append_many_nowait([bytes(20 * KIB)] * 2)
        assert writer.has_room
        second = writer.append_many_nowait([bytes(20 * KIB)] * 2)
        assert not writer.has_room
        assert (await first, await second) == (range(2), range(2, 4))
        await writer.wait_for_room()
        await writer.close()

    run_virtually(test)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("size", [64 * KIB - 1, 64 * KIB])
def test_there_is_room_as_long_as_less_is_in_flight_than_the_bound(
    size: int, at_once: bool
) -> None:
    """While it is queued, and once it is on its way: the same bytes count the same. What an entry
    takes beside its payload is in them, and not in the ledger's length."""

    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=64 * KIB)
        writer = await client.create_ledger()
        for bookie in world.bookies.values():
            bookie.hold = True
        first = writer.append_nowait(b"x")  # on its way: what comes now is queued
        payloads = [bytes(size - 2 - 3 * WRITER_ENTRY_BYTES), b"y"]
        if at_once:
            appended: list[asyncio.Future[Any]] = [writer.append_many_nowait(payloads)]
        else:
            appended = [writer.append_nowait(payload) for payload in payloads]
        for _ in range(3):
            assert writer.has_room == (size < 64 * KIB)
            assert writer.length == size - 3 * WRITER_ENTRY_BYTES
            await asyncio.sleep(0.001)
        for bookie in world.bookies.values():
            bookie.hold = False
            bookie.release()
        await asyncio.gather(first, *appended)
        await writer.close()
        assert writer.metadata.length == size - 3 * WRITER_ENTRY_BYTES

    run_virtually(test)


def test_flush_waits_for_nothing_that_is_appended_after_it() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        last = writer.append_nowait(b"0")
        for bookie in world.bookies.values():
            bookie.hold = True
        flushing = asyncio.create_task(writer.flush())
        for _ in range(20):
            await asyncio.sleep(0.001)
            for bookie in world.bookies.values():
                bookie.release()
            following = writer.append_nowait(b"more")
            await last
            last = following
        assert flushing.done()
        for bookie in world.bookies.values():
            bookie.hold = False
            bookie.release()
        await writer.close()

    run_virtually(test)


def test_flush_waits_also_for_what_is_queued_in_the_same_turn() -> None:
    """As that of the blocking writer, which hands over its inbox and waits."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        for bookie in world.bookies.values():
            bookie.hold = True
        writer.append_nowait(b"0")
        await asyncio.sleep(0.001)

        async def append_and_flush() -> None:
            writer.append_nowait(b"1")
            await writer.flush()

        flushing = asyncio.create_task(append_and_flush())
        await asyncio.sleep(0.001)
        for bookie in world.bookies.values():
            bookie._held.pop(0)()
        await asyncio.sleep(0.001)
        assert writer.last_add_confirmed == 0 and not flushing.done()
        for bookie in world.bookies.values():
            bookie.hold = False
            bookie.release()
        await flushing
        assert writer.last_add_confirmed == 1
        await writer.close()

    run_virtually(test)


def test_connection_that_ends_while_a_writer_closes_ends_the_close_too() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        for bookie in world.bookies.values():
            bookie.hold = True
        add = writer.append_nowait(b"0")
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0.001)
        assert not closing.done()
        await client.close()
        with pytest.raises(AddOutcomeUnknownError):
            await asyncio.wait_for(add, 1)
        with pytest.raises(LedgerClosedError, match="recover=True"):
            await asyncio.wait_for(closing, 1)
        with pytest.raises(LedgerClosedError, match="recover=True"):
            writer.append_nowait(b"1")

    run_virtually(test)


def test_close_beside_a_replica_that_trickles_ends_in_its_time() -> None:
    """What the slowest replica stores meanwhile makes nobody wait for longer."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        slow = world.bookies[writer.metadata.last_fragment.bookies[1]]
        slow.hold = True
        for number in range(30):
            await writer.append(b"%d" % number)
        loop = asyncio.get_running_loop()
        began = loop.time()
        closing = asyncio.create_task(writer.close())
        while not closing.done():
            await asyncio.sleep(WRITER_CLOSE_GRACE_S / 5)
            slow._held.pop(0)()
        await closing
        assert WRITER_CLOSE_GRACE_S <= loop.time() - began < 1.5 * WRITER_CLOSE_GRACE_S
        assert writer.metadata.last_entry_id == 29

    run_virtually(test)
