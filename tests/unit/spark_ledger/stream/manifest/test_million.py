"""A million commits, whose pages are made as they are read: a look-up takes two of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format import codec
from spark_ledger.stream.manifest.format import encode_index, encode_leaf, encode_root
from spark_ledger.stream.manifest.tree import (
    COMMITS_PER_LEAF,
    FAN_OUT,
    PagePointer,
    empty_root,
    leaf_pointer,
)
from spark_ledger.stream.model import Commit, Head, SinkRecord
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Entry, EntryId, LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run

SPANS = [COMMITS_PER_LEAF * FAN_OUT**level for level in range(3)]


def commit(number: int) -> Commit:
    segment = loose(2).placed(number)
    return Commit(number, 1000 * number, number, (segment,), "q", number, "", 2 * number, number)


def pointer(level: int, first: int) -> PagePointer:
    """The ledger's id says which page it is."""
    ends = [commit(first), commit(first + SPANS[level] - 1)]
    return leaf_pointer(level * 10**9 + first, 0, ends)


class Page:
    """A ledger with one page."""

    is_closed = True

    def __init__(self, stream_id: str, ledger_id: int, reads: list[int]) -> None:
        self.stream_id = stream_id
        self.ledger_id = ledger_id
        self.reads = reads

    async def read_batches(
        self, first: int, last: int, *, unconfirmed: bool = False, replica_hint: int = 0
    ) -> AsyncGenerator[list[Entry], None]:
        level, begin = divmod(self.ledger_id, 10**9)
        if level:
            step = SPANS[level - 1]
            below = [pointer(level - 1, begin + n * step) for n in range(FAN_OUT)]
            data = encode_index(self.stream_id, level, begin, below)
        else:
            numbers = range(begin, begin + COMMITS_PER_LEAF)
            data = encode_leaf(
                self.stream_id, begin, [codec.encode_commit(commit(n)) for n in numbers]
            )
        self.reads.append(len(data))
        yield [Entry(LedgerId(self.ledger_id), EntryId(0), data, EntryId(-1), 0)]


async def grown(ledgers: FakeLedgers, commits: int) -> None:
    """A stream ``s`` with so many commits, all but the newest few of them sealed."""
    stream = await StreamCatalog(ledgers).create("s", SCHEMA)
    nodes, stream_id = stream._nodes, stream.config.stream_id
    sealed = (commits - 50) // COMMITS_PER_LEAF * COMMITS_PER_LEAF
    levels: list[tuple[PagePointer, ...]] = []
    first = 0
    for level in (2, 1, 0):
        end = sealed // SPANS[level] * SPANS[level]
        levels.insert(0, tuple(pointer(level, n) for n in range(first, end, SPANS[level])))
        first = end
    root = empty_root(stream_id)._replace(levels=tuple(levels))
    await ledgers.store.put(nodes.manifests_path, encode_root(root), 0)
    head = Head(stream_id, commits, commits, 2 * commits, commits, 1000 * (commits - 1))
    await ledgers.store.put(nodes.head_path, codec.encode_head(head), 0)
    last = SinkRecord("q", commits - 1, commits - 1, "")
    await ledgers.store.create(nodes.sink_path("q"), codec.encode_sink(last))
    for number in range(sealed, commits):
        await ledgers.store.create(nodes.commit_path(number), codec.encode_commit(commit(number)))


async def fresh(ledgers: FakeLedgers, gets: Faults | None = None) -> tuple[Stream, list[int]]:
    """A new process, and the sizes of the pages that it reads."""
    other, reads = another(ledgers, gets)[0], list[int]()
    stream = await StreamCatalog(other).open("s")

    async def opened(ledger_id: int) -> Page:
        return Page(stream.config.stream_id, ledger_id, reads)

    other.open_unconfirmed = opened  # type: ignore[assignment, method-assign]
    return stream, reads


@pytest.mark.parametrize("commits", [1_000, 100_000, 1_009_999])
def test_any_commit_of_a_long_stream_is_found_in_few_small_reads(commits: int) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await grown(ledgers, commits)
        tree = ledgers.store.tree
        stored = sum(len(path) + len(node.data) for path, node in tree._nodes.items())
        assert stored < 100_000, "in the metadata"
        for number in (0, commits // 3, commits - 200):
            stream, reads = await fresh(ledgers)
            assert await stream.commit(number) == commit(number)
            assert await stream.commit_at(number) == commit(number)
            assert await stream.first_commit_since(1000 * number - 5) == commit(number)
            assert await stream.position_of("q", number) == (number, 0, 0)
            assert len(reads) <= 4, "two pages, and those before a border"
            assert max(reads) < 16_000
        for number in (0, commits // 3, commits - 200, commits - 1):
            for looked_up in ("transaction", "time", "segment"):
                gets = Faults([])
                stream, reads = await fresh(ledgers, gets)
                gets.calls.clear()
                if looked_up == "transaction":
                    await stream.position_of("q", number)
                elif looked_up == "time":
                    await stream.position_at_timestamp(1000 * number - 5)
                else:
                    await stream.commit_at(number)
                assert len(gets.calls) <= 12 and len(reads) <= 4, "whatever the length"
        stream, reads = await fresh(ledgers)
        marks = await stream.marks(0, commits)
        assert [mark.number for mark in marks] == list(range(100, commits, 100))
        assert len(reads) <= commits // SPANS[1] + 1, "no leaf"

    run(scenario())
