"""The indexes of an ensemble: who was sent what, who holds what, who failed."""

from __future__ import annotations

import pytest

from spark_ledger.limits.client import (
    ADD_TIMEOUT_S,
    BOOKIE_RETURN_DELAY_S,
    STALLED_BOOKIES_WAIT_S,
)
from spark_ledger.protocol.events import (
    AddFailed,
    BookiesChosen,
    CloseAppender,
    Command,
    OpenAppender,
    SendEntries,
)
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import BookieId, BookieStatus, EntryId, Quorums
from tests.unit.spark_ledger.protocol.ledgers import ids

B0, B1, B2, B3 = ids("b0 b1 b2 b3")


def make(e: int = 3, wq: int = 3, aq: int = 2, last: int = -1) -> Replication:
    return Replication(Quorums(e, wq, aq), ids("b0 b1 b2")[:e], last, 0.0)


def down(bookie_index: int, bookie_id: BookieId) -> AddFailed:
    return AddFailed(bookie_index, bookie_id, BookieStatus.UNAVAILABLE)


def send(bookie_index: int, first: int, last: int) -> SendEntries:
    return SendEntries(bookie_index, EntryId(first), EntryId(last))


def test_an_ensemble_has_all_members() -> None:
    with pytest.raises(AssertionError, match="E members"):
        Replication(Quorums(3, 3, 2), ids("b0 b1"), -1, 0.0)


def test_opening_and_closing() -> None:
    replication = make()
    opened: list[Command] = [OpenAppender(i, b) for i, b in enumerate(ids("b0 b1 b2"))]
    assert replication.open_all() == opened
    assert replication.close_all() == [CloseAppender(i) for i in range(3)]
    assert replication.bookies == replication.live_bookies == ids("b0 b1 b2")


def test_striped_entries_go_to_their_write_set_only() -> None:
    replication = make(3, 2, 1)
    assert replication.push(0, 0.0) == [send(0, 0, 0), send(1, 0, 0)]
    assert replication.push(1, 0.0) == [send(1, 1, 1), send(2, 1, 1)]
    with pytest.raises(AssertionError, match="only grow"):
        replication.push(1, 0.0)


@pytest.mark.parametrize(("ack_quorum", "wanted"), [(1, [1, 1, 1]), (2, [2, 1, 1]), (3, [3, 2, 1])])
def test_as_many_acknowledgements_are_wanted_as_quorum_lacks(
    ack_quorum: int, wanted: list[int]
) -> None:
    replication = make(aq=ack_quorum)
    replication.push(4, 0.0)
    found = []
    for index, bookie_id in enumerate((B0, B1, B2)):
        found.append(replication.answers_wanted(-1))
        replication.acknowledge(index, bookie_id, 3, 1.0)
    assert found == wanted
    assert replication.answers_wanted(3) == ack_quorum, "they are above it no more"


def test_of_striped_entries_each_acknowledgement_may_confirm() -> None:
    replication = make(3, 2, 2)
    replication.push(4, 0.0)
    assert replication.answers_wanted(-1) == 1


def test_confirmed_by_the_ack_quorum() -> None:
    replication = make()
    replication.push(4, 0.0)
    assert replication.acknowledge(0, B0, 3, 1.0)
    assert replication.confirmed_end() == -1
    assert replication.acknowledge(2, B2, 4, 1.0)
    assert replication.confirmed_end() == 3


def test_answers_that_change_nothing() -> None:
    replication = make()
    replication.push(4, 0.0)
    assert replication.acknowledge(0, B0, 3, 1.0)
    assert not replication.acknowledge(0, B0, 3, 1.0), "repeated"
    assert not replication.acknowledge(0, B0, 2, 1.0), "older"
    assert not replication.acknowledge(0, B3, 4, 1.0), "of a bookie that stands there no more"
    assert not replication.acknowledge(0, B0, 5, 1.0), "of an entry that was never sent"


