"""A keeper that is killed at any operation of any of its duties leaves the rest to the next one: in
the end there is what one that nobody disturbed leaves."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from spark_ledger.keeper.keeper import Keeper
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention
from spark_ledger.stream.nodes import StreamNodes
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_killed_keepers import (
    kill_at,
    left_behind,
    until_dead,
    work,
)
from tests.unit.spark_ledger.keeper.test_sinks import DAY_S, Days, commit
from tests.unit.spark_ledger.keeper.test_streams import ledgers, live_ledgers
from tests.unit.spark_ledger.keeper.world import Clock, keeper, read, rows, unsettled

CONFIG: dict[str, Any] = {
    "owner_grace_s": 0.0,
    "unnamed_grace_s": 10.0,
    "dropped_grace_s": 0.0,
    "sink_records_s": 10.0 * DAY_S,
}
EVERY = 11
OPERATIONS_MAX = 1500


async def all_duties(world: World, days: Days) -> None:
    """Dead writers' ledgers, a deletion that was cut off, and a stream ``short`` that keeps two
    rows, has a hold that is over, and the record of a sink that is gone."""
    days.now = 0
    await left_behind(world)
    client = await world.client()
    short = await StreamCatalog(client).create("short", rows(1).schema, retention=Retention(rows=2))
    await commit(short, "gone", 1)
    await short.close()
    short = await StreamCatalog(await world.client()).open("short")
    for number in range(2, 5):
        await short.append(rows(number), sink_id="alive", transaction_id=number)
        await short.close()
        short = await StreamCatalog(await world.client()).open("short")
    await short.retention.hold("over", for_s=1.0)
    days.now = 20
    await short.append(rows(5), sink_id="alive", transaction_id=5)
    await short.close()


async def is_as_undisturbed(world: World) -> None:
    store = MemoryMetadataStore(world.tree)
    assert await unsettled(world) == ([], [])
    assert await store.children("streams") == ["s", "short"]
    catalog = StreamCatalog(await world.client())
    kept, short = await catalog.open("s"), await catalog.open("short")
    assert await read(kept) == [1, 2]
    assert await read(short) == [4, 5]
    assert await short.retention.holds() == []
    assert [each.sink_id for each in await StreamNodes(store, "short").sinks()] == ["alive"]
    raw = {
        ledger_id
        for ledger_id in await ledgers(world)
        if not (await catalog._ledgers.ledger_metadata(ledger_id)).custom_metadata
    }
    assert len(raw) == 1, "a raw ledger is its application's"
    assert await ledgers(world) - raw == await live_ledgers(kept) | await live_ledgers(short)
    root = await short._log.manifests.read_root(latest=True)
    assert root.dropped == (await short.head()).earliest_commit == 3
    assert await store.children("keeper/dropped") == [short.config.stream_id]


async def _works(cared: Keeper, clock: Clock) -> bool:
    return await work(cared, clock) and await work(cared, clock)


def test_undisturbed_keeper_does_all_of_its_duties(monkeypatch: pytest.MonkeyPatch) -> None:
    days = Days(monkeypatch)

    async def test(world: World) -> None:
        await all_duties(world, days)
        clock = Clock()
        assert await _works(await keeper(world, clock, **CONFIG), clock)
        await is_as_undisturbed(world)

    run(test)


@pytest.mark.proof
@pytest.mark.parametrize("applied", [False, True])
def test_keeper_killed_in_any_duty_is_followed_by_one_that_does_the_rest(
    applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(monkeypatch)
    outlived: list[bool] = []

    async def test(world: World, operation: int) -> None:
        await all_duties(world, days)
        clock = Clock()
        first = await keeper(world, clock, **CONFIG)
        kill_at(first, operation, applied=applied)
        outlived.append(await _works(first, clock))
        await until_dead(first)
        second = await keeper(world, clock, **CONFIG)
        assert await _works(second, clock)
        await is_as_undisturbed(world)

    for operation in range(1 + 5 * applied, OPERATIONS_MAX, EVERY):
        run(partial(test, operation=operation))
        if outlived[-1]:
            return
    raise AssertionError("the duties take fewer operations")
