"""Copies that are not where the placement policy wants them are moved, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import MetadataUnavailableError
from spark_ledger.metadata.cluster import ensure_cluster, set_placement
from spark_ledger.repair.checker import Checker, CheckerConfig
from spark_ledger.types import LedgerId, LedgerMetadata, PlacementPolicy, Versioned
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import (
    Crew,
    contents,
    crew,
    give_cookies,
    lacking,
    marked,
)

OTHER_RACK = ("b1", "b3", "b5")


async def in_one_rack(world: World, client: LedgerClient, **options: int) -> LedgerWriter:
    """A ledger that was made while the other rack was down."""
    for name in OTHER_RACK:
        await world._registries[name].deregister()  # type: ignore[index]
    await client.context.directory.refresh(all_again=True)
    writer = await filled(client, **options)
    await writer.close()
    for name in OTHER_RACK:
        await world.register(name)
    return writer


async def racks_of(world: World, client: LedgerClient, ledger_id: int) -> list[set[str]]:
    metadata = await client.ledger_metadata(ledger_id)
    return [{world.rack(each) for each in fragment.bookies} for fragment in metadata.fragments]


async def with_policy(world: World, policy: PlacementPolicy) -> Crew:
    """An auditor and a worker that have seen the policy."""
    await give_cookies(world)
    client = await world.client()
    await ensure_cluster(client.store)
    await set_placement(client.store, policy)
    cared = await crew(world)
    for context in (cared.auditor._context, cared.worker._client.context):
        await context.directory.refresh(all_again=True)
    return cared


@pytest.mark.parametrize("sizes", [(3, 3, 2), (2, 2, 1)])
def test_ledger_in_one_rack_is_found_by_the_audit_and_moved(sizes: tuple[int, int, int]) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        e, wq, aq = sizes
        options = {"ensemble_size": e, "write_quorum": wq, "ack_quorum": aq}
        writer = await in_one_rack(world, client, **options)
        cared = await with_policy(world, PlacementPolicy(min_racks=2))
        before = (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies
        await cared.auditor.run_pass()
        assert await marked(world) == {writer.ledger_id: min(3, wq)}
        assert cared.auditor.misplaced == 1
        await cared.worker.run_pass()
        assert await marked(world) == {}
        assert await lacking(world, client, writer.ledger_id) == []
        after = (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies
        moved = sum(old != new for old, new in zip(before, after, strict=True))
        assert moved == 1, "the fewest"
        assert len(await contents(client, writer.ledger_id)) == 20
        await cared.auditor.audit(())
        assert cared.auditor.misplaced == 0 and await marked(world) == {}

    run_virtually(test, bookies=6, racks=2)


def test_policy_that_is_set_while_all_ledgers_are_looked_at_has_them_looked_at_again() -> None:
    """Some were looked at by the one before."""

    async def test(world: World) -> None:
        cared = await with_policy(world, PlacementPolicy(min_racks=2))
        directory, real, looks = cared.auditor._context.directory, cared.auditor.audit, 0

        async def audit(*given: Any) -> int:
            nonlocal looks
            looks += 1
            marked_now = await real(*given)
            directory.policy = PlacementPolicy(min_racks=3)
            return marked_now

        cared.auditor.audit = audit  # type: ignore[method-assign, assignment]
        for expected in (1, 2, 2):
            await cared.auditor.run_pass()
            assert looks == expected

    run_virtually(test, bookies=6, racks=2)


def test_nothing_is_marked_where_no_bookie_is_in_another_rack() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        cared = await with_policy(world, PlacementPolicy(min_racks=2))
        await cared.auditor.run_pass()
        assert await marked(world) == {}

    run_virtually(test, bookies=6, racks=1)


def test_ledger_in_good_racks_stays_where_it_is() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        cared = await with_policy(world, PlacementPolicy(min_racks=2))
        before = await client.ledger_metadata(writer.ledger_id)
        await cared.auditor.run_pass()
        await cared.worker.run_pass()
        assert await client.ledger_metadata(writer.ledger_id) == before

    run_virtually(test, bookies=6, racks=2)


def test_copy_that_is_not_stored_is_not_named_and_moved_later() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await in_one_rack(world, client)
        cared = await with_policy(world, PlacementPolicy(min_racks=2))
        await cared.auditor.run_pass()
        for name in OTHER_RACK:
            world.kill(name)
        await cared.worker.run_pass()
        assert await racks_of(world, client, writer.ledger_id) == [{"/r0"}]
        assert await marked(world) == {writer.ledger_id: 3}
        for name in OTHER_RACK:
            world.revive(name)
        await cared.passes(120)
        assert await racks_of(world, client, writer.ledger_id) == [{"/r0", "/r1"}]
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=6, racks=2)


def test_closed_ledger_is_found_by_its_check() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await in_one_rack(world, client)
        await with_policy(world, PlacementPolicy(min_racks=2))
        checking = await world.client()
        await checking.context.directory.refresh(all_again=True)
        checker = Checker(checking, CheckerConfig(members_per_s=1e6))
        await checker.check(LedgerId(writer.ledger_id))
        assert await marked(world) == {writer.ledger_id: 3}

    run_virtually(test, bookies=6, racks=2)


@pytest.mark.parametrize("trouble", ["the store is away", "most bookies are gone"])
def test_audit_of_another_policy_that_was_broken_off_is_made_later(trouble: str) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await in_one_rack(world, client)
        cared = await with_policy(world, PlacementPolicy(min_racks=2))
        gone = [name for name in world.bookies if trouble == "most bookies are gone"][:4]
        for name in gone:
            await world._registries[name].deregister()
        read, left = cared.auditor._ledgers.read, 1 - bool(gone)

        async def away_once(ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
            nonlocal left
            left -= 1
            if left >= 0:
                raise MetadataUnavailableError("away")
            return await read(ledger_id)

        cared.auditor._ledgers.read = away_once  # type: ignore[method-assign]
        cared.clock.now += 10.0
        if gone:
            assert (await cared.auditor.run_pass()).stopped
        else:
            with pytest.raises(MetadataUnavailableError):
                await cared.auditor.run_pass()
        assert await marked(world) == {}
        for name in gone:
            await world.register(name)
        await cared.auditor._context.directory.refresh(all_again=True)
        cared.clock.now += 10.0
        await cared.auditor.run_pass()
        assert await marked(world) == {writer.ledger_id: 3}
        reads = left
        cared.clock.now += 10.0
        await cared.auditor.run_pass()
        assert left == reads, "one whole audit is enough"

    run_virtually(test, bookies=6, racks=2)
