"""How far a read goes ahead of its consumer, and what it remembers of replicas if it fails."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits.client import READ_CHUNKS_AHEAD_MAX, READ_PARK_S
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieId, BookieStatus
from tests.unit.spark_ledger.client.test_slow_consumer import ENTRIES, written
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_reading_goes_on_once_the_consumer_has_taken_half_of_what_is_ahead() -> None:
    """Were it to wait for all of that, the consumer would wait for each second chunk."""

    async def test(world: World) -> None:
        _, reader, watched = await written(world)
        async with aclosing(reader.read_batches(0, ENTRIES - 1)) as batches:
            await anext(batches)
            await asyncio.sleep(READ_PARK_S / 4)
            assert watched.chunks == 1 + READ_CHUNKS_AHEAD_MAX
            await anext(batches)
            await asyncio.sleep(READ_PARK_S / 4)
            assert watched.chunks == 2 + READ_CHUNKS_AHEAD_MAX
            rest = [entry.entry_id async for batch in batches for entry in batch]
            assert rest == list(range(2, ENTRIES))

    run_virtually(test)


def test_replica_that_was_overtaken_is_asked_last_although_the_read_failed() -> None:
    """Whoever tries again would wait for it first, each time."""

    async def test(world: World) -> None:
        client = await world.client(speculative_read_delay_s=0.1, read_timeout_s=2.0)
        writer = await client.create_ledger()
        await writer.append(b"0")
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        asked: list[str] = []

        async def read(bookie_id: BookieId, *args: Any, **_options: Any) -> Any:
            asked.append(bookie_id)
            if bookie_id == asked[0]:
                await asyncio.sleep(2.0)
                yield ReadChunk(BookieStatus.TIMEOUT, None, args[1], "silent")
                return
            yield ReadChunk(BookieStatus.NO_SUCH_ENTRY, None, args[1], "not held")

        client.context.transport.read = read  # type: ignore[method-assign]
        with pytest.raises(BookieUnavailableError):
            async for _ in reader.read(0, 0):
                raise AssertionError("nobody has it")
        assert client.context.slow_now() == {asked[0]}

    run_virtually(test)
