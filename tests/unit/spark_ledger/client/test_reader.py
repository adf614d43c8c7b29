"""A reader's shell: what it may show, that it never goes back, and how it follows a ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import (
    BookieUnavailableError,
    NoSuchEntryError,
    ReadBeyondConfirmedError,
)
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieId, EntryId, Fragment, LedgerMetadata, Versioned
from tests.unit.spark_ledger.client.test_lying_bookies import damaged
from tests.unit.spark_ledger.client.world import World, run_virtually


async def shown(reader: LedgerReader, last: int) -> None:
    """Wait until an entry is visible."""
    async with asyncio.timeout(5):
        while reader.last_add_confirmed < last:
            await asyncio.sleep(0.01)
            await reader.refresh()


def memory(client: LedgerClient) -> MemoryMetadataStore:
    assert isinstance(client.store, MemoryMetadataStore)
    return client.store


def test_nothing_above_the_last_add_confirmed_is_read() -> None:
    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=0.01)
        writer = await client.create_ledger()
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        await shown(reader, 0)
        await writer.append(b"1")
        with pytest.raises(ReadBeyondConfirmedError, match="entry 1 is above"):
            [entry async for entry in reader.read(0, 1)]
        assert len([entry async for entry in reader.read(0, 1, unconfirmed=True)]) == 2
        await writer.close()
        await reader.refresh()
        for unconfirmed in (False, True):
            with pytest.raises(ReadBeyondConfirmedError, match="entry 2 is above"):
                [entry async for entry in reader.read(0, 2, unconfirmed=unconfirmed)]

    run_virtually(test)


def test_last_add_confirmed_never_goes_back() -> None:
    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=0.01)
        writer = await client.create_ledger()
        for n in range(3):
            await writer.append(b"%d" % n)
        reader = await client.open_ledger(writer.ledger_id)
        await shown(reader, 2)
        for bookie in world.bookies.values():
            bookie.ledgers[writer.ledger_id].last_add_confirmed = 0
        await reader.refresh()
        assert reader.last_add_confirmed == 2

    run_virtually(test)


def test_older_metadata_do_not_open_a_closed_ledger_again() -> None:
    """A metadata server may lag behind the one that was asked before."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        ledgers = client._context.ledgers
        before = await ledgers.read(writer.ledger_id)
        await writer.close()
        await reader.refresh()
        assert reader.is_closed

        async def lags(ledger_id: int) -> Versioned[LedgerMetadata]:
            assert ledger_id == before.value.ledger_id
            return before

        ledgers.read_latest = lags  # type: ignore[method-assign]
        await reader.refresh()
        assert reader.is_closed
        assert reader.last_add_confirmed == 0

    run_virtually(test)


def test_ledger_opened_at_a_lagging_server_shows_what_was_confirmed() -> None:
    """The bookies that older metadata name know nothing of what was confirmed since (rule P5)."""

    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=60)
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        early = await client.open_ledger(writer.ledger_id)
        older = await client._context.ledgers.read(writer.ledger_id)
        (first,) = writer.metadata.last_fragment.bookies
        world.kill(first)
        await writer.append(b"0")
        await writer.append(b"carries that 0 is confirmed")
        world.revive(first)

        async def lags(_ledger_id: int) -> Versioned[LedgerMetadata]:
            return older

        client._context.ledgers.read = lags  # type: ignore[method-assign, assignment]
        assert (await client.open_ledger(writer.ledger_id)).last_add_confirmed >= 0
        await early.refresh()
        assert early.last_add_confirmed >= 0

    run_virtually(test)


def test_the_time_of_an_idle_tail_begins_again_with_each_entry() -> None:
    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=0.01)
        writer = await client.create_ledger()
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        got: list[EntryId] = []

        async def follow() -> None:
            async for entry in reader.tail(0, idle_timeout=1.2):
                got.append(entry.entry_id)  # noqa: PERF401 - also what came before an error

        following = asyncio.create_task(follow())
        for _ in range(4):
            await asyncio.sleep(0.4)
            await writer.append(b"more")
        await following
        assert got == [0, 1, 2, 3, 4]

    run_virtually(test)


