"""A damaged node of a bookie's garbage collection: it stops that, until an operator has looked."""

from __future__ import annotations

import pytest

from bookie_server.collection.collector import LedgerCollector
from spark_ledger.cli.collecting import Wanted, order
from spark_ledger.errors import CorruptionError
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.collection import CollectionOrder, collection_path, order_path
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.types import BookieInfo
from tests.unit.bookie_server.collection.cluster import BOOKIE, World
from tests.unit.bookie_server.collection.test_collector import run
from tests.unit.virtual_time import run_in_virtual_time


def test_mark_that_is_damaged_in_the_metadata_is_written_anew_once_they_are_accepted() -> None:
    """Not before: it is by the mark that a bookie knows metadata that were restored."""

    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4)
        await world.collector().run_pass()
        await world.delete(1)
        before = await world.operator.get(collection_path(BOOKIE))
        await world.operator.put(collection_path(BOOKIE), b"{", before.version)
        for _start in range(2):
            collector = world.collector()
            report = await collector.run_pass()
            assert not world.shelf.deleted
            assert "is damaged" in report.aborted and "--accept-restored" in report.aborted
        wanted = CollectionOrder(token="a", accept_restored=True)
        await world.operator.create(order_path(BOOKIE), encode_node(wanted))
        assert await collector._order() == wanted, "a bookie that was started anew follows it"
        report = await collector.run_pass(wanted)
        assert (report.aborted, world.shelf.deleted) == ("", [1])
        await world.delete(2)
        assert (await world.collector().run_pass()).aborted == ""
        assert world.shelf.deleted == [1, 2]

    run_in_virtual_time(main())


@pytest.mark.leaves_open("BookieRegistry._keep", reason="the bookie goes on running")
def test_operator_is_told_of_a_damaged_mark_and_accepts_it_with_one_command() -> None:
    async def act(world: World, _collector: LedgerCollector) -> None:
        await BookieRegistry(world.operator).register(BookieInfo(BOOKIE, "h:1"))
        await order(world.operator, Wanted([BOOKIE], 20.0, dry_run=True))
        before = await world.operator.get(collection_path(BOOKIE))
        await world.operator.put(collection_path(BOOKIE), b"{", before.version)
        with pytest.raises(CorruptionError, match="--accept-restored writes it anew"):
            await order(world.operator, Wanted([BOOKIE], 20.0))
        assert not world.shelf.deleted
        accepted = Wanted([BOOKIE], 20.0, accept_restored=True)
        ((_, report),) = await order(world.operator, accepted)
        assert report is not None and (report.aborted, report.deleted) == ("", 1)

    run(act)
