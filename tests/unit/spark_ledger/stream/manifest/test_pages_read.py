"""Pages of manifests as they are read: which together, which are kept, and which may be gone."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.errors import CorruptionError, DataLossError, NoSuchStreamError
from spark_ledger.limits import KIB
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.manifest import store, tree
from spark_ledger.stream.manifest.format import encode_index, encode_leaf
from spark_ledger.stream.manifest.store import ManifestStore
from spark_ledger.stream.manifest.tree import ManifestRoot, Page, PagePointer
from spark_ledger.types import Dlsn, EntryId, LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    another,
    loose,
    root_of,
    run,
    small_manifests,
)


class Pages:
    """Ledgers of pages of a kilobyte, or of the size that is said for an entry."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.reads: list[tuple[int, int, int]] = []

    async def open_unconfirmed(self, ledger_id: int) -> Any:
        async def read_batches(first: int, last: int, **_options: Any) -> Any:
            self.reads.append((ledger_id, first, last))
            for n in range(first, last + 1):
                size = self.sizes.get(f"_{ledger_id}_{n}", KIB)
                yield [SimpleNamespace(payload=bytes([n]) * size, entry_id=EntryId(n))]

        return SimpleNamespace(read_batches=read_batches)


def manifests(pages: Pages) -> ManifestStore:
    ledgers: Any = pages
    nodes: Any = SimpleNamespace(name="s", store=MemoryMetadataStore())
    return ManifestStore(ledgers, nodes, "id")


def pointer(ledger_id: int, entry_id: int) -> PagePointer:
    return PagePointer(ledger_id, entry_id, 0, 0, 0, 0, ())


def root(*places: tuple[int, int]) -> ManifestRoot:
    """A root that names leaves of ten commits."""
    return ManifestRoot("id", (tuple(pointer(*each) for each in places),), 10, 100)


@pytest.mark.parametrize(
    ("places", "reads"),
    [
        ([(1, 0), (1, 1), (1, 2)], [(1, 0, 2)]),
        ([(1, 0), (1, 2), (1, 3)], [(1, 0, 0), (1, 2, 3)]),
        ([(1, 0), (2, 1), (2, 2)], [(1, 0, 0), (2, 1, 2)]),
        ([(1, 0), (2, 0), (1, 1)], [(1, 0, 0), (2, 0, 0), (1, 1, 1)]),
        ([(1, 4), (2, 0), (3, 1), (3, 2), (2, 3)], [(1, 4, 4), (2, 0, 0), (3, 1, 2), (2, 3, 3)]),
        ([(1, 3), (1, 2), (1, 1)], [(1, 3, 3), (1, 2, 2), (1, 1, 1)]),
    ],
)
def test_pages_that_follow_one_another_in_a_ledger_are_read_together(
    places: list[tuple[int, int]], reads: list[tuple[int, int, int]]
) -> None:
    async def scenario() -> None:
        pages = Pages()
        made = manifests(pages)
        await made.load(root(*places), 0, 10 * len(places))
        assert pages.reads == reads
        for place in places:
            where, data = await made._read(pointer(*place))
            assert data == bytes([place[1]]) * KIB and f"entry {place[1]} of ledger" in where
        await made.load(root(*places), 0, 10 * len(places))
        assert pages.reads == reads, "they are kept"

    run(scenario())


@pytest.mark.parametrize(
    ("first", "end", "entries"),
    [
        (0, 40, [0, 1, 2, 3]),
        (0, 10, [0]),
        (9, 11, [0, 1]),
        (10, 20, [1]),
        (39, 40, [3]),
    ],
)
def test_pages_that_are_read_are_those_with_a_commit_that_is_asked_for(
    first: int, end: int, entries: list[int]
) -> None:
    async def scenario() -> None:
        pages = Pages()
        await manifests(pages).load(root((1, 0), (2, 1), (3, 2), (4, 3)), first, end)
        assert [read[1] for read in pages.reads] == entries

    run(scenario())


def test_page_as_large_as_many_takes_the_place_of_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "PAGES_KEPT_BYTES_MAX", 8 * KIB)

    async def scenario() -> None:
        pages = Pages(_2_0=7 * KIB, _3_0=9 * KIB)
        made = manifests(pages)
        for n in range(8):
            await made._read(pointer(1, n))
        assert made.memory_bytes == 8 * KIB
        await made._read(pointer(2, 0))
        assert made.memory_bytes == 8 * KIB and set(made._pages) == {(1, 7), (2, 0)}
        await made._read(pointer(3, 0))
        assert made.memory_bytes == 0, "larger than all that may be kept"

    run(scenario())