def test_a_bookie_fails_once() -> None:
    replication = make()
    assert replication.fail(down(1, B1), 5.0, 1.0)
    assert not replication.fail(down(1, B1), 5.0, 1.0)
    assert not replication.fail(down(0, B3), 5.0, 1.0), "not in this bookie_index"
    assert replication.failed_indexes == {1} and replication.live_bookies == (B0, B2)
    assert replication.failed_due(5.0) == (1,) and replication.failed_due(4.9) == ()
    assert replication.can_confirm()
    assert replication.fail(down(2, B2), 5.0, 1.0)
    assert not replication.can_confirm()
    assert replication.push(0, 5.0) == [send(0, 0, 0)], "failed indexes are left out"


def test_a_bookie_that_fails_again_is_retried_later() -> None:
    replication = make()
    replication.push(0, 0.0)
    replication.fail(down(1, B1), 5.0, 1.0)
    replication.install({1: B1}, -1, 5.0)
    replication.fail(down(1, B1), 5.0, 1.0)
    assert replication.failed_due(5.9) == () and replication.failed_due(6.0) == (1,)
    replication.retry_now(5.5)
    assert replication.failed_due(5.5) == (1,)


def test_a_bookie_that_acknowledges_is_as_good_as_new() -> None:
    replication = make()
    replication.push(0, 0.0)
    replication.fail(down(1, B1), 5.0, 1.0)
    replication.install({1: B1}, -1, 5.0)
    assert replication.acknowledge(1, B1, 0, 5.0)
    replication.fail(down(1, B1), 5.0, 1.0)
    assert replication.failed_due(5.0) == (1,)


def test_replaced_members_forget_and_are_sent_what_is_not_confirmed() -> None:
    replication = make()
    replication.push(4, 0.0)
    for index, bookie in enumerate((B0, B1)):
        replication.acknowledge(index, bookie, 4, 0.0)
    replication.fail(down(1, B1), 1.0, 1.0)
    assert replication.install({1: B3}, 2, 1.0) == [OpenAppender(1, B3), send(1, 3, 4)]
    assert replication.bookies == (B0, B3, B2) and replication.failed_indexes == frozenset()
    assert replication.confirmed_end() == 2
    assert not replication.acknowledge(1, B1, 4, 1.0), "the one who left"
    replication.acknowledge(1, B3, 4, 1.0)
    assert replication.confirmed_end() == 4


def test_a_replacement_without_entries_of_its_own_is_sent_nothing() -> None:
    replication = make(3, 1, 1)
    replication.push(0, 0.0)
    replication.fail(down(1, B1), 0.0, 1.0)
    assert replication.install({1: B3}, -1, 0.0) == [OpenAppender(1, B3)]


def test_held_by_all_live() -> None:
    replication = make()
    assert replication.held_by_all_live() == -1
    replication.push(4, 0.0)
    replication.acknowledge(0, B0, 4, 0.0)
    replication.acknowledge(1, B1, 2, 0.0)
    replication.fail(down(2, B2), 0.0, 1.0)
    assert replication.held_by_all_live() == 2
    replication.acknowledge(1, B1, 4, 0.0)
    assert replication.held_by_all_live() == 4


def test_silence_counts_from_when_something_was_owed() -> None:
    replication = make()
    assert replication.silent_indexes(100.0, 5.0) == []
    replication.push(0, 100.0)
    assert replication.silent_indexes(104.9, 5.0) == []
    replication.acknowledge(0, B0, 0, 104.0)
    replication.push(1, 104.0)
    assert replication.silent_indexes(105.0, 5.0) == [1, 2], "the clock of 1 and 2 goes on"
    replication.fail(down(1, B1), 105.0, 1.0)
    assert replication.silent_indexes(105.0, 5.0) == [2]
    assert replication.silent_indexes(109.0, 5.0) == [0, 2]


def test_spare_is_who_is_not_needed_for_the_ack_quorum() -> None:
    replication = make()
    replication.push(0, 0.0)
    replication.acknowledge(0, B0, 0, 0.0)
    replication.acknowledge(1, B1, 0, 0.5)
    assert replication.spare_indexes(1.0, 1.0) == [2]
    replication.fail(down(1, B1), 1.0, 1.0)
    assert replication.spare_indexes(1.0, 1.0) == []


