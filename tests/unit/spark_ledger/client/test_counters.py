"""What a client counts: requests, failovers, speculative reads, ensemble changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from spark_ledger.client.counters import ClientCounters
from spark_ledger.transport.base import ReadChunk
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_failover_is_a_request_after_a_replica_failed() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        async with await client.create_ledger() as writer:
            await writer.append(b"0")
            await writer.append(b"1234")
        reader = await client.open_ledger(writer.ledger_id)
        before = replace(client.counters)
        assert len([e async for e in reader.read(0, 1)]) == 2
        assert client.counters.since(before) == ClientCounters(1, 0, 0, 2, 5, 0)
        world.kill(writer.metadata.last_fragment.bookies[0])
        before = replace(client.counters)
        assert len([e async for e in reader.read(0, 1)]) == 2
        assert client.counters.since(before) == ClientCounters(2, 1, 0, 2, 5, 0)

    run_virtually(test)


def test_speculative_read_is_a_request_beside_a_slow_one() -> None:
    async def test(world: World) -> None:
        client = await world.client(speculative_read_delay_s=0.05)
        async with await client.create_ledger() as writer:
            await writer.append(b"0")
        slow = writer.metadata.last_fragment.bookies[0]
        reader = await client.open_ledger(writer.ledger_id)
        transport = client._context.transport
        honest = transport.read

        async def read(
            bookie_id: str, *args: Any, **kwargs: Any
        ) -> AsyncGenerator[ReadChunk, None]:
            if bookie_id == slow:
                await asyncio.Event().wait()
            async for chunk in honest(bookie_id, *args, **kwargs):  # type: ignore[arg-type]
                yield chunk

        transport.read = read  # type: ignore[method-assign]
        before = replace(client.counters)
        assert len([e async for e in reader.read(0, 0)]) == 1
        assert client.counters.since(before) == ClientCounters(2, 0, 1, 1, 1, 0)

    run_virtually(test)


def test_ensemble_change_is_counted_when_others_were_found() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        world.kill(writer.metadata.last_fragment.bookies[0])
        await writer.append(b"1")
        await writer.flush()
        assert len(writer.metadata.fragments) == 2
        assert client.counters.ensemble_changes == 1
        await writer.close()

    run_virtually(test, bookies=4)
