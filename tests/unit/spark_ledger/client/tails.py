"""Several tails of one client for tests: what they bring, and what is asked for them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from spark_ledger.client.caches import cache_sizes
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.transport.base import LastConfirmed, ReadChunk
from spark_ledger.types import BookieStatus, EntryId
from spark_ledger.wire.codec import decode_read_response, encode_read_response
from tests.unit.spark_ledger.client.world import World, run_virtually

TAILS = 5


def run(test: Callable[[World], Awaitable[None]], *, bookies: int = 3) -> None:
    """In virtual time; the loop is told of no error that nobody handles."""
    errors: list[object] = []

    async def quietly(world: World) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: errors.append(seen))
        await test(world)
        gc.collect()
        await asyncio.sleep(0)

    run_virtually(quietly, bookies=bookies)
    assert errors == []


class Asked:
    """What one client asks bookies: long polls and reads, each as (bookie, entry)."""

    def __init__(self, client: LedgerClient) -> None:
        self._transport = client.context.transport
        self._poll, self._read = self._transport.read_last_confirmed, self._transport.read
        self.polls: list[tuple[str, int]] = []
        self.waits = 0
        """Long polls that have no answer yet."""
        self.reads: list[tuple[str, int]] = []
        self.read_room = asyncio.Event()
        """Reads are answered while it is set, with chunks of three entries."""
        self.read_room.set()
        self.stops_once = False
        """Whether the next chunk is the last one for now."""
        self.broken: BookieStatus | None = None
        """What reads are answered instead of entries."""
        self._transport.read_last_confirmed = self.poll  # type: ignore[method-assign]
        self._transport.read = self.read  # type: ignore[method-assign, assignment]

    async def poll(self, bookie_id: Any, *args: Any, **options: Any) -> LastConfirmed:
        if not options.get("wait_s"):
            return await self._poll(bookie_id, *args, **options)
        self.polls.append((bookie_id, options["wait_above"]))
        self.waits += 1
        try:
            return await self._poll(bookie_id, *args, **options)
        finally:
            self.waits -= 1

    async def read(
        self, bookie_id: Any, ledger_id: Any, first: int, *args: Any, **options: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        self.reads.append((bookie_id, first))
        await self.read_room.wait()
        if self.broken is not None:
            yield ReadChunk(self.broken, None, EntryId(first), "broken on purpose")
            return
        wanted = bookie_id, ledger_id, EntryId(first)
        async with aclosing(self._read(*wanted, *args, **options)) as chunks:
            runs = [chunk.run async for chunk in chunks if chunk.run is not None]
        for start in range(0, len(runs), 3):
            await self.read_room.wait()
            run = decode_read_response(encode_read_response(runs[start : start + 3]))[1]
            assert run is not None
            yield ReadChunk(BookieStatus.OK, run, run.first_entry)
            if self.stops_once:
                self.stops_once = False
                self.read_room.clear()


class Following:
    """One tail, and what it has brought."""

    def __init__(self, reader: LedgerReader, start: int = 0, **options: Any) -> None:
        self.reader = reader
        self.found: list[bytes] = []
        self.goes_on = asyncio.Event()
        """Whether it takes the next batch."""
        self.goes_on.set()
        self.task = asyncio.ensure_future(self._run(start, **options))

    async def _run(self, start: int, **options: Any) -> None:
        async with aclosing(self.reader.tail_batches(start, **options)) as batches:
            async for batch in batches:
                assert batch[-1].entry_id <= self.reader.last_add_confirmed, "not confirmed to it"
                self.found += [entry.payload for entry in batch]
                await self.goes_on.wait()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.found) < count and not self.task.done():
                await asyncio.sleep(0.001)
        if self.task.done():
            self.task.result()
        assert len(self.found) == count

    async def leave(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def begun(
    world: World, tails: int = TAILS
) -> tuple[LedgerClient, LedgerWriter, list[Following]]:
    """A ledger with one entry, and tails of one client that have it and wait for more."""
    writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
    await writer.append(b"0")
    client = await world.client()
    readers = [await client.open_ledger(writer.ledger_id) for _ in range(tails)]
    following = [Following(reader) for reader in readers]
    for each in following:
        await each.has(1)
    await asyncio.sleep(0.1)
    return client, writer, following


async def end(writer: LedgerWriter, following: list[Following], found: list[bytes]) -> None:
    """All that still follow end with the ledger, and have found the same."""
    await writer.close()
    for each in following:
        await asyncio.wait_for(each.task, 10)
        assert each.found == found


def kept_bytes() -> int:
    """What all tails of the process have kept for them."""
    gc.collect()
    return sum(each.size_bytes for each in cache_sizes() if each.name == "tails")
