"""Readers whose consumer is slow, stops in the middle or leaves, beside replicas that are slow.

The time that a consumer takes is not the bookie's: nobody else is asked, and no bookie counts as
slow. What is fetched ahead is bounded, and fetching goes on when there is room again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.limits.client import READ_CHUNKS_AHEAD_MAX, READ_PARK_S
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World
from tests.unit.spark_ledger.client.world import run_virtually as run

ENTRIES = 40
"""Each comes in a chunk of its own from the transport in memory."""

SPECULATION_S = 0.05


class Wire:
    """Counts what a client's reads take from the transport, by bookie."""

    def __init__(self, client: LedgerClient) -> None:
        self.asked: list[str] = []
        self.chunks: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        self.stalled: dict[str, asyncio.Event] = {}
        """Bookies whose chunks wait for the event."""
        self.cut_after = -1
        """After so many chunks of a bookie its reply ends, once, as if it were whole."""
        self._honest = client._context.transport.read
        client._context.transport.read = self._read  # type: ignore[method-assign]

    async def _read(
        self, bookie_id: str, *args: Any, **named: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        self.asked.append(bookie_id)
        self.open[bookie_id] += 1
        try:
            async for chunk in self._honest(BookieId(bookie_id), *args, **named):
                if bookie_id in self.stalled:
                    await self.stalled[bookie_id].wait()
                if self.cut_after == self.chunks[bookie_id]:
                    self.cut_after = -1
                    return
                self.chunks[bookie_id] += 1
                yield chunk
        finally:
            self.open[bookie_id] -= 1


async def filled(
    world: World, entries: int = ENTRIES, ensemble: int = 3, quorum: int = 3
) -> tuple[LedgerClient, LedgerReader, Wire]:
    client = await world.client(speculative_read_delay_s=SPECULATION_S)
    async with await client.create_ledger(
        ensemble_size=ensemble, write_quorum=quorum, ack_quorum=quorum
    ) as writer:
        for n in range(entries):
            writer.append_nowait(b"%d" % n)
        await writer.flush()
    return client, await client.open_ledger(writer.ledger_id), Wire(client)


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("stops_at", [0, 1, 5, ENTRIES - 1])
def test_consumer_that_stops_in_a_lane_costs_no_other_replica(stops_at: int) -> None:
    async def test(world: World) -> None:
        client, reader, wire = await filled(world)
        got: list[bytes] = []
        async with aclosing(reader.read_batches(0, ENTRIES - 1)) as batches:
            async for batch in batches:
                got += [entry.payload for entry in batch]
                if batch[0].entry_id == stops_at:
                    await settle()
                    ahead = wire.chunks.total() - len(got)
                    assert ahead <= READ_CHUNKS_AHEAD_MAX + 1, "bounded while it works"
                    await asyncio.sleep(4 * SPECULATION_S)
                    assert wire.chunks.total() - len(got) == ahead
        assert got == [b"%d" % n for n in range(ENTRIES)]
        assert len(wire.asked) == 1, "its time is not the bookie's"
        assert not client._context.slow_now()
        assert not wire.open.total()

    run(test)


def test_consumer_that_is_slow_all_the_time_costs_no_other_replica() -> None:
    async def test(world: World) -> None:
        client, reader, wire = await filled(world, 12)
        got = 0
        async for _ in reader.read(0, 11):
            got += 1
            await asyncio.sleep(1.5 * SPECULATION_S)
        assert got == 12
        assert len(wire.asked) == 1
        assert not client._context.slow_now()

    run(test)


def test_consumer_that_stops_in_a_striped_range_gets_every_entry() -> None:
    async def test(world: World) -> None:
        client, reader, wire = await filled(world, 60, ensemble=3, quorum=2)
        got: list[int] = []
        async for entry in reader.read(0, 59):
            got.append(entry.entry_id)
            if entry.entry_id in (7, 30):
                await asyncio.sleep(4 * SPECULATION_S)
        assert got == list(range(60))
        assert len(wire.asked) == 3, "one replica for each lane"
        assert not client._context.slow_now()

    run(test)


@pytest.mark.parametrize("taken", [1, 2, 3, 7])
def test_consumer_that_leaves_a_striped_range_ends_each_lane_before_it_goes_on(taken: int) -> None:
    async def test(world: World) -> None:
        _client, reader, wire = await filled(world, 60, ensemble=3, quorum=2)
        got: list[int] = []
        async with aclosing(reader.read_batches(0, 59)) as batches:
            async for batch in batches:
                got += [entry.entry_id for entry in batch]
                if len(got) >= taken:
                    assert wire.open.total() == min(len(got), 3), "a request for each lane"
                    break
        assert not wire.open.total()

    run(test)


@pytest.mark.parametrize("how", ["closes", "is cancelled"])
def test_consumer_that_leaves_ends_its_requests(how: str) -> None:
    async def test(world: World) -> None:
        client, reader, wire = await filled(world, 60, ensemble=3, quorum=2)
        wire.stalled = {name: asyncio.Event() for name in world.bookies}
        before = asyncio.all_tasks()

        async def consume() -> None:
            async with aclosing(reader.read_batches(0, 59)) as batches:
                async for _ in batches:
                    if how == "closes":
                        return

        consuming = asyncio.create_task(consume())
        await settle()
        assert wire.open.total() >= 1
        if how == "closes":
            wire.stalled[wire.asked[0]].set()  # the lanes of the others still wait
        else:
            consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
        assert not wire.open.total(), "every lane, and at once"
        await settle()
        assert asyncio.all_tasks() <= before
        assert not client._context.slow_now()

    run(test)


def test_replica_that_stalls_is_overtaken_and_its_late_chunks_are_not_taken() -> None:
    async def test(world: World) -> None:
        client, reader, wire = await filled(world)
        slow, other, third = reader.metadata.last_fragment.bookies
        late = wire.stalled[slow] = asyncio.Event()
        got: list[bytes] = []
        async for entry in reader.read(0, ENTRIES - 1):
            got.append(entry.payload)
            if entry.entry_id == 3:
                await settle()
                assert not wire.open[slow], "given up, and not left waiting"
                late.set()  # now it would come, too late
                await settle()
        assert got == [b"%d" % n for n in range(ENTRIES)]
        assert wire.asked == [slow, other], "and the third was not needed"
        assert client._context.slow_now() == {slow}
        assert not wire.chunks[third]

    run(test)


def test_slow_consumer_beside_a_slow_replica_marks_only_the_replica() -> None:
    """Both at once: speculation overtakes who stalls, and pauses while the reader is full."""

    async def test(world: World) -> None:
        client, reader, wire = await filled(world)
        slow, other, _ = reader.metadata.last_fragment.bookies
        wire.stalled[slow] = asyncio.Event()
        got = 0
        async with aclosing(reader.read_batches(0, ENTRIES - 1)) as batches:
            async for batch in batches:
                got += len(batch)
                if batch[0].entry_id in (0, 9):
                    await asyncio.sleep(4 * SPECULATION_S)
        assert got == ENTRIES
        assert wire.asked == [slow, other]
        assert client._context.slow_now() == {slow}

    run(test)


@pytest.mark.parametrize("cut_after", [0, 1, 7, ENTRIES - 1])
def test_reply_that_ends_early_is_no_end_of_the_lane(cut_after: int) -> None:
    async def test(world: World) -> None:
        _, reader, wire = await filled(world)
        wire.cut_after = cut_after
        got = [entry.payload async for entry in reader.read(0, ENTRIES - 1)]
        assert got == [b"%d" % n for n in range(ENTRIES)]
        assert wire.cut_after == -1 and len(wire.asked) == 2

    run(test)


def test_replica_that_stalls_after_a_pause_of_the_consumer_is_overtaken() -> None:
    """Nobody looked at the clock in the pause: somebody has to begin again."""

    async def test(world: World) -> None:
        client, reader, wire = await filled(world)
        slow, other, _ = reader.metadata.last_fragment.bookies
        got: list[int] = []
        async for entry in reader.read(0, ENTRIES - 1):
            got.append(entry.entry_id)
            if entry.entry_id == 5:
                await asyncio.sleep(READ_PARK_S / 2)
                wire.stalled[slow] = asyncio.Event()
        assert got == list(range(ENTRIES))
        assert wire.asked == [slow, other]
        assert client._context.slow_now() == {slow}

    run(test)


def test_every_replica_that_was_overtaken_is_asked_last_by_the_next_reader() -> None:
    async def test(world: World) -> None:
        client, reader, wire = await filled(world, 4)
        slow, slower, third = reader.metadata.last_fragment.bookies
        wire.stalled = {slow: asyncio.Event(), slower: asyncio.Event()}
        assert len([entry async for entry in reader.read(0, 3)]) == 4
        assert client._context.slow_now() == {slow, slower}
        wire.asked.clear()
        assert len([entry async for entry in reader.read(0, 3)]) == 4
        assert wire.asked == [third]

    run(test)