def test_nobody_is_spare_while_too_few_answer() -> None:
    """Each of the silent ones alone could be spared, but not all of them."""
    replication = make()
    replication.push(0, 0.0)
    replication.acknowledge(0, B0, 0, 0.0)
    assert replication.silent_indexes(1.0, 1.0) == [1, 2]
    assert replication.spare_indexes(1.0, 1.0) == []


def test_bookie_ids_are_compared_not_indexes() -> None:
    replication = Replication(Quorums(2, 2, 1), (BookieId("x"), BookieId("y")), 9, 0.0)
    replication.push(10, 0.0)
    assert replication.acknowledge(0, BookieId("x"), 10, 0.0)
    assert replication.confirmed_end() == 10


@pytest.mark.parametrize(
    ("has_worked", "status", "looked_for"),
    [
        (True, BookieStatus.IO_ERROR, (0, 1)),
        (False, BookieStatus.TIMEOUT, (0, 1)),
        (False, BookieStatus.IO_ERROR, (1,)),
    ],
)
def test_failure_that_stops_the_ledger_looks_again_for_all_that_may_come_back_early(
    has_worked: bool, status: BookieStatus, looked_for: tuple[int, ...]
) -> None:
    """Nobody was found for the first, and so it waits its turn; with the second the ledger stands
    still, and would for all of that time (rule P10)."""
    replication = make()
    replication.push(0, 0.0)
    if has_worked:
        replication.acknowledge(0, B0, 0, 0.5)
    assert replication.fail(AddFailed(0, B0, status), 1.0, 10.0)
    replication.choose(1.0)
    replication.chosen(BookiesChosen({}, frozenset()), 1.0, 10.0)
    assert replication.failed_due(2.0) == () and replication.can_confirm()
    assert replication.fail(down(1, B1), 2.0, 10.0)
    assert not replication.can_confirm()
    assert replication.failed_due(2.0) == looked_for


def swap(replication: Replication, leaves: BookieId, comes: BookieId, now: float) -> None:
    """The bookie fails for a reason that a restart may end; a second later another comes."""
    index = replication.bookies.index(leaves)
    assert replication.fail(AddFailed(index, leaves, BookieStatus.IO_ERROR), now, 1.0)
    replication.choose(now + 1.0)
    replacements, _ = replication.chosen(BookiesChosen({index: comes}), now + 1.0, 1.0)
    replication.install(replacements, -1, now + 1.0)


def excluded(replication: Replication, fails: BookieId, now: float) -> set[BookieId]:
    """Who is no member, and may not take the place of one that failed a second before."""
    index = replication.bookies.index(fails)
    assert replication.fail(AddFailed(index, fails, BookieStatus.IO_ERROR), now - 1.0, 1.0)
    asked = replication.choose(now).excluded
    replication.chosen(BookiesChosen({}), now, 1.0)
    assert asked.issuperset(replication.bookies)
    return set(asked.difference(replication.bookies))


def swapped() -> Replication:
    """b1 failed at second 1 and 5, b3 that took its place at second 3."""
    replication = make()
    replication.push(0, 0.0)
    swap(replication, B1, B3, 1.0)
    swap(replication, B3, B1, 3.0)
    swap(replication, B1, B3, 5.0)
    return replication


def test_two_that_take_each_others_place_stay_away_as_one_does_from_its_own() -> None:
    """Each is a new member every time, and would be put in again as fast as it fails (rule P10)."""
    returns = 5.0 + BOOKIE_RETURN_DELAY_S
    assert excluded(swapped(), B3, returns - 0.1) == {B1}
    assert excluded(swapped(), B3, returns) == set()
    replication = swapped()
    swap(replication, B3, B1, returns)
    swap(replication, B1, B3, returns + 2.0)
    assert excluded(replication, B3, returns + 1.9 + 2 * BOOKIE_RETURN_DELAY_S) == {B1}


