"""A keeper that stops, or is elected no more, lets go of what it has begun."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from spark_ledger.errors import NotFoundError
from spark_ledger.keeper.nodes import (
    AUDIT_PATH,
    CLOCK_PATH,
    ELECTED_PATH,
    STATE_PATH,
    SWEPT_PATH,
    SweptNode,
    read_state,
    read_swept,
)
from spark_ledger.metadata.base import MetadataStore
from tests.unit.spark_ledger.client.world import World, run, run_virtually
from tests.unit.spark_ledger.keeper.world import Clock, keeper, passes


async def elected(store: MetadataStore) -> bool:
    try:
        await store.get(ELECTED_PATH)
    except NotFoundError:
        return False
    return True


def test_keeper_that_stops_is_followed_by_another_at_once() -> None:
    async def test(world: World) -> None:
        client, stop = await world.client(), asyncio.Event()
        running = asyncio.ensure_future((await keeper(world, Clock(), pass_s=0.5)).run(stop))
        await asyncio.sleep(2)
        assert await elected(client.store)
        stop.set()
        await running
        assert not await elected(client.store), "nobody waits for its session to end"

    run_virtually(test)


def test_keeper_that_is_elected_no_more_packs_no_more() -> None:
    async def test(world: World) -> None:
        client, stop, stopped = await world.client(), asyncio.Event(), list[str]()
        first = await keeper(world, Clock(), pass_s=0.5)
        end = first._optimizer.stop

        async def noted() -> None:
            stopped.append("stopped")
            await end()

        first._optimizer.stop = noted  # type: ignore[method-assign]
        running = asyncio.ensure_future(first.run(stop))
        await asyncio.sleep(2)
        assert first.is_elected and stopped == []
        await client.store.delete(ELECTED_PATH)
        await client.store.create(ELECTED_PATH, b"{}", ephemeral=True)  # another one is
        await asyncio.sleep(2)
        assert not first.is_elected and stopped == ["stopped"]
        await client.store.delete(ELECTED_PATH)
        await asyncio.sleep(2)
        assert first.is_elected
        stop.set()
        await running
        assert len(stopped) > 1 and not await elected(client.store)

    run_virtually(test)


@pytest.mark.parametrize("seed", range(5))
def test_keepers_that_take_turns_count_each_second_of_work_once(seed: int) -> None:
    """One that is elected again began anew: the grace of dropped rows is counted so (rule K8)."""

    async def test(world: World) -> None:
        draw, clock, worked_s = random.Random(seed), Clock(), 0.0
        candidates = [await keeper(world, clock) for _ in range(2)]
        for _ in range(8):
            cared = draw.choice(candidates)
            clock.now += draw.choice([0.0, 1000.0])
            assert await cared.elect()
            began = clock.now
            await passes(cared, clock, 10 * draw.randint(1, 5))
            await cared._save()
            worked_s += clock.now - began
            assert cared._worked_s() == pytest.approx(worked_s), f"seed {seed}"
            await cared._election.resign()

    run(test)


def test_error_of_a_pass_is_told_until_the_next_pass_goes_well() -> None:
    async def test(world: World) -> None:
        clock = Clock()
        cared = await keeper(world, clock)
        assert await cared.elect()
        for error in ("the store is away", "", "a ledger cannot be recovered", "", ""):
            cared._last_error = error or cared._last_error
            await passes(cared, clock, 10)
            await cared._save()
            state = await read_state(cared._store)
            assert state is not None and state.value.last_error == error

    run(test)


def test_keeper_whose_state_somebody_else_has_written_goes_on_and_ends_at_once_when_told() -> None:
    async def test(world: World) -> None:
        store, stop = (await world.client()).store, asyncio.Event()
        cared = await keeper(world, Clock())
        cared._clock, cared._config = loop_time(), replace(cared._config, pass_s=1.0)
        running = asyncio.ensure_future(cared.run(stop))
        for passed in (2, 4, 6):
            await asyncio.sleep(3.5)
            state = await read_state(store)
            assert state is not None and state.value.passes >= passed
            assert cared.is_elected
            node = await store.get(STATE_PATH)
            await store.put(STATE_PATH, node.value, node.version)
        cared._config = replace(cared._config, pass_s=1000.0)
        await asyncio.sleep(2.5)
        stop.set()
        async with asyncio.timeout(1.0):
            await running

    run_virtually(test)


@pytest.mark.parametrize("node", [CLOCK_PATH, AUDIT_PATH])
def test_keeper_whose_passes_all_fail_says_why_and_what_it_knows(node: str) -> None:
    """What is known of dead writers goes on to the next keeper, and people see why."""

    async def test(world: World) -> None:
        client = await world.client()
        dead = await world.client()
        await dead.create_ledger(until_named=True)
        await dead.close()
        await (await keeper(world, Clock())).elect()  # makes the nodes above
        await client.store.delete(ELECTED_PATH)
        await client.store.create(node, b'{"format_version":99}')
        for _ in range(3):
            cared = await keeper(world, Clock())
            cared._clock, cared._config = loop_time(), replace(cared._config, pass_s=1.0)
            cared._settler._clock = cared._clock
            stop = asyncio.Event()
            running = asyncio.ensure_future(cared.run(stop))
            await asyncio.sleep(5.0)
            stop.set()
            await running
            await cared._client.close()
        state = await read_state(client.store)
        assert state is not None and node in state.value.last_error
        assert state.value.worked_s > 10.0
        assert max(state.value.gone_s.values()) > 10.0

    run_virtually(test)


@pytest.mark.parametrize("node", [STATE_PATH, SWEPT_PATH])
def test_damaged_node_of_what_keepers_have_done_is_written_anew(node: str) -> None:
    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        await client.store.create("keeper", b"")
        await client.store.create(node, b"{")
        cared = await keeper(world, clock)
        assert await cared.elect()
        await passes(cared, clock, 70)
        await cared._save()
        state, swept = await read_state(client.store), await read_swept(client.store)
        assert state is not None and (state.value.worked_s, state.value.passes) == (70.0, 1)
        assert swept is not None and swept.value == SweptNode()

    run(test)


def loop_time() -> Callable[[], float]:
    return asyncio.get_running_loop().time
