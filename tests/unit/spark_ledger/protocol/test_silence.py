"""Who of an ensemble is silent: whom the others can do without, who is asked about, who has had its
time (rule P11)."""

from __future__ import annotations

import pytest

from spark_ledger.protocol.events import AddFailed, BookiesChosen, CloseAppender
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import BookieId, BookieStatus, Quorums
from tests.unit.spark_ledger.protocol.ledgers import ids

BOOKIES = ids("b0 b1 b2")
NOBODY: tuple[set[int], tuple[int, ...]] = (set(), ())
TIMEOUT_S, WAIT_S = 5.0, 30.0


def make() -> Replication:
    """Three copies of which two acknowledge; entry 0 is under way since second 0."""
    replication = Replication(Quorums(3, 3, 2), BOOKIES, -1, 0.0)
    replication.push(0, 0.0)
    return replication


def acknowledge(replication: Replication, index: int, last: int, now: float) -> None:
    assert replication.acknowledge(index, BOOKIES[index], last, now)


def silence(replication: Replication, now: float) -> tuple[set[int], tuple[int, ...]]:
    return replication.silence(now, TIMEOUT_S, WAIT_S)


def busy(replication: Replication, index: int, now: float) -> None:
    """It says that it is busy, and is sent its entries again soon after."""
    event = AddFailed(index, BOOKIES[index], BookieStatus.TOO_MANY_REQUESTS)
    assert replication.excuse(event, now)
    assert replication.resume(now + 1.0)


def found_alive(replication: Replication, *silent: int, now: float) -> None:
    """Nobody can take their places, and each answers a probe: excused for a second."""
    replication.choose(now, silent)
    assert replication.chosen(BookiesChosen({}, frozenset(silent)), now, 1.0) == ({}, [])


def test_silent_member_is_not_spared_where_another_has_failed_before() -> None:
    replication = make()
    replication.fail(AddFailed(0, BOOKIES[0], BookieStatus.UNAVAILABLE), 1.0, 1.0)
    acknowledge(replication, 2, 0, 1.0)
    assert silence(replication, 5.0) == (set(), (1,)), "of two, both are needed"


def test_silent_member_is_not_spared_where_another_has_had_its_time() -> None:
    replication = make()
    acknowledge(replication, 0, 0, 1.0)
    acknowledge(replication, 2, 0, 1.0)
    replication.push(1, 25.0)
    acknowledge(replication, 2, 1, 26.0)
    busy(replication, 1, 28.0)
    assert silence(replication, 29.9) == NOBODY
    assert silence(replication, 30.0) == ({1}, (0,))


def test_who_has_had_its_time_is_not_asked_about() -> None:
    replication = make()
    acknowledge(replication, 0, 0, 20.0)
    acknowledge(replication, 2, 0, 20.0)
    replication.push(1, 20.0)
    assert silence(replication, 25.0) == (set(), (0, 1, 2))
    assert silence(replication, 30.0) == ({1}, (0, 2))


def test_who_was_found_alive_a_moment_ago_is_given_that_moment_by_all_that_look() -> None:
    replication = make()
    assert silence(replication, 5.0) == (set(), (0, 1, 2))
    found_alive(replication, 0, 1, 2, now=5.0)
    assert replication.next_look(TIMEOUT_S, chooses=False) == 6.0
    acknowledge(replication, 0, 0, 5.1)
    acknowledge(replication, 1, 0, 5.1)
    assert silence(replication, 5.9) == NOBODY
    assert replication.spare_indexes(5.9, 1.0) == []
    assert silence(replication, 6.0) == ({2}, ())
    assert replication.spare_indexes(6.0, 1.0) == [2]


def test_who_was_found_alive_just_before_its_time_is_up_has_that_moment_too() -> None:
    replication = make()
    found_alive(replication, 0, 1, 2, now=29.5)
    assert silence(replication, 30.0) == NOBODY
    assert silence(replication, 30.5) == ({0, 1, 2}, ())


def test_pauses_end_neither_the_time_of_a_member_nor_what_it_may_return_to() -> None:
    """It answers all the while, and stores nothing: it has had all the time there is."""
    replication = make()
    for second in range(0, 30, 3):
        busy(replication, 1, float(second))
    acknowledge(replication, 0, 0, 29.0)
    acknowledge(replication, 2, 0, 29.0)
    assert silence(replication, 30.0) == ({1}, ())
    replication.fail_silent([1], 30.0, 1.0, WAIT_S)
    (failed,) = replication.failed_members
    assert failed.hopeless and not failed.may_come_back_early


def test_member_that_fails_while_it_is_asked_about_fails_once() -> None:
    replication = make()
    replication.choose(5.0, (0, 1, 2))
    assert replication.fail(AddFailed(1, BOOKIES[1], BookieStatus.UNAVAILABLE), 5.1, 1.0)
    replacements, closed = replication.chosen(BookiesChosen({}, frozenset({0, 2})), 5.2, 1.0)
    assert (replacements, closed) == ({}, [])
    (failed,) = replication.failed_members
    assert failed.status is BookieStatus.UNAVAILABLE


def test_question_about_silent_members_ends_with_its_answer() -> None:
    """A later one is about others: who was asked about before is not judged by it."""
    replication = make()
    found_alive(replication, 0, 1, 2, now=5.0)
    replication.fail(AddFailed(1, BOOKIES[1], BookieStatus.UNAVAILABLE), 5.5, 1.0)
    assert replication.choose(5.5).silent == {}
    assert replication.chosen(BookiesChosen({}), 5.6, 1.0) == ({}, [])
    assert replication.live_bookies == ids("b0 b2")


