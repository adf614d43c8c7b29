"""Ledgers with a password are repaired by who does not know it: over real bookies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from bookie_server.first_contact import Answer, CopyAnswer
from bookie_server.ledger_keys import MetadataKeys
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.config import ClientConfig
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.repair import merging
from spark_ledger.repair.nodes import mark
from spark_ledger.repair.status import RepairStatus, look
from spark_ledger.repair.throttle import Throttles
from spark_ledger.repair.worker import Worker, WorkerConfig
from spark_ledger.transport.base import ReadChunk
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    BookieStatus,
    EntryId,
    LedgerId,
    LedgerMetadata,
)
from tests.unit.bookie_server.storage.support import Machine, formatted

PASSWORD = b"secret"
CONFIG = WorkerConfig(bytes_per_s=1e12, source_bytes_per_s=1e12, open_grace_s=0.0)


class RealWorld:
    """Real bookies without threads, and their metadata."""

    def __init__(self, bookies: int) -> None:
        self.tree = MemoryTree()
        self._keys = MetadataKeys(MemoryMetadataStore(self.tree))
        names = [BookieId(f"b{i}") for i in range(bookies)]
        self.machines = {name: Machine(formatted(), keys=self) for name in names}
        self.serving = {name: machine.bookie for name, machine in self.machines.items()}
        self.registries = {name: self.registry() for name in names}
        self._clients: list[LedgerClient] = []

    def registry(self) -> BookieRegistry:
        return BookieRegistry(MemoryMetadataStore(self.tree))

    def look_up(self, ledger_id: LedgerId, answer: Answer) -> None:
        self._keys.look_up(ledger_id, answer)

    def look_up_copy(self, ledger_id: LedgerId, answer: CopyAnswer) -> None:
        self._keys.look_up_copy(ledger_id, answer)

    async def client(self, transport: MemoryTransport | None = None) -> LedgerClient:
        client = await LedgerClient.over(
            MemoryMetadataStore(self.tree),
            transport or MemoryTransport(self.serving),
            ClientConfig(read_timeout_s=1.0),
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for registry in self.registries.values():
            await registry.deregister()

    async def lose(self, name: BookieId) -> None:
        del self.serving[name]
        await self.registries[name].deregister()

    async def drive(self) -> None:
        while True:
            for machine in self.machines.values():
                machine.settle()
            await asyncio.sleep(0.001)

    async def repair(
        self, ledger_id: int, lost: BookieId, transport: MemoryTransport | None = None
    ) -> RepairStatus:
        """One pass at a ledger that names a lost bookie."""
        client = await self.client(transport)
        await mark(client.store, LedgerId(ledger_id), frozenset([lost]), 1)
        await Worker(client, CONFIG).run_pass()
        found = await look(client.store)
        await client.close()
        return found


def run(test: Callable[[RealWorld], Awaitable[None]], bookies: int = 4) -> None:
    async def main() -> None:
        world = RealWorld(bookies)
        for name, registry in world.registries.items():
            await registry.register(BookieInfo(name, f"memory:{name}"))
        driving = asyncio.create_task(world.drive())
        try:
            async with asyncio.timeout(30):
                await test(world)
        finally:
            await world.close()
            driving.cancel()

    asyncio.run(main())


async def closed_ledger(client: LedgerClient, copies: int = 3) -> LedgerMetadata:
    writer = await client.create_ledger(
        ensemble_size=copies, write_quorum=copies, ack_quorum=copies, password=PASSWORD
    )
    for number in range(20):
        await writer.append(b"%d" % number)
    await writer.close()
    return writer.metadata


async def bookies_of(client: LedgerClient, ledger_id: int) -> tuple[BookieId, ...]:
    return tuple((await client.ledger_metadata(ledger_id)).fragments[0].bookies)


async def check_readable(world: RealWorld, ledger_id: int, on: BookieId) -> None:
    """With the password, from one bookie alone."""
    serving = {on: world.machines[on].bookie}
    client = await world.client(MemoryTransport(serving))
    reader = await client.open_ledger(ledger_id, password=PASSWORD)
    found = [entry.payload async for entry in reader.read(0, 19)]
    assert found == [b"%d" % number for number in range(20)]
    await client.close()


def test_copies_are_made_without_the_password() -> None:
    async def test(world: RealWorld) -> None:
        client = await world.client()
        for copies in (3, 2):
            ledger = await closed_ledger(client, copies)
            lost, *others = ledger.fragments[0].bookies
            bookie = world.serving[lost]
            await world.lose(lost)
            status = await world.repair(ledger.ledger_id, lost)
            assert status.marked == {} and status.failing == 0
            now = await bookies_of(client, ledger.ledger_id)
            (new,) = set(now) - set(others)
            assert new != lost
            kept = world.machines[others[0]].held(ledger.ledger_id)
            assert world.machines[new].held(ledger.ledger_id) == kept and len(kept) == 20
            await check_readable(world, ledger.ledger_id, new)
            world.serving[lost] = bookie
            world.registries[lost] = world.registry()
            await world.registries[lost].register(BookieInfo(lost, f"memory:{lost}"))

    run(test)


class Damaging(MemoryTransport):
    """Changes a payload byte of what some bookies send: always, or at the first time only."""

    def __init__(self, serving: Any, damaged: dict[BookieId, int]) -> None:
        super().__init__(serving)
        self._damaged = damaged

    async def read(
        self, bookie_id: BookieId, *args: Any, **options: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        async for chunk in super().read(bookie_id, *args, **options):
            if chunk.run is not None and self._damaged.get(bookie_id, 0) > 0:
                self._damaged[bookie_id] -= 1
                frames = chunk.run.frames[:-1] + b"!"
                run = type(chunk.run)(
                    chunk.run.ledger_id,
                    chunk.run.first_entry,
                    chunk.run.entry_ids,
                    chunk.run.sizes,
                    frames,
                )
                chunk = chunk._replace(run=run)
            yield chunk


def test_copy_that_differs_from_the_other_one_is_not_copied() -> None:
    async def test(world: RealWorld) -> None:
        client = await world.client()
        ledger = await closed_ledger(client)
        lost, rotten, good = ledger.fragments[0].bookies
        await world.lose(lost)
        damaging = Damaging(world.serving, {rotten: 10**6})
        status = await world.repair(ledger.ledger_id, lost, damaging)
        assert status.failing == 1
        reason = status.failed[0][1].reason
        assert "entry 0" in reason and rotten in reason and good in reason
        assert lost in await bookies_of(client, ledger.ledger_id)
        for machine in world.machines.values():
            assert all(
                not frame.endswith(b"!") for frame in machine.held(ledger.ledger_id).values()
            )
        status = await world.repair(ledger.ledger_id, lost)
        assert status.marked == {}, "it is well again"

    run(test)


def test_damage_on_the_way_from_the_only_copy_is_noticed() -> None:
    async def test(world: RealWorld) -> None:
        client = await world.client()
        ledger = await closed_ledger(client, 2)
        lost, only = ledger.fragments[0].bookies
        await world.lose(lost)
        damaging = Damaging(world.serving, {only: 1})
        status = await world.repair(ledger.ledger_id, lost, damaging)
        assert status.failing == 1 and "twice, with different bytes" in status.failed[0][1].reason
        status = await world.repair(ledger.ledger_id, lost)
        assert status.marked == {}

    run(test)


def test_bookie_with_an_older_ledger_of_the_same_id_is_no_source() -> None:
    async def test(world: RealWorld) -> None:
        client = await world.client()
        ledger = await closed_ledger(client, 2)
        lost, only = ledger.fragments[0].bookies
        (spare, _) = sorted(set(world.machines) - {lost, only})
        # Another ledger with this id, as after ZooKeeper was restored: all else is the same.
        before = RealWorld(1)
        (name,) = before.machines
        await before.registries[name].register(BookieInfo(name, f"memory:{name}"))
        driving = asyncio.create_task(before.drive())
        earlier = await before.client()
        assert (await closed_ledger(earlier, 1)).ledger_id == ledger.ledger_id
        await before.close()
        driving.cancel()
        older = before.machines[name]
        world.machines[only] = older
        world.serving[only] = older.bookie
        await world.lose(lost)
        status = await world.repair(ledger.ledger_id, lost)
        assert status.failing == 1
        assert world.machines[spare].held(ledger.ledger_id) == {}

    run(test)


def test_hole_of_a_member_is_filled_without_the_password() -> None:
    async def test(world: RealWorld) -> None:
        client = await world.client()
        ledger = await closed_ledger(client)
        lost, poor, good = ledger.fragments[0].bookies
        world.machines[poor].bookie.delete_ledgers([ledger.ledger_id])
        await world.lose(lost)
        status = await world.repair(ledger.ledger_id, lost)
        assert status.marked == {}
        kept = world.machines[good].held(ledger.ledger_id)
        assert world.machines[poor].held(ledger.ledger_id) == kept and len(kept) == 20

    run(test)


class Counting(MemoryTransport):
    """Counts what is read from one bookie."""

    def __init__(self, serving: Any, bookie_id: BookieId) -> None:
        super().__init__(serving)
        self._bookie_id = bookie_id
        self.reads = 0

    async def read(
        self, bookie_id: BookieId, *args: Any, **options: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        self.reads += bookie_id == self._bookie_id
        async for chunk in super().read(bookie_id, *args, **options):
            yield chunk


def test_member_without_the_ledger_is_not_asked_for_each_entry_of_it() -> None:
    async def test(world: RealWorld) -> None:
        client = await world.client()
        ledger = await closed_ledger(client)
        lost, poor, _ = ledger.fragments[0].bookies
        world.machines[poor].bookie.delete_ledgers([ledger.ledger_id])
        await world.lose(lost)
        counting = Counting(world.serving, poor)
        assert (await world.repair(ledger.ledger_id, lost, counting)).marked == {}
        assert 0 < counting.reads < 5, "of twenty entries"

    run(test)


class Comparing(MemoryTransport):
    """One bookie brings nothing, for this reason. What it was asked for to compare is kept."""

    def __init__(self, serving: Any, bookie_id: BookieId, status: BookieStatus) -> None:
        super().__init__(serving)
        self._bookie_id, self._status = bookie_id, status
        self.compared: list[EntryId] = []

    async def read(
        self, bookie_id: BookieId, *args: Any, **options: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        _ledger_id, first, last = args
        if bookie_id == self._bookie_id:
            if last < 19:  # a source is asked for all that is left, and the lane ends there
                self.compared.append(first)
            yield ReadChunk(self._status, None, first)
            return
        async for chunk in super().read(bookie_id, *args, **options):
            yield chunk


@pytest.mark.parametrize("status", [BookieStatus.NO_SUCH_ENTRY, BookieStatus.IO_ERROR])
def test_member_that_brings_nothing_is_asked_to_compare_once(
    status: BookieStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each entry, if it lacks that one; once at all, if it says nothing."""
    monkeypatch.setattr(merging, "READ_CHUNK_BYTES_TARGET", 300)

    async def test(world: RealWorld) -> None:
        client = await world.client()
        ledger = await closed_ledger(client)
        lost, poor, _ = ledger.fragments[0].bookies
        await world.lose(lost)
        comparing = Comparing(world.serving, poor, status)
        await world.repair(ledger.ledger_id, lost, comparing)
        (spare,) = world.machines.keys() - set(ledger.fragments[0].bookies)
        assert len(world.machines[spare].held(ledger.ledger_id)) == 20
        if status is BookieStatus.IO_ERROR:
            assert comparing.compared == [0]
        else:
            assert len(set(comparing.compared)) == len(comparing.compared) > 5

    run(test)