def test_pages_of_deleted_ledgers_are_kept_no_longer() -> None:
    async def scenario() -> None:
        pages = Pages()
        made = manifests(pages)
        for ledger_id, entry in ((1, 0), (2, 1), (1, 2), (0, 1)):
            await made._read(pointer(ledger_id, entry))
        made.keep(LedgerId(5), [b"x" * KIB, b"y" * (2 * KIB)])
        assert made.memory_bytes == 7 * KIB
        made.forget({LedgerId(1), LedgerId(7)})
        assert set(made._pages) == {(2, 1), (0, 1), (5, 0), (5, 1)}
        assert made.memory_bytes == 5 * KIB
        made.forget({LedgerId(5)})
        assert made.memory_bytes == 2 * KIB

    run(scenario())


@pytest.mark.parametrize("earliest", [1, 2, 5, 7, 9])
@pytest.mark.parametrize("sinks_named", [0, 4])
def test_look_ups_of_live_commits_need_no_page_of_dropped_ones(
    earliest: int, sinks_named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper was killed between the deletion of such pages and the root that says so."""
    small_manifests(monkeypatch, leaf=2, fan_out=100)
    monkeypatch.setattr(tree, "SINKS_PER_POINTER_MAX", sinks_named)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for n in range(11):
            stream._committer.clock_ms = partial(int, 1000 * n)
            await stream.commit_segments([loose()], sink_id="q", transaction_id=3 * n)
            await stream._committer.sealer.close()
        await stream.retention.truncate((earliest,))
        for page in root_of(ledgers).pages():
            if page.first + 2 <= earliest:
                await ledgers.store.delete(ledger_path(LedgerId(page.pointer.ledger_id)))
        for number in range(earliest, 11):
            fresh = [await another(ledgers)[1].open("s") for _ in range(4)]
            assert (await fresh[0].commit_at(number)).number == number
            found = await fresh[1].first_commit_since(1000 * number)
            assert found is not None and found.number == number
            assert await fresh[2].position_of("q", 3 * number - 1) == Dlsn(number)
            commits = await fresh[3].commits(number, 11)
            assert [each.number for each in commits] == list(range(number, 11))
        if earliest > 1:
            with pytest.raises(DataLossError):
                await (await another(ledgers)[1].open("s")).commit(0)

    run(scenario())


@pytest.mark.parametrize("count", [1, 9, 11])
def test_page_of_another_number_of_commits_or_pages_is_damage(count: int) -> None:
    """Arithmetic says where a commit is: one page too few, and another commit were found."""

    async def scenario() -> None:
        leaf = encode_leaf("id", 0, [b"{}"] * count)
        index = encode_index("id", 1, 0, [pointer(5, n) for n in range(count)])
        made = manifests(Pages())
        made.keep(LedgerId(1), [leaf, index])
        whole = root((1, 0))._replace(fan_out=10)
        page = Page(0, 0, pointer(1, 0))
        with pytest.raises(CorruptionError, match=f"ledger 1: {count} commits, not 10"):
            await made.nodes_of(whole, page)
        with pytest.raises(CorruptionError, match=f"ledger 1: {count} commits, not 10"):
            await made.leaf_bytes(whole, page)
        with pytest.raises(CorruptionError, match=f"ledger 1: {count} pages, not 10"):
            await made.children(whole, Page(0, 1, pointer(1, 1)))

    run(scenario())


@pytest.mark.parametrize("is_deleted", [False, True])
def test_pages_that_are_gone_are_lost_unless_the_stream_is_being_deleted(
    is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        catalog = StreamCatalog(ledgers)
        stream = await catalog.create("s", SCHEMA)
        for _ in range(5):
            await stream.commit_segments([loose()])
        await stream._committer.sealer.seal(5)
        reader = await another(ledgers)[1].open("s")
        if is_deleted:
            await catalog._mark_deleted(stream._nodes)
        for ledger_id in root_of(ledgers).ledgers():
            await ledgers.store.delete(ledger_path(ledger_id))
        with pytest.raises(NoSuchStreamError if is_deleted else DataLossError):
            await reader.commit(0)

    run(scenario())