def test_a_tail_waits_at_the_bookies_and_does_not_ask_again_and_again() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        reader = await client.open_ledger(writer.ledger_id)
        transport, waits = client._context.transport, list[float]()
        honest = transport.read_last_confirmed

        async def read_last_confirmed(*args: Any, **kwargs: Any) -> Any:
            waits.append(kwargs.get("wait_s", 0.0))
            return await honest(*args, **kwargs)

        transport.read_last_confirmed = read_last_confirmed  # type: ignore[method-assign]
        assert [entry async for entry in reader.tail(0, idle_timeout=0.4)] == []
        assert 3 <= len(waits) <= 6, "each bookie once, or twice near the end"
        assert waits[0] > 0.3

    run_virtually(test)


def test_tail_of_dead_bookies_pauses_between_rounds() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        reader = await client.open_ledger(writer.ledger_id)
        for name in list(world.bookies):
            world.kill(name)
        transport, calls = client._context.transport, list[str]()
        honest = transport.read_last_confirmed

        async def read_last_confirmed(bookie_id: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(bookie_id)
            return await honest(bookie_id, *args, **kwargs)

        transport.read_last_confirmed = read_last_confirmed  # type: ignore[method-assign]
        assert [entry async for entry in reader.tail(0, idle_timeout=0.4)] == []
        assert 3 <= len(calls) <= 40, "every twentieth of a second"

    run_virtually(test)


def test_a_tail_hears_every_bookie_of_the_newest_fragment() -> None:
    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=0.01)
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1)
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        got: list[EntryId] = []

        async def follow() -> None:
            async for entry in reader.tail(0):
                got.append(entry.entry_id)  # noqa: PERF401 - the test looks at it meanwhile

        following = asyncio.create_task(follow())
        async with asyncio.timeout(10):
            for _ in range(3):
                for name in writer.metadata.last_fragment.bookies:
                    world.kill(name)
                    await writer.append(b"elsewhere")
                    last = writer.last_add_confirmed
                    while not got or got[-1] < last:
                        await asyncio.sleep(0.01)
                    world.revive(name)
            await writer.close()
            await following
        assert got == list(range(len(got)))

    run_virtually(test, bookies=5)


def test_tail_after_metadata_outage_ends_with_its_ledger() -> None:
    """And then watches nothing any more."""

    async def test(world: World) -> None:
        client, other = await world.client(explicit_lac_delay_s=0.01), await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        reader = await other.open_ledger(writer.ledger_id)
        before = len(memory(other)._watches)
        refused: list[str] = []

        def interpose(name: str, path: str) -> Fault:
            if name == "get" and path.startswith("ledgers/") and len(refused) < 2:
                refused.append(path)
                return Fault(Outcome.UNAVAILABLE)
            return Fault()

        async def follow() -> list[bytes]:
            return [entry.payload async for entry in reader.tail(0)]

        following = asyncio.create_task(follow())
        while len(memory(other)._watches) == before:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        memory(other).interpose = interpose
        await writer.close()
        async with asyncio.timeout(10):
            assert await following == [b"0"]
        assert len(refused) == 2
        assert len(memory(other)._watches) == before

    run_virtually(test)


def test_tail_of_a_closed_ledger_gives_all_its_entries() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        async with await client.create_ledger() as writer:
            for n in range(5):
                await writer.append(b"%d" % n)
        reader = await client.open_ledger(writer.ledger_id)
        assert [entry.entry_id async for entry in reader.tail(0)] == [0, 1, 2, 3, 4]
        assert [entry.entry_id async for entry in reader.tail(3)] == [3, 4]
        assert [entry.entry_id async for entry in reader.tail(4)] == [4]
        assert [entry.entry_id async for entry in reader.tail(5)] == []

    run_virtually(test)


