"""A keeper that is cut off at any of its waits ends, and leaves nothing running."""

from __future__ import annotations

import asyncio

from spark_ledger.keeper.keeper import Keeper
from tests.unit.cut_off import cut_off, cut_off_at_each_wait
from tests.unit.spark_ledger.client.world import world as new_world
from tests.unit.spark_ledger.keeper.test_ends import elected
from tests.unit.spark_ledger.keeper.world import Clock, keeper
from tests.unit.virtual_time import run_in_virtual_time


async def pack() -> None:
    """A pack that takes long, and closes its stream at its end."""
    try:
        await asyncio.sleep(3600.0)
    finally:
        await asyncio.sleep(0.01)


def lose_once(cared: Keeper, after_s: float) -> None:
    """The keeper loses its election, and wins it again."""
    is_won, lost = cared._election.is_won, asyncio.Event()
    asyncio.get_running_loop().call_later(after_s, lost.set)

    async def is_still_won() -> bool:
        was_lost = lost.is_set()
        lost.clear()
        return not was_lost and await is_won()

    cared._election.is_won = is_still_won  # type: ignore[method-assign]


def test_keeper_that_is_cut_off_at_any_wait_ends_and_leaves_nothing_running() -> None:
    async def one(wait: int) -> bool:
        async with new_world() as world:
            client, observer = await world.client(), await world.client()
            writer = await client.create_ledger()
            await writer.append(b"x")
            await client.close()
            cared = await keeper(world, Clock(), pass_s=0.2, owner_grace_s=0.0, optimize_s=1.0)
            cared._optimizer._look_at_all = pack  # type: ignore[method-assign]
            lose_once(cared, 0.3)
            before, stop = asyncio.all_tasks(), asyncio.Event()
            asyncio.get_running_loop().call_later(0.7, stop.set)
            was_cut = await cut_off(cared.run(stop), wait)
            assert asyncio.all_tasks() == before, f"cut off at wait {wait}"
            assert was_cut or not await elected(observer.store), "its place is another's at once"
            return was_cut

    assert run_in_virtual_time(cut_off_at_each_wait(one)) > 20
