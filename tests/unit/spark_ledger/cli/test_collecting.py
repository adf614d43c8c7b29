"""``ledger bookies collect``: each bookie is asked, and its answer is that to this order."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.cli import collecting
from spark_ledger.cli.collecting import Wanted, order
from spark_ledger.errors import ConflictError
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.collection import (
    CollectionNode,
    PassReport,
    collection_path,
    read_order,
)
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.types import BookieId, BookieInfo
from tests.unit.virtual_time import run_in_virtual_time

A, B = BookieId("a"), BookieId("b")

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)


async def report(store: MemoryMetadataStore, bookie_id: BookieId, told: PassReport) -> None:
    """What a bookie says of its last pass."""
    path, data = collection_path(bookie_id), encode_node(CollectionNode(mark="m", report=told))
    try:
        await store.create(path, data)
    except ConflictError:
        await store.put(path, data, (await store.get(path)).version)


@pytest.mark.parametrize("earlier", ["", "another order"])
def test_report_of_an_earlier_pass_is_no_answer(earlier: str) -> None:
    """An operator would take its numbers for what the order, or a dry run, has found."""

    async def test() -> None:
        store = MemoryMetadataStore(MemoryTree())
        for name in (A, B):
            await BookieRegistry(store).register(BookieInfo(name, f"{name}:1"))
            await report(store, name, PassReport(order=earlier, deleted=7))
        wanted = Wanted([], timeout_s=30.0, dry_run=True, share_max=0.5, give_back=True)
        asked = asyncio.create_task(order(store, wanted))
        await asyncio.sleep(5.0)
        assert not asked.done()
        given = await read_order(store, A)
        assert given is not None and given.value.dry_run
        assert (given.value.share_max, given.value.give_back) == (0.5, True)
        await report(store, A, PassReport(order=given.value.token, deleted=1))
        found = dict(await asked)
        assert found[B] is None, "it has not answered in time"
        of_a = found[A]
        assert of_a is not None and of_a.deleted == 1

    assert collecting._LOOK_S < 5.0
    run_in_virtual_time(test())