def test_tail_of_a_ledger_that_was_closed_meanwhile_gives_its_last_entries() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        reader = await client.open_ledger(writer.ledger_id)
        for n in range(5):
            await writer.append(b"%d" % n)
        await writer.close()
        assert not reader.is_closed, "as far as it knows"
        assert [entry.entry_id async for entry in reader.tail(0)] == [0, 1, 2, 3, 4]

    run_virtually(test)


def test_read_that_learns_of_a_younger_fragment_goes_on_where_it_was() -> None:
    """The bookies of the fragment that it knows bring what they have, and deny the rest."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        await writer.flush()
        reader = await client.open_ledger(writer.ledger_id)
        old = reader.metadata.last_fragment.bookies
        for number, bookie_id in enumerate(old, start=1):
            world.kill(bookie_id)
            await writer.append(b"%d" % number)
            await writer.flush()
        assert not set(old) & set(writer.metadata.last_fragment.bookies)
        for bookie_id in old:
            world.revive(bookie_id)
        reader.learn(EntryId(3))
        found = [entry.payload async for entry in reader.read(0, 3)]
        assert found == [b"0", b"1", b"2", b"3"]
        await writer.close()

    run_virtually(test, bookies=6)


def damage(client: LedgerClient, bookies: set[BookieId]) -> None:
    """What these bookies bring does not fit its digest."""
    honest = client.context.transport.read

    async def read(
        bookie_id: BookieId, *args: Any, **named: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        async for chunk in honest(bookie_id, *args, **named):
            for told in damaged(chunk) if bookie_id in bookies else [chunk]:
                yield told

    client.context.transport.read = read  # type: ignore[method-assign]


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("size", [1, 3])
def test_reader_asks_those_whom_repair_has_named_since_it_was_opened(
    size: int, is_damaged: bool
) -> None:
    """Repair changes who is in a fragment, and adds none. Those before are gone, or their copies
    are damaged."""

    async def test(world: World) -> None:
        client, repair = await world.client(), await world.client()
        writer = await client.create_ledger(ensemble_size=size, write_quorum=size, ack_quorum=size)
        await writer.append(b"0")
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        old = reader.metadata.last_fragment.bookies
        new = [bookie_id for bookie_id in world.bookies if bookie_id not in old][:size]
        for gone, copy in zip(old, new, strict=True):
            world.bookies[copy].ledgers.update(world.bookies[gone].ledgers)
            if not is_damaged:
                world.kill(gone)
        if is_damaged:
            damage(client, set(old))
        stored = await repair.context.ledgers.read(writer.ledger_id)
        changed = stored.value.with_changes(fragments=(Fragment(EntryId(0), tuple(new)),))
        await repair.context.ledgers.compare_and_set(changed, stored.version)
        assert [entry.payload async for entry in reader.read(0, 0)] == [b"0"]

    run_virtually(test, bookies=2 * size)


def test_entry_that_those_whom_repair_has_named_lack_too_is_told_after_one_look() -> None:
    """That the metadata have changed since the read began is no reason to ask for ever."""

    async def test(world: World) -> None:
        client, repair = await world.client(), await world.client()
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"0")
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        (old,) = reader.metadata.last_fragment.bookies
        (new,) = set(world.bookies) - {old}
        world.kill(old)
        stored = await repair.context.ledgers.read(writer.ledger_id)
        changed = stored.value.with_changes(fragments=(Fragment(EntryId(0), (new,)),))
        await repair.context.ledgers.compare_and_set(changed, stored.version)
        ask, asked = client.context.transport.read, Counter[BookieId]()

        def read(bookie_id: BookieId, *args: Any, **named: Any) -> AsyncGenerator[ReadChunk, None]:
            asked[bookie_id] += 1
            assert asked[bookie_id] < 20, "it asks for ever"
            return ask(bookie_id, *args, **named)

        client.context.transport.read = read  # type: ignore[method-assign]
        with pytest.raises((NoSuchEntryError, BookieUnavailableError)):
            _ = [entry async for entry in reader.read(0, 0)]
        assert asked[new] > 0

    run_virtually(test, bookies=2)
