"""What a client counts: requests, failovers, speculative reads, ensemble changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import asdict, fields, replace
from typing import Any

from spark_ledger.client.counters import ClientCounters
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieId, EntryId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_difference_of_two_looks_is_that_of_each_counter() -> None:
    """An operator would look for what has not happened."""
    names = [each.name for each in fields(ClientCounters)]
    before = ClientCounters(**{name: 3**number for number, name in enumerate(names)})
    after = ClientCounters(**{name: 3**number + number for number, name in enumerate(names)})
    assert asdict(after.since(before)) == {name: number for number, name in enumerate(names)}


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


def one_entry_each(client: LedgerClient, silent: set[str]) -> None:
    """Each reply brings one entry, and none from bookies that are silent."""
    transport = client.context.transport
    honest = transport.read

    async def read(
        bookie_id: BookieId, ledger_id: LedgerId, first: EntryId, _last: EntryId, **named: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        if bookie_id in silent:
            await asyncio.Event().wait()
        async for chunk in honest(bookie_id, ledger_id, first, first, **named):
            yield chunk

    transport.read = read  # type: ignore[method-assign, assignment]


def test_requests_that_follow_a_failover_to_the_same_replica_are_none() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        async with await client.create_ledger() as writer:
            for _ in range(3):
                await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        one_entry_each(client, set())
        world.kill(writer.metadata.last_fragment.bookies[0])
        before = replace(client.counters)
        assert len([e async for e in reader.read(0, 2)]) == 3
        assert client.counters.since(before) == ClientCounters(4, 1, 0, 3, 3, 0)

    run_virtually(test)


def test_failover_is_one_although_another_replica_was_overtaken_before() -> None:
    async def test(world: World) -> None:
        client = await world.client(speculative_read_delay_s=0.05)
        async with await client.create_ledger() as writer:
            for _ in range(2):
                await writer.append(b"0")
        slow, other, third = writer.metadata.last_fragment.bookies
        reader = await client.open_ledger(writer.ledger_id)
        one_entry_each(client, {slow})
        before, asked = replace(client.counters), list[int]()
        async for entry in reader.read(0, 1):
            asked.append(entry.entry_id)
            world.kill(other)
        assert asked == [0, 1]
        done = client.counters.since(before)
        assert (done.speculative_reads, done.read_failovers) == (1, 1), third

    run_virtually(test)
