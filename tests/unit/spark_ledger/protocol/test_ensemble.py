"""Legal changes of ledger metadata, and the assertions that refuse others."""

from __future__ import annotations

import pytest

from spark_ledger.protocol import ensemble
from spark_ledger.types import EntryId, LedgerState
from tests.unit.spark_ledger.protocol.ledgers import fragment, ids, ledger

TWO = ledger((2, 2, 1), (0, "b0 b1"), (5, "b0 b2"))


@pytest.mark.parametrize(("entry_id", "first"), [(0, 0), (4, 0), (5, 5), (99, 5)])
def test_fragment_of(entry_id: int, first: int) -> None:
    assert ensemble.fragment_of(TWO, entry_id).first_entry == first


def test_no_entry_is_below_0() -> None:
    with pytest.raises(AssertionError, match="count from 0"):
        ensemble.fragment_of(TWO, -1)


@pytest.mark.parametrize(
    ("first", "last", "cut"),
    [
        (0, 4, [(0, 4, 0)]),
        (3, 7, [(3, 4, 0), (5, 7, 5)]),
        (5, 5, [(5, 5, 5)]),
        (8, 9, [(8, 9, 5)]),
        (3, 2, []),
    ],
)
def test_fragment_ranges(first: int, last: int, cut: list[tuple[int, int, int]]) -> None:
    found = ensemble.fragment_ranges(TWO, first, last)
    assert [(low, high, part.first_entry) for low, high, part in found] == cut


def test_replacing_bookies_keeps_the_others() -> None:
    assert ensemble.replace_bookies(ids("b0 b1 b2"), {1: ids("b9")[0]}) == ids("b0 b9 b2")


def test_a_bookie_stands_at_one_index() -> None:
    with pytest.raises(AssertionError, match="one index only"):
        ensemble.replace_bookies(ids("b0 b1 b2"), {1: ids("b2")[0]})


def test_a_new_ensemble_is_appended() -> None:
    changed = ensemble.with_ensemble(TWO.fragments, EntryId(7), ids("b3 b2"))
    assert changed == (*TWO.fragments, fragment(7, "b3 b2"))


def test_an_ensemble_without_confirmed_entries_is_replaced() -> None:
    changed = ensemble.with_ensemble(TWO.fragments, EntryId(5), ids("b3 b2"))
    assert changed == (TWO.fragments[0], fragment(5, "b3 b2"))


def test_no_fragment_goes_below_the_last() -> None:
    with pytest.raises(AssertionError, match="never starts before"):
        ensemble.with_ensemble(TWO.fragments, EntryId(4), ids("b3 b2"))


def test_recovery_starts_from_open_only() -> None:
    marked = ensemble.in_recovery(TWO)
    assert marked.state is LedgerState.IN_RECOVERY
    with pytest.raises(AssertionError, match="Only an open ledger"):
        ensemble.in_recovery(marked)


def test_closed_once() -> None:
    done = ensemble.closed(TWO, last_entry=EntryId(6), length=60)
    assert (done.state, done.last_entry_id, done.length) == (LedgerState.CLOSED, 6, 60)
    assert done.fragments == TWO.fragments
    with pytest.raises(AssertionError, match="closes once"):
        ensemble.closed(done, last_entry=EntryId(6), length=60)


def test_closed_with_other_fragments() -> None:
    fragments = (fragment(0, "b0 b1"), fragment(5, "b3 b2"))
    done = ensemble.closed(TWO, last_entry=EntryId(6), length=60, fragments=fragments)
    assert done.fragments == fragments


@pytest.mark.parametrize(("last", "length"), [(-2, 0), (0, -1)])
def test_an_end_is_not_below_nothing(last: int, length: int) -> None:
    with pytest.raises(AssertionError):
        ensemble.closed(TWO, last_entry=EntryId(last), length=length)


@pytest.mark.parametrize(
    ("first", "last", "starts"),
    [(3, 3, {0: 3}), (3, 4, {0: 3, 1: 4}), (2, 4, {0: 3, 1: 4, 2: 2}), (4, 3, {})],
)
def test_lane_ranges_have_the_bookies_of_their_fragment_and_leave_empty_lanes_out(
    first: int, last: int, starts: dict[int, int]
) -> None:
    metadata = ledger((3, 2, 1), (0, "b0 b1 b2"), (5, "b3 b4 b5"))
    found = ensemble.lane_ranges(metadata, metadata.fragments[0], first, last)
    assert {each.lane_index: int(each.first) for each in found} == starts
    assert all(each.bookies == ids("b0 b1 b2") and each.last == last for each in found)


@pytest.mark.parametrize(("entry_id", "bookies"), [(4, "b0 b1 b2"), (5, "b3 b4 b5")])
def test_range_of_one_entry_is_in_its_own_fragment(entry_id: int, bookies: str) -> None:
    metadata = ledger((3, 2, 1), (0, "b0 b1 b2"), (5, "b3 b4 b5"))
    found = ensemble.entry_range(metadata, entry_id)
    assert (found.first, found.last, found.bookies) == (entry_id, entry_id, ids(bookies))
    assert found.lane_index == entry_id % 3
