"""Hours of deletions of dropped rows are due: a sweep does a part, and each stream has its turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_ledger.errors import CorruptionError
from spark_ledger.keeper import deletions
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.retention import reclaim
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_former_ledgers import slow_deletions
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, elected, ledgers
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes


@pytest.mark.parametrize("steps", [1, 20])
def test_sweep_gives_back_dropped_rows_for_a_while_and_each_stream_has_its_turn(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "PASS_PART_S", 5.0)
    monkeypatch.setattr("spark_ledger.keeper.streams.RECLAIM_STEPS_MAX", steps)
    monkeypatch.setattr(reclaim, "DROPPING_LEDGERS_MAX", 2)
    monkeypatch.setattr(reclaim, "DROPPED_PER_STEP", 6)

    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        of: dict[str, set[int]] = {}
        for name in ("a", "b", "c"):
            stream, before = await new_stream(client, name), await ledgers(world)
            await closed_commits(world, stream, 12)
            of[name] = await ledgers(world) - before
            await stream.retention.truncate("latest")
        cared = await elected(world, clock)
        done = slow_deletions(clock, monkeypatch)
        began = list[str]()
        for _ in range(20):
            before_s, count = clock.now, len(done)
            await passes(cared, clock, 10)
            assert clock.now - before_s <= 10.0 + 5.0 + 2.0, "others wait no longer"
            began += [name for name in of if of[name].intersection(done[count:])]
            if not await ledgers(world):
                break
            assert cared._stream_keeper.hurries or not done, "each pass goes on"
        else:
            raise AssertionError("it does not end")
        await passes(cared, clock, 10)
        assert not cared._stream_keeper.hurries
        assert set(began[:4]) == {"a", "b", "c"}

    run(test)


async def with_some_left(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> tuple[Keeper, StreamNodes]:
    """A keeper that had no time for all that was dropped of a stream."""
    monkeypatch.setattr(deletions, "PASS_PART_S", 1.0)
    monkeypatch.setattr(reclaim, "DROPPING_LEDGERS_MAX", 2)
    client = await world.client()
    stream = await new_stream(client, "a")
    await closed_commits(world, stream, 12)
    await stream.retention.truncate("latest")
    cared = await elected(world, clock)
    slow_deletions(clock, monkeypatch)
    while not cared._stream_keeper.hurries:
        await passes(cared, clock, 10)
    return cared, StreamNodes(client.store, "a")


def test_who_deletes_a_stream_with_much_left_has_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """And if the keeper cannot finish it, it tries once a minute, not in each pass."""
    tried = list[float]()

    async def test(world: World) -> None:
        clock = Clock()
        cared, nodes = await with_some_left(world, clock, monkeypatch)
        await StreamCatalog(await world.client())._mark_deleted(nodes)

        async def finish(
            catalog: StreamCatalog, name: str, stream_id: str, guard: Callable[[], Operation]
        ) -> bool:
            tried.append(clock.now)
            raise CorruptionError("a ledger's node is damaged")

        monkeypatch.setattr(StreamCatalog, "finish_deletion", finish)
        while not cared._stream_keeper._marked:
            await passes(cared, clock, 10)
        seen_s = clock.now
        await passes(cared, clock, 250)
        assert [each - seen_s for each in tried] == [60.0, 120.0, 180.0, 240.0]
        assert not cared._stream_keeper.hurries

    run(test)


def test_stream_that_cannot_be_visited_is_tried_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        clock = Clock()
        cared, nodes = await with_some_left(world, clock, monkeypatch)
        store = (await world.client()).store
        config = await store.get(nodes.config_path)
        await store.put(nodes.config_path, b"damaged", config.version)
        await passes(cared, clock, 60)
        caplog.clear()
        await passes(cared, clock, 120)
        assert sum("is not given back yet" in each for each in caplog.messages) == 2
        node = await store.get(nodes.config_path)
        await store.put(nodes.config_path, config.value, node.version)
        await passes(cared, clock, 60)
        assert cared._stream_keeper.hurries, "it goes on"

    run(test)


def test_stream_whose_visit_fails_behind_its_turn_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its turns get on with what is left: it is not put behind all the others."""

    async def test(world: World) -> None:
        cared, _ = await with_some_left(world, Clock(), monkeypatch)
        rows = cared._stream_keeper._rows
        rows.end_visit("a")
        assert list(rows.left) == ["a"]
        rows.begin()
        rows.end_visit("a")
        assert not rows.left

    run(test)
