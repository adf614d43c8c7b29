"""A reader at its edges: the last entry, no time at all, and whom it asks once more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import NoSuchEntryError
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieId, EntryId, Fragment
from tests.unit.spark_ledger.client.test_tail import Followed, Outage
from tests.unit.spark_ledger.client.world import World, run_virtually


def asked(client: LedgerClient, most: int = 100) -> list[tuple[str, int]]:
    """Whom reads of this client ask from now on, and from which entry; ``most`` of them."""
    transport = client.context.transport
    honest, seen = transport.read, list[tuple[str, int]]()

    async def read(
        bookie_id: BookieId, ledger_id: Any, first: int, *args: Any, **named: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        seen.append((bookie_id, first))
        assert len(seen) <= most, "it asks again and again"
        async for chunk in honest(bookie_id, ledger_id, EntryId(first), *args, **named):
            yield chunk

    transport.read = read  # type: ignore[method-assign, assignment]
    return seen


async def renamed(client: LedgerClient, ledger_id: int, fragment: int, new: str) -> None:
    """Repair names another bookie for a fragment of one bookie."""
    ledgers = client.context.ledgers
    stored = await ledgers.read_latest(ledger_id)  # type: ignore[arg-type]
    fragments = list(stored.value.fragments)
    fragments[fragment] = Fragment(fragments[fragment].first_entry, (BookieId(new),))
    changed = stored.value.with_changes(fragments=tuple(fragments))
    await ledgers.compare_and_set(changed, stored.version)


@pytest.mark.parametrize("ensemble", [3, 4])
def test_hint_chooses_the_replica_of_each_lane(ensemble: int) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        made = client.create_ledger(ensemble_size=ensemble, write_quorum=2, ack_quorum=2)
        async with await made as writer:
            for number in range(2 * ensemble):
                await writer.append(b"%d" % number)
        reader = await client.open_ledger(writer.ledger_id)
        seen, found = asked(client), []
        for hint in (0, 1):
            seen.clear()
            entries = [
                e.entry_id async for e in reader.read(0, 2 * ensemble - 1, replica_hint=hint)
            ]
            assert entries == list(range(2 * ensemble))
            found.append({first: bookie_id for bookie_id, first in seen})
        zero, one = found
        assert zero.keys() == one.keys() == set(range(ensemble))
        assert all(zero[first] != one[first] for first in zero), "each lane has the other replica"

    run_virtually(test, bookies=4)


def test_read_that_has_learned_of_others_once_fails_when_they_have_no_entry_either() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        async with await client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1
        ) as writer:
            for number in range(2):
                await writer.append(b"%d" % number)
        reader = await client.open_ledger(writer.ledger_id)
        (old,) = reader.metadata.last_fragment.bookies
        new = next(name for name in world.bookies if name != old)
        world.bookies[new].ledgers.update(world.bookies[old].ledgers)
        world.bookies[new].ledgers[writer.ledger_id].entries.pop(1)
        world.kill(old)
        await renamed(client, writer.ledger_id, 0, new)
        found: list[bytes] = []
        asked(client, most=20)
        with pytest.raises(NoSuchEntryError):
            async for entry in reader.read(0, 1):
                found.append(entry.payload)  # noqa: PERF401 - what came before the error
        assert found == [b"0"]

    run_virtually(test, bookies=2)


@pytest.mark.parametrize("follows", [False, True])
def test_entry_of_an_older_fragment_is_found_where_repair_has_put_it(follows: bool) -> None:
    """The newest fragment is as it was. A tail waits for metadata that cannot be read now."""

    async def test(world: World) -> None:
        client, repair = await world.client(), await world.client(explicit_lac_delay_s=0.01)
        writer = await repair.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"0")
        (old,) = writer.metadata.last_fragment.bookies
        world.kill(old)
        await writer.append(b"1")
        await asyncio.sleep(0.1)
        if not follows:
            await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert len(reader.metadata.fragments) == 2 and reader.last_add_confirmed == 1
        used = {bookie for each in reader.metadata.fragments for bookie in each.bookies}
        new = next(name for name in world.bookies if name not in used)
        world.bookies[new].ledgers.update(world.bookies[old].ledgers)
        outage = Outage(client)
        outage.on = follows
        await renamed(repair, writer.ledger_id, 0, new)
        if not follows:
            assert [entry.payload async for entry in reader.read(0, 1)] == [b"0", b"1"]
            return
        followed = Followed(reader)
        await asyncio.sleep(2.0)
        assert not followed.task.done()
        outage.end()
        await followed.has(2)
        assert followed.found == [b"0", b"1"]
        await writer.abandon()
        followed.task.cancel()
        await asyncio.gather(followed.task, return_exceptions=True)

    run_virtually(test, bookies=3)


def test_tail_of_no_time_gives_what_is_there_and_ends() -> None:
    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=0.01)
        writer = await client.create_ledger()
        for number in range(2):
            await writer.append(b"%d" % number)
        await asyncio.sleep(0.1)
        reader = await client.open_ledger(writer.ledger_id)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert [e.payload async for e in reader.tail(0, idle_timeout=0)] == [b"0", b"1"]
        assert [e.payload async for e in reader.tail(1, idle_timeout=0)] == [b"1"]
        assert [e.payload async for e in reader.tail(2, idle_timeout=0)] == []
        assert loop.time() == began
        await writer.close()

    run_virtually(test)


def test_idle_tail_of_dead_bookies_ends_in_its_time_however_short() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        reader = await client.open_ledger(writer.ledger_id)
        for name in list(world.bookies):
            world.kill(name)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert [entry async for entry in reader.tail(0, idle_timeout=0.01)] == []
        assert loop.time() - began == pytest.approx(0.01, abs=0.001)

    run_virtually(test)
