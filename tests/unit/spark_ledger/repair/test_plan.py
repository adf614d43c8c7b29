"""What a ledger lacks, against a look at each entry."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark_ledger.repair.plan import LaneCopy, bytes_on, missing
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)

SOURCES = (BookieId("b1"),)


def ids_of(copy: LaneCopy) -> list[int]:
    return list(range(copy.first, copy.last + 1, copy.stride))


@given(
    first=st.integers(0, 6),
    count=st.integers(0, 40),
    stride=st.integers(1, 5),
    held=st.sets(st.integers(0, 60)),
)
def test_missing_parts_are_the_entries_that_no_range_has(
    first: int, count: int, stride: int, held: set[int]
) -> None:
    copy = LaneCopy(first, first + count - 1, stride, SOURCES)
    ranges: list[tuple[int, int]] = []
    for entry_id in sorted(held):
        if ranges and ranges[-1][1] == entry_id - 1:
            ranges[-1] = (ranges[-1][0], entry_id)
        else:
            ranges.append((entry_id, entry_id))
    parts = missing(copy, ranges)
    lacking = [entry_id for part in parts for entry_id in ids_of(part)]
    assert lacking == [entry_id for entry_id in ids_of(copy) if entry_id not in held]
    assert all(a.last + stride < b.first for a, b in pairwise(parts)), (
        "parts that follow each other are one"
    )


def test_missing_of_a_long_lane_takes_a_step_for_each_range_and_not_for_each_entry() -> None:
    """With a step for each entry it would not end."""
    copy = LaneCopy(0, 2**60, 1, SOURCES)
    assert missing(copy, [(5, 2**60 - 3)]) == [
        LaneCopy(0, 4, 1, SOURCES),
        LaneCopy(2**60 - 2, 2**60, 1, SOURCES),
    ]


def test_bytes_on_bookies_are_their_shares_of_closed_stripes() -> None:
    names = [BookieId(f"b{i}") for i in range(6)]
    striped = LedgerMetadata(
        LedgerId(1),
        Quorums(5, 3, 2),
        (Fragment(EntryId(0), tuple(names[:5])), Fragment(EntryId(50), tuple(names[1:]))),
        state=LedgerState.CLOSED,
        last_entry_id=EntryId(99),
        length=1000,
    )
    shares = [bytes_on(striped, [name]) for name in names]
    assert shares == [300, 600, 600, 600, 600, 300] and sum(shares) == 3 * striped.length
    assert bytes_on(striped, names[:2]) == 900
    still_open = LedgerMetadata(
        LedgerId(1), Quorums(5, 3, 2), (Fragment(EntryId(0), tuple(names[:5])),)
    )
    assert bytes_on(still_open, names) == 0
