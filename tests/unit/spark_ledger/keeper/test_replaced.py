"""What packs and merged manifests have replaced goes after a grace of its own (rule K11)."""

from __future__ import annotations

import pytest

from spark_ledger.keeper.nodes import DroppedNode, dropped_path
from spark_ledger.limits.keeper import REPLACED_GRACE_S
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, elected, ledgers
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes, read
from tests.unit.spark_ledger.stream.world import former_of, small_manifests

GRACE_S = 600.0


async def former_of_packs(stream: Stream) -> set[int]:
    commits = await stream.commits(0, (await stream._watch.read()).next_commit)
    return {int(segment.ledger_id) for each in commits for segment in each.segments}


def test_grace_is_longer_than_from_one_daily_backup_to_the_next_but_one() -> None:
    assert REPLACED_GRACE_S >= 2 * 24 * 3600.0


@pytest.mark.parametrize("killed", [False, True])
def test_what_packs_and_pages_have_replaced_goes_after_the_grace(
    killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_manifests(monkeypatch)

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 9)
        assert await stream.optimizer.run_all(entries_min=1)
        former = await former_of_packs(stream) | await former_of(stream)
        assert len(former) > 9 and former < await ledgers(world)
        clock = Clock()
        cared = await elected(world, clock, replaced_grace_s=GRACE_S)
        await passes(cared, clock, GRACE_S / 2)
        assert former < await ledgers(world)
        node = await read_node(cared._store, DroppedNode, dropped_path(stream.config.stream_id))
        assert node is not None and len(node.value.merged) == len(node.value.packed) == 1
        if killed:
            await cared._save()
            await cared._election.resign()
            clock.now += 10 * GRACE_S  # nobody worked
            cared = await elected(world, clock, replaced_grace_s=GRACE_S)
        await passes(cared, clock, GRACE_S / 2 - 60)
        assert former < await ledgers(world)
        # What comes later has a grace of its own.
        await closed_commits(world, stream, 4)
        assert await stream.optimizer.run_all(entries_min=1)
        later = (await former_of_packs(stream) | await former_of(stream)) - former
        await passes(cared, clock, 180)
        assert not former & await ledgers(world) and later < await ledgers(world)
        await passes(cared, clock, GRACE_S + GRACE_S / 15 + 120)
        assert not later & await ledgers(world)
        for each in (stream, await StreamCatalog(await world.client()).open("s")):
            assert await read(each) == list(range(13))
        assert (await stream.retention.ledgers()).reclaimable == 0

    run(test)


def test_stream_of_which_nothing_was_replaced_has_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=10)

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 9)
        clock = Clock()
        cared = await elected(world, clock)
        before = await ledgers(world)
        await passes(cared, clock, 120)
        assert await ledgers(world) == before
        path = dropped_path(stream.config.stream_id)
        assert await read_node(cared._store, DroppedNode, path) is None

    run(test)
