"""The keeper goes on packing small commits where somebody has begun to (rule K10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import PackedNode, read_packed
from spark_ledger.stream.packs.optimizer import Optimizer
from spark_ledger.stream.packs.store import read_packs
from spark_ledger.stream.stream import Stream
from spark_ledger.tasks import Throttle
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, ledgers
from tests.unit.spark_ledger.keeper.world import Clock, keeper, new_stream, passes, read

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def three_entries_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ledger.keeper.optimizing.OPTIMIZED_ENTRIES_MIN", 3)


async def elected(world: World, clock: Clock, **config: Any) -> Keeper:
    cared = await keeper(world, clock, **{"optimize_s": HOUR_S, "dropped_grace_s": 0.0, **config})
    assert await cared.elect()
    return cared


async def looked(cared: Keeper, clock: Clock) -> None:
    """One look at all streams, if one is due."""
    await passes(cared, clock, 10)
    if cared._optimizer._task is not None:
        await asyncio.wait([cared._optimizer._task])


async def packed(stream: Stream) -> list[tuple[int, int]]:
    packs = (await read_packs(stream._nodes)).value.packs
    return [(pack.first, pack.end) for pack in packs]


async def optimized(world: World, name: str = "s") -> Stream:
    """A stream of which somebody has packed the first two commits."""
    stream = await new_stream(await world.client(), name)
    await closed_commits(world, stream, 2)
    await stream.optimizer.run_all(entries_min=1)
    assert await packed(stream) == [(0, 2)]
    return stream


def test_commits_that_came_since_are_packed_and_their_ledgers_go() -> None:
    async def test(world: World) -> None:
        stream = await optimized(world)
        await closed_commits(world, stream, 4)
        clock = Clock()
        cared = await elected(world, clock)
        await looked(cared, clock)
        assert await packed(stream) == [(0, 2), (2, 6)]
        await passes(cared, clock, 240)
        assert len(await ledgers(world)) == 2, "a ledger for each pack"
        assert await read(stream) == [0, 1, 2, 3, 4, 5]

    run(test)


def test_stream_that_nobody_has_optimized_keeps_its_format() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 5)
        clock = Clock()
        cared = await elected(world, clock)
        await looked(cared, clock)
        assert not (await stream.refresh()).has_packs

    run(test)


def test_few_small_entries_wait_and_so_does_the_next_look() -> None:
    async def test(world: World) -> None:
        stream = await optimized(world)
        await closed_commits(world, stream, 2)
        clock = Clock()
        cared = await elected(world, clock)
        await looked(cared, clock)
        assert await packed(stream) == [(0, 2)], "two are not worth it"
        await closed_commits(world, stream, 1)
        await looked(cared, clock)
        assert await packed(stream) == [(0, 2)], "it looks once an hour"
        clock.now += HOUR_S
        await looked(cared, clock)
        assert await packed(stream) == [(0, 2), (2, 5)]

    run(test)


def test_keeper_that_is_told_not_to_packs_nothing() -> None:
    async def test(world: World) -> None:
        stream = await optimized(world)
        await closed_commits(world, stream, 5)
        clock = Clock()
        cared = await elected(world, clock, optimize_s=0.0)
        await looked(cared, clock)
        assert await packed(stream) == [(0, 2)]

    run(test)


def test_look_without_work_says_what_is_due_and_writes_nothing() -> None:
    async def test(world: World) -> None:
        stream, other = await optimized(world), await optimized(world, "other")
        await closed_commits(world, stream, 4)
        await closed_commits(world, other, 1)
        cared = await keeper(world, Clock(), optimize_s=HOUR_S)
        before = await ledgers(world)
        found = [each async for each in cared.packable()]
        assert [(each.stream, each.packed.first, each.packed.commits) for each in found] == [
            ("s", 2, 4)
        ]
        assert (await packed(stream), await ledgers(world)) == ([(0, 2)], before)
        never = await keeper(world, Clock(), optimize_s=0.0)
        assert [each async for each in never.packable()] == []

    run(test)


def test_packs_are_copied_at_a_rate_and_counted_for_the_next_keeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed: list[int] = []

    async def take(throttle: Throttle, count: int) -> None:
        assert throttle._rate == 7.0
        passed.append(count)

    async def test(world: World) -> None:
        stream = await optimized(world)
        clock = Clock()
        cared = await elected(world, clock, optimize_bytes_per_s=7.0)
        monkeypatch.setattr(Throttle, "take", take)
        for first in (2, 6):
            await closed_commits(world, stream, 4)
            clock.now += HOUR_S
            await looked(cared, clock)
            assert (await packed(stream))[-1] == (first, first + 4)
        packs = (await read_packs(stream._nodes)).value.packs[1:]
        assert sum(passed) == sum(pack.size_bytes for pack in packs) > 0
        counted = await read_packed(cared._store)
        assert counted is not None
        assert counted.value == PackedNode(packs=2, commits=8, copied_bytes=sum(passed))

    run(test)


def test_stream_whose_node_is_damaged_holds_up_no_other() -> None:
    async def test(world: World) -> None:
        first, stream = await optimized(world, "a"), await optimized(world)
        await closed_commits(world, stream, 3)
        clock = Clock()
        cared = await elected(world, clock)
        config = await cared._store.get(first._nodes.config_path)
        await cared._store.put(first._nodes.config_path, b"{", config.version)
        assert [each.stream async for each in cared.packable()] == ["s"]
        await looked(cared, clock)
        assert await packed(stream) == [(0, 2), (2, 5)]

    run(test)


def test_stream_that_cannot_be_read_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Optimizer._write

    async def away(optimizer: Optimizer, *words: Any) -> Any:
        if optimizer._nodes.name == "a":
            raise BookieUnavailableError("no bookie answers")
        return await write(optimizer, *words)

    async def test(world: World) -> None:
        first, stream = await optimized(world, "a"), await optimized(world)
        await closed_commits(world, first, 3)
        await closed_commits(world, stream, 3)
        clock = Clock()
        cared = await elected(world, clock)
        monkeypatch.setattr(Optimizer, "_write", away)
        await looked(cared, clock)
        assert (await packed(first), await packed(stream)) == ([(0, 2)], [(0, 2), (2, 5)])

    run(test)


def test_stream_with_much_to_pack_leaves_the_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_ledger.stream.packs.model.PACK_COMMITS_MAX", 4)

    async def test(world: World) -> None:
        first, stream = await optimized(world, "a"), await optimized(world)
        await closed_commits(world, first, 12)
        await closed_commits(world, stream, 4)
        clock = Clock()
        cared = await elected(world, clock)
        await looked(cared, clock)
        assert (await packed(first), await packed(stream)) == ([(0, 2), (2, 6)], [(0, 2), (2, 6)])
        clock.now += HOUR_S
        await looked(cared, clock)
        assert await packed(first) == [(0, 2), (2, 6), (6, 10)], "one at each look"

    run(test)


def test_keeper_that_stops_in_the_middle_leaves_nothing_and_loses_nothing() -> None:
    async def test(world: World) -> None:
        stream = await optimized(world)
        await closed_commits(world, stream, 4)
        clock = Clock()
        for steps in range(0, 120, 8):
            cared = await elected(world, clock)
            await passes(cared, clock, 10)
            for _ in range(steps):
                await asyncio.sleep(0)
            await cared._optimizer.stop()
            await cared._save()
            await cared._client.close()
        cared = await elected(world, clock)
        await looked(cared, clock)
        assert await packed(stream) == [(0, 2), (2, 6)]
        clock.now += 500
        await passes(cared, clock, 400)
        assert len(await ledgers(world)) == 2
        assert await read(stream) == [0, 1, 2, 3, 4, 5]

    run(test)
