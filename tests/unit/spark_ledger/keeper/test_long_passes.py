"""A keeper that has more to do than a pass has time: who is gone is found all the same, and streams
have their turn."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.keeper.gone import GoneOwners
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import read_state
from spark_ledger.limits.keeper import PASS_PART_S
from spark_ledger.metadata.ledgers import LEDGERS_PATH
from spark_ledger.metadata.owners import OWNERS_PATH
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.world import (
    Clock,
    keeper,
    new_stream,
    passes,
    task,
    unsettled,
)

READS = {"get": 1, "get_latest": 2, "children": 1}
"""Round trips of each."""


class Slow:
    """Has each read of a keeper take its time, and counts reads of ledgers and owners."""

    def __init__(self, of: Keeper, clock: Clock, round_trip_s: float) -> None:
        self.reads: Counter[str] = Counter()
        for name, trips in READS.items():
            setattr(of._store, name, self._slow(getattr(of._store, name), clock, trips))
        self._round_trip_s = round_trip_s

    def _slow(
        self, real: Callable[..., Awaitable[Any]], clock: Clock, trips: int
    ) -> Callable[..., Awaitable[Any]]:
        async def call(path: str) -> Any:
            clock.now += trips * self._round_trip_s
            self.reads[path.split("/", maxsplit=1)[0]] += 1
            return await real(path)

        return call


def test_time_of_long_passes_counts_and_time_without_work_does_not() -> None:
    gone = GoneOwners(step_s_max=20.0)
    assert gone.gone("a", 0.0) == 0.0
    for second in range(15, 3000, 15):
        gone.at_work(float(second))
    assert gone.gone("a", 3000.0) == 3000.0
    assert gone.gone("a", 3021.0) == 3000.0, "it stood still"


def test_dead_writer_is_recovered_however_long_passes_take() -> None:
    async def test(world: World) -> None:
        await new_stream(await world.client())
        for number in range(8):
            await task(world, number)
        await task(world, 9, closes=False)
        clock = Clock()
        cared = await keeper(world, clock, unnamed_grace_s=3600.0)
        assert await cared.elect()
        Slow(cared, clock, 20.0)
        began = clock.now
        while (await unsettled(world))[0]:
            assert clock.now - began < 1500.0, "its time does not grow"
            await passes(cared, clock, 10)
        while (await unsettled(world))[1]:
            assert clock.now - began < 3 * 3600.0, "its time does not grow"
            await passes(cared, clock, 10)
        assert cared.done["recovered"] == 1 and cared.done["deleted"] == 9

    run(test)


def test_unnamed_ledger_of_a_dead_owner_is_read_once_before_its_grace() -> None:
    async def test(world: World) -> None:
        await new_stream(await world.client())
        for number in range(5):
            await task(world, number)
        clock = Clock()
        cared = await keeper(world, clock, unnamed_grace_s=1000.0)
        assert await cared.elect()
        slow = Slow(cared, clock, 0.0)
        await passes(cared, clock, 10)
        assert slow.reads[LEDGERS_PATH] == 5
        slow.reads.clear()
        await passes(cared, clock, 900)
        assert not slow.reads[LEDGERS_PATH]
        assert slow.reads[OWNERS_PATH.split("/", maxsplit=1)[0]] == 90, "the list, at each pass"
        assert cared.found.unnamed_of_the_dead == 5
        await passes(cared, clock, 100)
        assert await unsettled(world) == ([], [])

    run(test)


def test_known_ledgers_of_a_stream_that_goes_are_deleted_at_once() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await new_stream(client)
        await task(world, 1)
        clock = Clock()
        cared = await keeper(world, clock)
        assert await cared.elect()
        await passes(cared, clock, 20)
        assert len((await unsettled(world))[1]) == 1
        await StreamCatalog(client).delete("s")
        await passes(cared, clock, 10)
        assert await unsettled(world) == ([], [])

    run(test)


def test_owner_that_came_back_and_is_in_no_list_keeps_its_unnamed_ledger() -> None:
    """The list is enough to count, and not to delete."""

    async def test(world: World) -> None:
        client = await world.client()
        await new_stream(client)
        lost = await task(world, 1)
        owner = (await client.ledger_metadata(lost[0].ledger_id)).owner
        clock = Clock()
        cared = await keeper(world, clock)
        assert await cared.elect()
        await passes(cared, clock, 50)
        whole = cared._store.children

        async def lagging(path: str) -> list[str]:
            return [each for each in await whole(path) if path != OWNERS_PATH or each != owner]

        cared._store.children = lagging  # type: ignore[method-assign]
        await client.store.create(f"{OWNERS_PATH}/{owner}", b"", ephemeral=True)
        await passes(cared, clock, 1000)
        assert len((await unsettled(world))[1]) == 1, "it lives"
        await client.store.delete(f"{OWNERS_PATH}/{owner}")
        await passes(cared, clock, 90)
        assert len((await unsettled(world))[1]) == 1, "its time began anew"
        await passes(cared, clock, 30)
        assert await unsettled(world) == ([], [])

    run(test)


def test_many_deletions_leave_streams_their_turn_and_go_on_in_the_next_pass() -> None:
    async def test(world: World) -> None:
        await new_stream(await world.client())
        for number in range(12):
            await task(world, number)
        clock = Clock()
        cared = await keeper(world, clock)
        assert await cared.elect()
        await passes(cared, clock, 90)
        sweeps = []
        care, change = cared._care_for_streams, cared._settler._change

        async def cares(*, is_sweep: bool) -> None:
            sweeps.append(clock.now)
            await care(is_sweep=is_sweep)

        async def changes(operations: Any) -> None:
            clock.now += PASS_PART_S / 4 + 0.1
            await change(operations)

        cared._care_for_streams = cares  # type: ignore[method-assign]
        cared._settler._change = changes  # type: ignore[method-assign]
        left = []
        for _ in range(5):
            await passes(cared, clock, 10)
            left.append(len((await unsettled(world))[1]))
        assert left == [12, 8, 4, 0, 0]
        assert max(b - a for a, b in itertools.pairwise(sweeps)) < PASS_PART_S + 20.0

    run(test)


def test_ledgers_that_cannot_be_recovered_keep_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        await new_stream(await world.client())
        for number in range(6):
            await task(world, number, closes=False)
        last = (await unsettled(world))[0][-1]
        clock = Clock()
        cared = await keeper(world, clock)
        assert await cared.elect()
        begin = cared._settler._begin_recovery

        async def slow(work: Any, ledger_id: Any) -> None:
            clock.now += PASS_PART_S / 2 + 0.1  # with pauses that end before the next pass
            if ledger_id == last:
                await begin(work, ledger_id)
            else:
                cared._settler._fail(ledger_id, "is not recovered", BookieUnavailableError("away"))

        cared._settler._begin_recovery = slow  # type: ignore[method-assign]
        monkeypatch.setattr("spark_ledger.keeper.settling.FAILED_AGAIN_S_MAX", 1.0)
        await passes(cared, clock, 80)
        assert last not in (await unsettled(world))[0]
        assert len((await unsettled(world))[0]) == 5

    run(test)


def test_time_of_owners_without_a_turn_is_kept_and_not_that_of_those_that_came_back() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await new_stream(client)
        lost = [await task(world, number) for number in range(4)]
        owners = [(await client.ledger_metadata(each[0].ledger_id)).owner for each in lost]
        clock = Clock()
        first = await keeper(world, clock, unnamed_grace_s=1000.0)
        assert await first.elect()
        await passes(first, clock, 100)
        await first._save()
        await first._election.resign()
        cared = await keeper(world, clock, unnamed_grace_s=1000.0)
        assert await cared.elect()
        slow = Slow(cared, clock, PASS_PART_S)  # a ledger a pass
        await client.store.create(f"{OWNERS_PATH}/{owners[3]}", b"", ephemeral=True)
        await passes(cared, clock, 10)
        await cared._save()
        saved = await read_state(client.store)
        assert saved is not None
        assert slow.reads[LEDGERS_PATH] == 1
        assert saved.value.gone_s.keys() == set(owners[:3])
        assert min(saved.value.gone_s.values()) >= 90.0

    run(test)