def test_what_is_read_to_compare_counts_for_the_rate_of_its_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, real = Counter[BookieId](), Throttles.take

    async def take(throttles: Throttles, source: BookieId, size_bytes: int) -> None:
        taken[source] += size_bytes
        await real(throttles, source, size_bytes)

    monkeypatch.setattr(Throttles, "take", take)

    async def test(world: RealWorld) -> None:
        client = await world.client()
        ledger = await closed_ledger(client)
        lost, *others = ledger.fragments[0].bookies
        await world.lose(lost)
        await world.repair(ledger.ledger_id, lost)
        assert taken.keys() == set(others) and len(set(taken.values())) == 1, "each has sent all"

    run(test)


def test_open_ledger_of_a_writer_that_is_idle_says_who_can_close_it() -> None:
    async def test(world: RealWorld) -> None:
        client = await world.client()
        writer = await client.create_ledger(password=PASSWORD)
        for number in range(20):
            await writer.append(b"%d" % number)
        first = writer.metadata.fragments[0].bookies
        await world.lose(first[0])
        await writer.append(b"20")  # in a fragment without it
        second = writer.metadata.last_fragment.bookies
        (new,) = set(second) - set(first)
        await world.lose(new)
        store = client.store
        await mark(store, writer.ledger_id, frozenset([first[0]]), 1)
        status = await world.repair(writer.ledger_id, new)
        assert status.failing == 1 and "only who knows the password" in status.failed[0][1].reason
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert first[0] not in metadata.fragments[0].bookies, "what is final is repaired"
        assert not metadata.is_closed
        assert EntryId(20) == metadata.last_fragment.first_entry

    run(test, 6)
