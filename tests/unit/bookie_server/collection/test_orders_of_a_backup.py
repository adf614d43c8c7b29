"""Orders to accept restored metadata stay in ZooKeeper and come back with its backups (rule G4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy
from typing import Literal

import pytest

from bookie_server.collection.collector import LedgerCollector
from bookie_server.core.collection import Cause
from spark_ledger.errors import MetadataUnavailableError
from spark_ledger.metadata.collection import CollectionOrder, write_order
from spark_ledger.metadata.ledger_ids import raise_counter
from spark_ledger.metadata.memory import MemoryTree
from tests.unit.bookie_server.collection.cluster import BOOKIE, World
from tests.unit.virtual_time import run_in_virtual_time


def backup_of(tree: MemoryTree) -> Callable[[], None]:
    """Keeps all nodes as they are now; what it returns puts them back."""
    nodes, children = deepcopy(tree._nodes), deepcopy(tree._children)

    def restore() -> None:
        tree._nodes, tree._children = deepcopy(nodes), deepcopy(children)

    return restore


async def start(world: World) -> LedgerCollector:
    """Start the bookie's collector; a second one is another start of its process."""
    collector = world.collector()
    collector.start()
    await asyncio.sleep(12)
    return collector


@pytest.mark.parametrize("taken", ["before it is followed", "once it was followed"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("orders", [1, 2])
def test_order_that_comes_back_with_a_backup_accepts_it_not(
    orders: int, *, restarted: bool, taken: Literal["before it is followed", "once it was followed"]
) -> None:
    """An operator said once that the metadata of then were right, and not those of another day."""

    async def main() -> None:
        world = World()
        world.interval_s = 1e6
        await world.make(*range(1, 10))
        collector = await start(world)
        await write_order(world.operator, BOOKIE, CollectionOrder(token="a", accept_restored=True))
        restore = backup_of(world.tree)
        await asyncio.sleep(12)
        assert (collector.report.order, collector._cause) == ("a", None)
        if taken == "once it was followed":
            restore = backup_of(world.tree)
        await world.make(20, 21, 22)
        if orders == 2:
            await write_order(world.operator, BOOKIE, CollectionOrder(token="b"))
        await asyncio.sleep(20)
        if restarted:
            await collector.stop()
        restore()
        world.store.expire()
        await raise_counter(world.operator, 1_000_000)  # as clients do once they are connected
        if restarted:
            collector = await start(world)
        await asyncio.sleep(60)
        await write_order(world.operator, BOOKIE, CollectionOrder(token="c"))
        await asyncio.sleep(20)
        assert (collector._cause, world.shelf.deleted) == (Cause.RESTORED, [])
        # And one that is given now is followed.
        await write_order(world.operator, BOOKIE, CollectionOrder(token="d", accept_restored=True))
        await asyncio.sleep(20)
        assert (collector._cause, world.shelf.deleted) == (None, [20, 21, 22])
        await collector.stop()

    run_in_virtual_time(main())


def test_order_whose_pass_was_cut_off_once_it_was_noted_is_followed_by_the_next_process() -> None:
    async def main() -> None:
        world = World()
        world.interval_s = 1e6
        await world.make(*range(1, 10))
        collector = await start(world)
        await collector.stop()
        await world.delete(4)
        collector = world.collector()

        async def fail(*_: object) -> None:
            raise MetadataUnavailableError("the bookie is killed now")

        order = CollectionOrder(token="a", accept_restored=True)
        collector._mark._put = fail  # type: ignore[method-assign, assignment]
        await collector.run_pass(order)
        await write_order(world.operator, BOOKIE, order)
        collector = await start(world)
        assert (collector.report.order, collector.report.aborted) == ("a", "")
        assert world.shelf.deleted == [4]
        await collector.stop()

    run_in_virtual_time(main())


def test_bookie_remembers_the_last_hundred_orders_that_it_accepted_by() -> None:
    async def main() -> None:
        mark = World().collector()._mark
        for number in range(103):
            assert await mark.may_accept(f"{number}")
            await mark.renew(accept=f"{number}")
        await mark.renew()
        mark._noted = None  # the disk says it
        for number in range(3, 103):
            assert not await mark.may_accept(f"{number}")
        assert await mark.may_accept("0")

    run_in_virtual_time(main())
