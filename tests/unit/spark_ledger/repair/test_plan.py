"""What a ledger lacks, against a look at each entry; and what its metadata say of that."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ledger.repair.plan import (
    LaneCopy,
    bytes_on,
    copies_left,
    final_fragments,
    missing,
    renamed,
    waits_for_its_writer,
)
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


A, B, C, D = (BookieId(name) for name in "abcd")
TWICE = LedgerMetadata(
    LedgerId(1),
    Quorums(3, 3, 2),
    (Fragment(EntryId(0), (A, B, C)), Fragment(EntryId(5), (D, B, C))),
)
"""An open ledger whose writer has replaced a bookie."""


@pytest.mark.parametrize(
    ("lost", "left"), [((), 3), ((A,), 2), ((D,), 2), ((A, B), 1), ((A, D), 2), ((A, B, C), 0)]
)
def test_copies_left_are_those_of_the_worst_fragment(lost: tuple[BookieId, ...], left: int) -> None:
    """What has the fewest comes first (rule R7)."""
    assert copies_left(TWICE, lost) == left


@pytest.mark.parametrize(
    ("lost", "waits"), [((), False), ((A,), False), ((D,), True), ((B,), True)]
)
def test_ledger_waits_only_for_a_writer_whose_own_fragment_lost_a_bookie(
    lost: tuple[BookieId, ...], *, waits: bool
) -> None:
    """Else one that goes on with good bookies would be ended after its grace (rule R3)."""
    assert waits_for_its_writer(TWICE, lost) is waits
    ended = TWICE.with_changes(state=LedgerState.CLOSED, last_entry_id=EntryId(9), length=10)
    assert not waits_for_its_writer(ended, lost)


def test_bookie_that_a_fragment_names_by_now_is_not_named_at_another_index() -> None:
    """Somebody else has: two copies would be one (rule R5)."""
    first, _ = final_fragments(
        TWICE.with_changes(state=LedgerState.CLOSED, last_entry_id=EntryId(9), length=10)
    )
    changed = renamed(TWICE, first, {0: D})
    assert changed is not None and changed.fragments[0].bookies == (D, B, C)
    by_another = TWICE.with_changes(fragments=(Fragment(EntryId(0), (A, D, C)), TWICE.fragments[1]))
    assert renamed(by_another, first, {0: D}) is None
