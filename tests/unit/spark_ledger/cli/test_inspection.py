"""What is asked of the metadata and of bookies for one command, and what stands in no way of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from spark_ledger.cli.inspection import cluster_bookies
from spark_ledger.metadata.bookies import COOKIES_PATH, BookieRegistry
from spark_ledger.metadata.collection import CollectionNode, PassReport, collection_path
from spark_ledger.metadata.cookies import BookieCookie, encode_cookie
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
)
from tests.unit.spark_ledger.cli.conftest import Run

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)


def test_bookies_that_run_that_are_down_and_whose_note_is_damaged_are_listed(
    tree: MemoryTree,
) -> None:
    names = [BookieId(name) for name in ("a", "b", "c", "d")]
    report = PassReport(deleted=3)

    async def make() -> None:
        store = MemoryMetadataStore(tree)
        for name in names[:3]:
            cookie = BookieCookie("c", name, "j", ("l",), "i")
            await store.create(f"{COOKIES_PATH}/{name}", encode_cookie(cookie))
        for name in names[1:]:  # the last one has not written its cookie yet
            await BookieRegistry(store).register(BookieInfo(name, f"{name}:1"))
        note = encode_node(CollectionNode(mark="m", report=report))
        await store.create(collection_path(names[0]), note)
        await store.create(collection_path(names[2]), b"{")

    asyncio.run(make())
    rows = cluster_bookies("zk://x/y")
    assert [row.bookie_id for row in rows] == names
    assert [row.info and row.info.address for row in rows] == [None, "b:1", "c:1", "d:1"]
    assert [row.collected for row in rows[:2]] == [report, None] and rows[3].collected is None
    assert rows[2].collected is not None and "damaged" in rows[2].collected.aborted


def make_ledgers(tree: MemoryTree, *, damaged: int) -> None:
    """Ledgers 1, 2 and 3, of which one has a damaged node."""

    async def make() -> None:
        store = MemoryMetadataStore(tree)
        for number in (1, 2, 3):
            fragment = Fragment(EntryId(0), (BookieId("a"),))
            await LedgerStore(store).create(
                LedgerMetadata(LedgerId(number), Quorums(1, 1, 1), [fragment])
            )
        path = ledger_path(LedgerId(damaged))
        await store.put(path, b"{", (await store.get(path)).version)

    asyncio.run(make())


def test_list_of_ledgers_with_a_damaged_node_shows_the_others_and_exits_1(
    tree: MemoryTree, run: Run
) -> None:
    make_ledgers(tree, damaged=2)
    shown = run("ledgers", "list", "--metadata", "zk://x/y")
    assert shown.status == 1 and len(shown.out.splitlines()) == 3
    assert "unknown: ledger 2 is not in this list" in shown.err and "damaged" in shown.err
    listed = run("ledgers", "list", "--json", "--metadata", "zk://x/y")
    assert listed.status == 1 and [each["ledger_id"] for each in json.loads(listed.out)] == [1, 3]


def test_list_of_ledgers_without_a_damaged_node_exits_0(tree: MemoryTree, run: Run) -> None:
    outcome = run("ledgers", "list", "--json", "--metadata", "zk://x/y")
    assert (outcome.status, json.loads(outcome.out), outcome.err) == (0, [], "")