def test_bookie_that_failed_once_may_take_anothers_place_at_once() -> None:
    """It may have been restarted meanwhile."""
    replication = make()
    replication.push(0, 0.0)
    swap(replication, B1, B3, 1.0)
    assert excluded(replication, B2, 3.0) == set()


def test_where_nothing_goes_on_whoever_answers_may_take_a_place() -> None:
    replication = swapped()
    assert excluded(replication, B0, 8.0) == {B1}
    assert excluded(replication, B2, 9.5) == set()


@pytest.mark.parametrize("silent", [(0,), (0, 2)])
def test_who_stays_away_takes_no_place_of_one_that_is_silent_and_may_store_yet(
    silent: tuple[int, ...],
) -> None:
    """Those that say at once that they stall would take each other's place without end (P10)."""
    replication = swapped()
    asked = replication.choose(7.0, silent).excluded
    assert replication.can_confirm()
    assert asked.difference(replication.bookies) == {B1}


def stood(replication: Replication, last_confirmed: int, since: float) -> Replication:
    """b1 was replaced by b3 then, while an entry waited."""
    replication.fail(down(1, B1), since, 1.0)
    replication.install({1: B3}, last_confirmed, since)
    return replication


def test_bookie_that_is_put_in_late_has_the_time_of_a_silent_one_to_itself() -> None:
    """Of what its predecessors were waited for the rest, and that at least (rule P11)."""
    for now, until in ((10.0, STALLED_BOOKIES_WAIT_S), (29.0, 29.0 + ADD_TIMEOUT_S)):
        replication = make()
        replication.push(0, 0.0)
        stood(replication, -1, 0.0)
        replication.acknowledge(0, B0, 0, 1.0)
        replication.fail(down(1, B3), now, 1.0)
        replication.install({1: B1}, -1, now)
        assert 1 not in replication.owing_indexes(until - 0.1, STALLED_BOOKIES_WAIT_S)
        assert 1 in replication.owing_indexes(until, STALLED_BOOKIES_WAIT_S)


def test_bookie_that_is_put_in_after_something_was_confirmed_has_all_of_the_time() -> None:
    replication = make()
    replication.push(0, 0.0)
    stood(replication, -1, 0.0)
    replication.push(1, 20.0)
    replication.fail(down(2, B2), 20.0, 1.0)
    replication.install({2: B1}, 0, 20.0)
    assert 2 not in replication.owing_indexes(20.0 + 29.9, STALLED_BOOKIES_WAIT_S)


def test_bookie_that_is_put_in_as_all_is_confirmed_begins_no_standstill() -> None:
    """What was confirmed meanwhile is all there is: no entry waits for an hour."""
    replication = make()
    replication.push(0, 0.0)
    stood(replication, 0, 1.0)
    replication.push(1, 3600.0)
    replication.fail(down(1, B3), 3600.0, 1.0)
    replication.install({1: B1}, 0, 3600.0)
    assert 1 not in replication.owing_indexes(3629.9, STALLED_BOOKIES_WAIT_S)


def test_who_has_had_its_time_takes_no_other_place_until_something_is_confirmed() -> None:
    """Also not where nothing goes on without it, or two of them would take turns."""
    replication = make()
    replication.push(0, 0.0)
    replication.acknowledge(0, B0, 0, 1.0)
    replication.fail_silent([1], 30.0, 1.0, STALLED_BOOKIES_WAIT_S)
    replication.install({1: B3}, -1, 30.0)
    assert excluded(replication, B3, 500.0) == {B1}
    assert excluded(replication, B2, 502.0) == {B1} and not replication.can_confirm()
    replication.install({1: BookieId("b4")}, -1, 502.0)
    replication.acknowledge(1, BookieId("b4"), 0, 502.1)
    assert replication.confirmed_end() == 0
    replication.push(1, 503.0)
    assert excluded(replication, BookieId("b4"), 505.0) == set()
