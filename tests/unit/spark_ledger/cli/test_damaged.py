"""``ledger ledgers delete --damaged``: a ledger of which nobody can tell what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from spark_ledger.cli import damaged
from spark_ledger.errors import CorruptionError, MetadataRestoredError
from spark_ledger.metadata.base import MetadataStore, Put
from spark_ledger.metadata.codec import decode_ledger, encode_ledger
from spark_ledger.metadata.deletions import read_sign
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Quorums
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.fakes import FakeClient

COMMAND = ("ledgers", "delete", "--damaged", "--yes")
LEDGER = LedgerMetadata(
    LedgerId(7), Quorums(1, 1, 1), (Fragment(EntryId(0), (BookieId("a"),)),), creation_token="t"
)
WHOLE = encode_ledger(LEDGER)


@pytest.fixture
def nodes(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> MemoryTree:
    """Of ledger 7, which is whole, and 8, which is damaged."""
    tree = MemoryTree()

    @asynccontextmanager
    async def store(_uri: str) -> AsyncIterator[MetadataStore]:
        yield MemoryMetadataStore(tree)

    monkeypatch.setattr(damaged, "connected_store", store)
    put(tree, 7, WHOLE)
    put(tree, 8, b"{")
    return tree


def put(tree: MemoryTree, ledger_id: int, data: bytes) -> None:
    async def run() -> None:
        path = ledger_path(LedgerId(ledger_id))
        tree.make_parents(path)
        await MemoryMetadataStore(tree).create(path, data)

    asyncio.run(run())


def there(tree: MemoryTree) -> list[str]:
    return sorted(tree.children("ledgers/00/0000"))


def test_ledger_that_cannot_be_read_is_deleted(nodes: MemoryTree, run: Run) -> None:
    assert run(*COMMAND, "8", "--json") == (0, '{"deleted":[8]}\n', "")
    assert there(nodes) == ["L0007"]
    outcome = run(*COMMAND, "8")
    assert (outcome.status, "ledger 8 does not exist" in outcome.err) == (1, True)


@pytest.mark.parametrize(("ledgers", "signs"), [("8", 1), ("8 7", 1), ("8 9", 1), ("7 8", 0)])
def test_bookies_get_a_sign_of_what_was_deleted(
    ledgers: str, signs: int, nodes: MemoryTree, run: Run
) -> None:
    """Else they give its space back at their next pass only (rule G10)."""
    put(nodes, 9, b"{")
    run(*COMMAND, *ledgers.split())
    assert asyncio.run(read_sign(MemoryMetadataStore(nodes))) == signs - 1


def test_ledger_that_can_be_read_is_refused_and_stays(nodes: MemoryTree, run: Run) -> None:
    outcome = run(*COMMAND, "7", "8")
    assert outcome.status == 1 and "ledger 7 can be read: nothing was deleted" in outcome.err
    assert there(nodes) == ["L0007", "L0008"]


def test_ledger_of_a_later_format_is_not_damaged(nodes: MemoryTree, run: Run) -> None:
    later = WHOLE.replace(b'"format_version":', b'"format_version":9')
    assert later != WHOLE
    put(nodes, 9, later)
    outcome = run(*COMMAND, "9")
    assert outcome.status == 2 and "has format version 91, this program knows" in outcome.err
    assert "L0009" in there(nodes)


def test_ledger_that_somebody_mends_meanwhile_stays(
    nodes: MemoryTree, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = damaged._check_damaged

    def late(path: str, ledger_id: LedgerId, data: bytes) -> None:
        look(path, ledger_id, data)
        nodes.apply([Put(path, WHOLE, 0)])

    monkeypatch.setattr(damaged, "_check_damaged", late)
    assert run(*COMMAND, "8").status == 1
    assert there(nodes) == ["L0007", "L0008"]
    found = nodes.get(ledger_path(LedgerId(8)))
    assert decode_ledger("p", LedgerId(7), found.value) == LEDGER


def test_it_asks_and_says_what_may_be_lost(nodes: MemoryTree, run: Run) -> None:
    outcome = run("ledgers", "delete", "--damaged", "8")
    assert outcome.status == 2 and "no terminal to ask at" in outcome.err
    assert "L0008" in there(nodes)


def test_deletion_without_the_flag_names_it_only_where_it_would_help(
    client: FakeClient, run: Run
) -> None:
    for _ in range(2):
        run("ledgers", "append", "x")
    client.unreadable = {1: CorruptionError("its node is damaged"), 2: MetadataRestoredError("old")}
    said = run("ledgers", "delete", "--yes", "1")
    assert said.status == 1 and "its node is damaged" in said.err
    assert "if it is to go all the same: ledger ledgers delete --damaged 1" in said.err
    said = run("ledgers", "delete", "--yes", "2")
    assert said.status == 1 and "--damaged" not in said.err
    assert sorted(client.ledgers) == [1, 2]
