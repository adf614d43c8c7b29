"""A keeper that stops, or is elected no more, lets go of what it has begun."""

from __future__ import annotations

import asyncio

from spark_ledger.errors import NotFoundError
from spark_ledger.keeper.nodes import ELECTED_PATH
from spark_ledger.metadata.base import MetadataStore
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.keeper.world import Clock, keeper


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
