"""Locks of ledgers under repair: a store that does not answer leaves none for ever."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_ledger.metadata.ledgers import LEDGERS_PATH
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.metadata.repair_locks import LOCKS_PATH, lock_path
from spark_ledger.repair.copying import Copier
from spark_ledger.repair.locking import repair_lock
from spark_ledger.repair.nodes import mark
from spark_ledger.repair.plan import LaneCopy
from spark_ledger.types import BookieId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.world import crew, lacking, lose, marked


async def lost_one(world: World) -> tuple[LedgerId, MemoryMetadataStore]:
    """A ledger that is marked since it lost a bookie; and a session of somebody else."""
    client = await world.client()
    writer = await client.create_ledger()
    await writer.append(b"x")
    await writer.close()
    name = writer.metadata.last_fragment.bookies[0]
    await lose(world, name)
    await mark(client.store, writer.ledger_id, frozenset([BookieId(name)]), 2)
    return writer.ledger_id, world.tree.open_session()


async def whole_one(world: World) -> tuple[LedgerId, MemoryMetadataStore]:
    """A ledger that is marked and lacks nothing; and a session of somebody else."""
    client = await world.client()
    writer = await client.create_ledger()
    await writer.append(b"x")
    await writer.close()
    await mark(client.store, writer.ledger_id, frozenset(), 2)
    return writer.ledger_id, world.tree.open_session()


@pytest.mark.parametrize("operation", ["create", "delete", "transaction"])
@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.LOST_REQUEST, Outcome.LOST_REPLY])
def test_ledger_whose_lock_was_in_doubt_is_repaired_by_the_next_pass(
    operation: str, outcome: Outcome
) -> None:
    async def test(world: World) -> None:
        ledger_id, other = await (lost_one if operation != "delete" else whole_one)(world)
        cared = await crew(world)
        store = cared.worker._client.store
        assert isinstance(store, MemoryMetadataStore)
        troubled = set()

        def interpose(name: str, path: str) -> Fault:
            is_wanted = name == operation and path.startswith((LOCKS_PATH, LEDGERS_PATH))
            troubled.update([path] if is_wanted else [])
            return Fault(outcome if is_wanted else Outcome.NORMAL)

        store.interpose = interpose
        await cared.worker.run_pass()
        store.interpose = None
        assert troubled
        if not await marked(world):  # it was repaired, and its lock is still there
            await mark(other, ledger_id, frozenset(), 2)
        cared.clock.now += 60.0
        await cared.worker.run_pass()
        assert await marked(world) == {}
        assert await lacking(world, cared.worker._client, ledger_id) == []
        assert await other.children(LOCKS_PATH) == []

    run_virtually(test, bookies=5)


def test_lock_of_another_process_keeps_this_one_away() -> None:
    async def test(world: World) -> None:
        ledger_id, other = await lost_one(world)
        await other.create(lock_path(ledger_id), b"", ephemeral=True)
        cared = await crew(world)
        await cared.worker.run_pass()
        assert set(await marked(world)) == {ledger_id}
        other.expire()
        await cared.worker.run_pass()
        assert await marked(world) == {}

    run_virtually(test, bookies=5)


def test_lock_that_somebody_of_this_process_holds_is_not_taken_for_left_over() -> None:
    async def test(world: World) -> None:
        store, ledger_id = (await world.client()).store, LedgerId(7)
        for _ in range(2):
            async with repair_lock(store, ledger_id) as first:
                async with repair_lock(store, ledger_id) as second:
                    assert first is not None and second is None
                assert await store.is_own(lock_path(ledger_id))

    run_virtually(test)


@pytest.mark.parametrize("is_lost", [True, False])
def test_lock_of_a_session_that_ended_is_left_to_who_took_it_since(is_lost: bool) -> None:
    """One of a session that goes on over another connection is taken off."""

    async def test(world: World) -> None:
        store, ledger_id = (await world.client()).store, LedgerId(7)
        assert isinstance(store, MemoryMetadataStore)
        other = world.tree.open_session()
        async with repair_lock(store, ledger_id) as lock:
            assert lock is not None
            if is_lost:
                store.expire()
                await other.create(lock_path(ledger_id), b"", ephemeral=True)
            else:
                store.reconnect()
        assert (await other.children(LOCKS_PATH) == ["7"]) is is_lost

    run_virtually(test)


@pytest.mark.parametrize("is_lost", [True, False])
def test_ledger_that_is_named_behind_a_lost_session_leaves_the_lock_of_another(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        ledger_id, other = await lost_one(world)
        cared = await crew(world)
        store, copy = cared.worker._client.store, Copier.copy
        assert isinstance(store, MemoryMetadataStore)

        async def late(copier: Copier, lanes: Sequence[LaneCopy], target: BookieId) -> None:
            await copy(copier, lanes, target)
            if is_lost:
                store.expire()
                await other.create(lock_path(ledger_id), b"", ephemeral=True)
            else:
                store.reconnect()

        monkeypatch.setattr(Copier, "copy", late)
        await cared.worker.run_pass()
        assert await marked(world) == {}, "and it is named all the same"
        assert (await other.children(LOCKS_PATH) == [str(ledger_id)]) is is_lost

    run_virtually(test, bookies=5)
