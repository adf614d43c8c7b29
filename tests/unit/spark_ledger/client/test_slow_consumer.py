"""A consumer that is slow, or stops in the middle of a lane: that is nobody's fault but its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from spark_ledger.client import lane_reader
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits.client import BUSY_PAUSE_S_MAX, READ_CHUNKS_AHEAD_MAX
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieStatus, EntryId
from tests.unit.spark_ledger.client.world import World
from tests.unit.spark_ledger.client.world import run_virtually as run
from tests.unit.virtual_time import stand_still

ENTRIES = 40


class Watched:
    """The reads of one client: each entry is a chunk of its own, as a large one is."""

    def __init__(self, client: LedgerClient) -> None:
        transport = client._context.transport
        self._honest = transport.read
        self.asked: list[tuple[str, int]] = []
        self.open = 0
        self.chunks = 0
        self.delay_s = 0.0
        """How long a chunk is on its way."""
        self.busy: dict[str, int] = {}
        """How often a bookie says that it is busy before it answers."""
        transport.read = self.read  # type: ignore[method-assign, assignment]

    async def read(
        self, bookie_id: str, ledger_id: int, first: int, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        self.asked.append((bookie_id, first))
        if self.busy.get(bookie_id, 0) > 0:
            self.busy[bookie_id] -= 1
            await asyncio.sleep(0)
            yield ReadChunk(BookieStatus.TOO_MANY_REQUESTS, None, EntryId(first), "busy")
            return
        self.open += 1
        try:
            last = args[0]
            for entry in range(first, last + 1, kwargs["stride"]):
                await asyncio.sleep(self.delay_s)
                wanted: Any = (bookie_id, ledger_id, entry, entry)
                async for chunk in self._honest(*wanted, **kwargs):
                    self.chunks += 1
                    yield chunk
        finally:
            self.open -= 1

    @property
    def bookies(self) -> set[str]:
        """Who was asked."""
        return {bookie_id for bookie_id, _ in self.asked}


async def written(world: World, **options: Any) -> tuple[LedgerClient, LedgerReader, Watched]:
    client = await world.client(**options)
    async with await client.create_ledger() as writer:
        for number in range(ENTRIES):
            await writer.append(b"%d" % number)
    reader = await client.open_ledger(writer.ledger_id)
    return client, reader, Watched(client)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_consumer_that_stops_makes_no_bookie_slow_and_asks_no_other(
    monkeypatch: pytest.MonkeyPatch, quorums: tuple[int, int, int]
) -> None:
    """Also with lanes: the others of them wait for the one whose entry is next."""
    monkeypatch.setattr(lane_reader, "READ_PARK_S", 0.1)

    async def test(world: World) -> None:
        client = await world.client(speculative_read_delay_s=0.05)
        ensemble_size, write_quorum, ack_quorum = quorums
        async with await client.create_ledger(
            ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
        ) as writer:
            for number in range(ENTRIES):
                await writer.append(b"%d" % number)
        reader = await client.open_ledger(writer.ledger_id)
        watched = Watched(client)
        found: list[bytes] = []
        async for entry in reader.read(0, ENTRIES - 1):
            found.append(entry.payload)
            if entry.entry_id in (3, 20):
                await until(lambda: watched.open == 0)  # what it held at the bookies is free
                await asyncio.sleep(0.2)
        assert found == [b"%d" % number for number in range(ENTRIES)]
        assert watched.chunks <= ENTRIES + 6, "entries were read again and again"
        assert client._context.slow_bookies == {}
        if quorums == (3, 3, 2):
            assert len(watched.bookies) == 1

    run(test)


def test_consumer_that_stops_is_read_ahead_of_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_reader, "READ_PARK_S", 0.05)

    async def test(world: World) -> None:
        _, reader, watched = await written(world, speculative_read_delay_s=0.05)
        async with aclosing(reader.read_batches(0, ENTRIES - 1)) as batches:
            await anext(batches)
            await until(lambda: watched.open == 0)
            await asyncio.sleep(0.3)
            assert watched.chunks <= READ_CHUNKS_AHEAD_MAX + 3
            assert len(watched.asked) == 1
        assert watched.open == 0

    run(test)


def test_consumer_that_computes_on_the_loop_makes_no_bookie_slow() -> None:
    async def test(world: World) -> None:
        client, reader, watched = await written(world, speculative_read_delay_s=0.05)
        watched.delay_s = 0.001
        async for _ in reader.read_batches(0, 9):
            stand_still(0.16)
        assert len(watched.bookies) == 1
        assert client._context.slow_bookies == {}

    run(test)


def test_silent_bookie_is_overtaken_after_the_consumer_went_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The silence counts from there: it is found as late as any other, and not never."""
    monkeypatch.setattr(lane_reader, "READ_PARK_S", 0.05)

    async def test(world: World) -> None:
        client, reader, watched = await written(world, speculative_read_delay_s=0.1)
        honest = watched._honest
        stuck = asyncio.Event()

        async def silent(bookie_id: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            if bookie_id == watched.asked[0][0] and stuck.is_set():
                await asyncio.Event().wait()
            async for chunk in honest(bookie_id, *args, **kwargs):
                yield chunk

        watched._honest = silent
        found = 0
        async for _ in reader.read(0, ENTRIES - 1):
            found += 1
            if found == 4:
                await until(lambda: watched.open == 0)
                stuck.set()
        assert found == ENTRIES
        assert len(watched.bookies) == 2
        assert set(client._context.slow_bookies) == {watched.asked[0][0]}

    run(test)


def test_busy_bookies_are_asked_again_later_and_not_blamed() -> None:
    async def test(world: World) -> None:
        client, reader, watched = await written(world)
        watched.busy = {str(bookie_id): 3 for bookie_id in world.bookies}
        began = asyncio.get_running_loop().time()
        found = [entry.payload async for entry in reader.read(0, ENTRIES - 1)]
        assert len(found) == ENTRIES
        assert len(watched.asked) <= 3 * 3 + 2
        assert asyncio.get_running_loop().time() - began > 0.2
        assert client._context.slow_bookies == {}

    run(test)


def test_busy_bookies_are_waited_for_as_long_as_silent_ones() -> None:
    """And not only until another replica would be asked beside a slow one."""

    async def test(world: World) -> None:
        _, reader, watched = await written(world, speculative_read_delay_s=0.05, read_timeout_s=4.0)
        watched.busy = {str(bookie_id): 1000 for bookie_id in world.bookies}
        began = asyncio.get_running_loop().time()
        with pytest.raises(BookieUnavailableError, match="too_many_requests"):
            _ = [entry async for entry in reader.read(0, 0)]
        took_s = asyncio.get_running_loop().time() - began
        assert 4.0 <= took_s <= 4.0 + 1.5 * BUSY_PAUSE_S_MAX

    run(test)