def test_member_that_answers_as_the_question_is_asked_is_waited_for() -> None:
    """The question is no older than what it said."""
    replication = make()
    busy(replication, 1, 4.0)
    acknowledge(replication, 0, 0, 4.0)
    replication.push(1, 6.0)
    acknowledge(replication, 0, 1, 6.0)
    replication.choose(9.0, (1, 2))
    busy(replication, 1, 9.0)
    _, closed = replication.chosen(BookiesChosen({}, frozenset()), 11.0, 1.0)
    assert closed == [CloseAppender(2)]


def test_busy_member_is_waited_for_until_it_is_asked_again() -> None:
    """Nothing is under way to it, so it cannot be silent; it owes what it has not stored."""
    replication = make()
    acknowledge(replication, 0, 0, 1.0)
    acknowledge(replication, 2, 0, 1.0)
    event = AddFailed(1, BOOKIES[1], BookieStatus.TOO_MANY_REQUESTS)
    assert replication.excuse(event, 4.0)
    assert silence(replication, 29.0) == NOBODY and silence(replication, 31.0) == NOBODY
    assert replication.held_by_all_live() == -1
    replication.resume(31.0)
    assert silence(replication, 31.0) == ({1}, ())


def test_next_look_is_at_the_first_who_is_due_and_at_nobody_who_failed() -> None:
    """A time that has passed, and stays, would have the writer's loop turn without end."""
    replication = make()
    replication.fail(AddFailed(0, BOOKIES[0], BookieStatus.UNAVAILABLE), 1.0, 1.0)
    replication.choose(1.0)
    replication.chosen(BookiesChosen({}), 1.0, 2.0)
    replication.fail(AddFailed(1, BOOKIES[1], BookieStatus.READ_ONLY), 2.0, 1.0)
    replication.choose(2.0)
    replication.chosen(BookiesChosen({}), 2.0, 2.0)
    assert replication.next_look(TIMEOUT_S, chooses=True) == 3.0
    assert replication.next_look(TIMEOUT_S, chooses=False) == TIMEOUT_S
    acknowledge(replication, 2, 0, 2.0)
    assert replication.next_look(TIMEOUT_S, chooses=False) is None


def test_silent_member_is_replaced_if_somebody_can_take_its_place_though_it_is_alive() -> None:
    replication = make()
    replication.choose(5.0, (0, 1, 2))
    chosen = BookiesChosen({0: BookieId("b3")}, frozenset({0, 1, 2}))
    assert replication.chosen(chosen, 5.5, 1.0) == ({0: "b3"}, [CloseAppender(0)])


def test_who_lied_about_a_fence_is_named_in_every_later_question() -> None:
    replication = make()
    replication.fail(AddFailed(1, BOOKIES[1], BookieStatus.FENCED), 1.0, 10.0)
    replication.choose(1.0)
    replication.chosen(BookiesChosen({}), 1.0, 10.0)
    replication.fail(AddFailed(0, BOOKIES[0], BookieStatus.IO_ERROR), 2.0, 10.0)
    asked = replication.choose(2.0)
    assert asked.indexes == (0,) and asked.liars == {"b1"}


def test_silent_member_that_was_given_up_may_return_where_nothing_goes_on_without_it() -> None:
    """It had less than the time that one is waited for: it is not without hope."""
    replication = make()
    replication.choose(5.0, (0, 1, 2))
    _, closed = replication.chosen(BookiesChosen({}, frozenset({0, 2})), 6.0, 1.0)
    assert closed == [CloseAppender(1)]
    replication.fail(AddFailed(0, BOOKIES[0], BookieStatus.UNAVAILABLE), 6.1, 1.0)
    assert replication.failed_due(6.1) == (0, 1)
    assert replication.choose(6.1).failed == {0: "b0", 1: "b1"}


@pytest.mark.parametrize("said", [BookieStatus.TIMEOUT, BookieStatus.STALLED])
def test_member_that_stores_nothing_may_return_where_nothing_goes_on_without_it(
    said: BookieStatus,
) -> None:
    """Whether its network or its disk stood still; it has never worked here."""
    replication = make()
    if said is BookieStatus.STALLED:
        assert replication.excuse(AddFailed(1, BOOKIES[1], said), 1.0) == []
    acknowledge(replication, 0, 0, 1.0)
    acknowledge(replication, 2, 0, 1.0)
    silent, _ = silence(replication, 5.0)
    replication.fail_silent(silent, 5.0, 1.0, WAIT_S)
    assert [(each.bookie_id, each.status) for each in replication.failed_members] == [("b1", said)]
    replication.choose(5.0)
    replication.chosen(BookiesChosen({}), 5.0, 1.0)
    replication.push(1, 5.0)
    replication.fail(AddFailed(0, BOOKIES[0], BookieStatus.READ_ONLY), 5.1, 1.0)
    assert replication.choose(5.1).failed == {1: "b1", 0: "b0"}


@pytest.mark.parametrize(
    ("status", "returns"),
    [
        (BookieStatus.UNAVAILABLE, True),
        (BookieStatus.TIMEOUT, True),
        (BookieStatus.IO_ERROR, True),
        (BookieStatus.READ_ONLY, False),
        (BookieStatus.UNAUTHORIZED, False),
        (BookieStatus.WRONG_BOOKIE, False),
    ],
)
def test_member_that_a_restart_may_have_mended_returns_at_once(
    status: BookieStatus, returns: bool
) -> None:
    """Any other would answer the same again, as fast as it is asked (rule P10)."""
    replication = make()
    replication.fail(AddFailed(1, BOOKIES[1], status), 1.0, 1.0)
    assert replication.choose(1.0).failed == ({1: "b1"} if returns else {})
