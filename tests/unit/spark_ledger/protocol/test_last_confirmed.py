"""Finding the last add confirmed: coverage, unknown answers, long poll."""

from __future__ import annotations

import pytest

from spark_ledger.errors import BookieUnavailableError, RecoveryError, UnauthorizedError
from spark_ledger.protocol.events import LastConfirmedAnswer, ReadLastConfirmed
from spark_ledger.protocol.last_confirmed import LastConfirmedRead, LongPoll
from spark_ledger.types import BookieStatus, EntryId
from tests.unit.spark_ledger.protocol.ledgers import ids, ledger

OK, NO_LEDGER = BookieStatus.OK, BookieStatus.NO_SUCH_LEDGER
DOWN, LIMBO = BookieStatus.UNAVAILABLE, BookieStatus.UNKNOWN_STATE


def told(bookie_index: int, status: BookieStatus, last: int = -1) -> LastConfirmedAnswer:
    return LastConfirmedAnswer(bookie_index, status, EntryId(last), "")


@pytest.mark.parametrize("fence", [True, False])
def test_asks_the_whole_last_ensemble(fence: bool) -> None:
    metadata = ledger((2, 2, 1), (0, "b0 b1"), (5, "b0 b2"))
    asked = LastConfirmedRead(metadata, fence=fence).start()
    assert asked == [ReadLastConfirmed(i, b, fence) for i, b in enumerate(ids("b0 b2"))]


def test_the_highest_answer_of_a_coverage() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=False)
    assert not round_.answer(told(0, OK, 4))
    assert not round_.answer(told(0, OK, 9)), "a repeated answer counts once"
    assert round_.answer(told(2, OK, 7))
    assert round_.result == 7 and round_.error is None
    assert not round_.answer(told(1, OK, 99)), "the round is over"
    assert round_.result == 7


def test_a_bookie_that_never_heard_of_it_has_answered() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=True)
    assert not round_.answer(told(0, NO_LEDGER))
    assert round_.answer(told(1, BookieStatus.NO_SUCH_ENTRY))
    assert round_.result == -1


@pytest.mark.parametrize("status", [NO_LEDGER, DOWN])
def test_a_number_in_an_answer_that_is_not_ok_counts_for_nothing(status: BookieStatus) -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=True)
    assert not round_.answer(told(0, status, 9))
    round_.answer(told(1, OK, 4))
    round_.answer(told(2, OK, 4))
    assert round_.result == 4
    poll = LongPoll(ledger((3, 3, 2), (0, "b0 b1 b2")), EntryId(3))
    poll.answer(status, EntryId(9))
    assert poll.newest == 3


def test_result_is_not_below_the_last_fragment() -> None:
    metadata = ledger((2, 2, 2), (0, "b0 b1"), (5, "b0 b2"))
    round_ = LastConfirmedRead(metadata, fence=True)
    assert round_.answer(told(0, NO_LEDGER))
    assert round_.result == 4


@pytest.mark.parametrize(
    ("fence", "kind"), [(True, RecoveryError), (False, BookieUnavailableError)]
)
def test_unknown_is_no_answer(fence: bool, kind: type[Exception]) -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=fence)
    assert not round_.answer(told(0, OK, 3))
    assert not round_.answer(told(1, LIMBO))
    assert round_.answer(told(2, DOWN))
    assert type(round_.error) is kind and round_.result is None
    assert "b2: unavailable" in str(round_.error)
    assert not round_.answer(told(2, OK, 3))


def test_coverage_in_spite_of_a_silent_bookie() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=True)
    assert not round_.answer(told(0, DOWN))
    assert not round_.answer(told(1, OK, 3))
    assert round_.answer(told(2, NO_LEDGER))
    assert round_.result == 3


def test_one_refusal_of_the_password_is_an_unknown_answer() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=True)
    assert not round_.answer(told(1, BookieStatus.UNAUTHORIZED))
    assert not round_.answer(told(0, OK))
    assert round_.answer(told(2, OK)) and round_.result is not None


def test_too_many_refusals_of_the_password_are_the_error() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=True)
    assert not round_.answer(told(1, BookieStatus.UNAUTHORIZED))
    assert not round_.answer(told(0, BookieStatus.UNAVAILABLE))
    assert round_.answer(told(2, OK))
    assert isinstance(round_.error, UnauthorizedError)


def poll() -> LongPoll:
    return LongPoll(ledger((3, 3, 2), (0, "b0 b1 b2")), EntryId(5))


def test_a_poll_ends_with_the_first_news() -> None:
    round_ = poll()
    assert round_.answer(OK, EntryId(6))
    assert round_.newest == 6


def test_a_poll_ends_when_nobody_else_can_know() -> None:
    round_ = poll()
    assert not round_.answer(OK, EntryId(5))
    assert round_.answer(NO_LEDGER, EntryId(-1))
    assert round_.newest == 5


def test_a_poll_ends_when_all_have_answered() -> None:
    round_ = poll()
    assert not round_.answer(DOWN, EntryId(-1))
    assert not round_.answer(OK, EntryId(3))
    assert round_.answer(DOWN, EntryId(99))
    assert round_.newest == 5, "an older answer takes nothing back, a failure tells nothing"
