"""Pages of what is held: in order, bounded, and without a gap between two."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from bookie_server.storage.index.base import BlockLocation, IndexRow
from bookie_server.storage.ledgers.listing import ascending, page_of, stored_ranges
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId


def run(*ids: int) -> EntryRun:
    return EntryRun(LedgerId(1), EntryId(ids[0]), ids, [1] * len(ids), b"x" * len(ids))


@given(
    held=st.lists(st.sets(st.integers(0, 40), min_size=1, max_size=9), max_size=6),
    limit=st.integers(1, 5),
)
def test_pages_together_are_what_runs_hold(held: list[set[int]], limit: int) -> None:
    runs = [run(*sorted(each)) for each in held]
    listed: list[int] = []
    first: EntryId | None = EntryId(0)
    while first is not None:
        ranges, following = page_of(ascending(runs), first, limit)
        assert len(ranges) <= limit
        listed += [e for low, high in ranges for e in range(low, high + 1)]
        assert following is None or following > first
        first = following
    assert listed == sorted(set().union(*held))


def test_run_is_looked_into_when_it_is_its_turn() -> None:
    class Untouched(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("nobody asked for it")

    far = EntryRun(LedgerId(1), EntryId(1000), Untouched([1000, 1002]), [1, 1], b"xx")
    assert page_of(ascending([far, run(0, 2, 4, 6)]), EntryId(0), 2) == ([(0, 0), (2, 2)], 4)


def test_page_ends_where_rows_are_not_known_any_more() -> None:
    ranges = [(EntryId(0), EntryId(9)), (EntryId(8), EntryId(30)), (EntryId(40), EntryId(50))]
    assert page_of(ranges, EntryId(3), 9, EntryId(20)) == ([(3, 19)], 20)
    assert page_of(ranges, EntryId(35), 9, EntryId(40)) == ([], 40)


def test_blocks_behind_a_page_are_not_read() -> None:
    """A striped ledger has one block behind the other, each with gaps."""
    read: list[int] = []
    rows = [
        IndexRow(EntryId(n), EntryId(n + 8), BlockLocation(1, n, 1), is_sparse=True)
        for n in range(0, 100_000, 10)
    ]

    def block(row: IndexRow) -> EntryRun:
        read.append(row.first_entry)
        return run(*range(row.first_entry, row.last_entry + 1, 2))

    stored, end = stored_ranges(rows, EntryId(0), 12, block)
    ranges, following = page_of(stored, EntryId(0), 12, end)
    assert (len(ranges), following, read) == (12, 24, [0, 10, 20])
    read.clear()
    late = stored_ranges(rows, EntryId(0), 12, block, lambda: len(read) == 2)
    assert late[1] == 20 and read == [0, 10]
    one = stored_ranges(rows[5:], EntryId(50), 12, block, lambda: True)
    assert one[1] == 60, "one is always looked into"


def test_page_that_begins_within_a_block_is_as_long_as_others() -> None:
    """What lies below it does not count: else each block with a few more stretches than a page had
    a second page of these few, and clients took the bookie for one that lists hardly anything."""
    rows = [
        IndexRow(EntryId(n), EntryId(n + 98), BlockLocation(1, n, 1), is_sparse=True)
        for n in range(0, 1_000, 100)
    ]

    def block(row: IndexRow) -> EntryRun:
        return run(*range(row.first_entry, row.last_entry + 1, 2))

    stored, end = stored_ranges(rows, EntryId(90), 48, block)
    ranges, following = page_of(stored, EntryId(90), 48, end)
    assert len(ranges) == 48 and following == 186
