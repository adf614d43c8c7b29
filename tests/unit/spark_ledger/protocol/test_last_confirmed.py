"""Finding the last add confirmed: coverage, unknown answers, long poll."""

from __future__ import annotations

from itertools import combinations

import pytest

from spark_ledger.errors import BookieUnavailableError, RecoveryError, UnauthorizedError
from spark_ledger.protocol.events import LastConfirmedAnswer, ReadLastConfirmed
from spark_ledger.protocol.last_confirmed import LastConfirmedRead, LongPoll, Proof
from spark_ledger.protocol.quorum import is_told
from spark_ledger.types import BookieId, BookieStatus, EntryId
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


def test_recovery_takes_the_highest_answer_that_is_supported_of_a_coverage() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=True)
    assert not round_.answer(told(0, OK, 4))
    assert not round_.answer(told(0, OK, 9)), "a repeated answer counts once"
    assert round_.answer(told(2, OK, 7))
    assert round_.result == 4 and round_.error is None, "one of the two may lie"
    assert not round_.answer(told(1, OK, 99)), "the round is over"
    assert round_.result == 4


def test_reader_hears_the_others_when_one_bookie_says_more() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=False)
    assert not round_.answer(told(0, OK, 4))
    assert not round_.answer(told(2, OK, 7)), "b1 may know it too"
    assert round_.is_covered and round_.result is None
    assert round_.answer(told(1, OK, 6))
    assert round_.result == 6


def test_reader_that_waits_no_longer_believes_nobody_alone_and_asks_for_a_proof() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=False)
    round_.answer(told(0, OK, 4))
    round_.answer(says(2, 7, 8))
    round_.give_up()
    assert round_.result == 4, "b2 may lie, whoever is silent beside it"
    assert round_.proofs == [Proof(2, BookieId("b2"), EntryId(8))]
    round_.prove(EntryId(7))
    assert round_.result == 7


def test_reader_does_not_wait_for_the_last_bookie_when_the_others_agree() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=False)
    assert not round_.answer(told(0, OK, 4))
    assert round_.answer(told(2, OK, 4))
    assert round_.result == 4


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
    assert round_.result in (4, -1)
    poll = LongPoll(ledger((3, 3, 2), (0, "b0 b1 b2")), EntryId(3))
    poll.answer(0, status, EntryId(9))
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
    assert round_.result == -1 and round_.hints == [3], "b1 alone may lie: recovery proves it"


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


def test_a_poll_ends_with_the_first_news_that_is_supported() -> None:
    round_ = poll()
    assert not round_.answer(0, OK, EntryId(6))
    assert round_.newest == 5
    assert round_.answer(2, OK, EntryId(9))
    assert round_.newest == 6, "b0 and b2 know it, so one honest bookie does"


def test_a_poll_ends_with_the_first_news_where_every_bookie_has_to_be_honest() -> None:
    round_ = LongPoll(ledger((2, 2, 2), (0, "b0 b1")), EntryId(5))
    assert round_.answer(0, OK, EntryId(6))
    assert round_.newest == 6


@pytest.mark.parametrize("status", [DOWN, BookieStatus.TOO_MANY_REQUESTS])
def test_one_bookie_alone_has_to_prove_what_it_says_when_another_gives_no_answer(
    status: BookieStatus,
) -> None:
    """A bookie that lies and one that cannot be asked are two bad ones: neither makes the other
    believed."""
    round_ = poll()
    assert not round_.answer(1, OK, EntryId(7), EntryId(8))
    assert round_.proofs == [], "b0 and b2 are still asked"
    assert not round_.answer(0, status, EntryId(-1))
    assert round_.newest == 5
    assert round_.proofs == [Proof(1, BookieId("b1"), EntryId(8))]
    round_.prove(EntryId(7))
    assert round_.newest == 7 and round_.proofs == []


@pytest.mark.parametrize("status", [DOWN, BookieStatus.TOO_MANY_REQUESTS])
def test_end_that_one_of_three_knows_is_proved_when_another_gives_no_answer(
    status: BookieStatus,
) -> None:
    """Seed 61266: one was empty, one was busy, and the third alone had the entry."""
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=False)
    round_.answer(told(0, NO_LEDGER))
    round_.answer(says(1, 2, 6))
    round_.answer(told(2, status))
    assert round_.result == -1
    assert round_.proofs == [Proof(1, BookieId("b1"), EntryId(6))]


def test_a_lie_of_one_bookie_is_not_believed_and_does_not_end_a_poll() -> None:
    round_ = poll()
    assert not round_.answer(1, OK, EntryId(2**62))
    assert not round_.answer(0, OK, EntryId(5))
    assert round_.answer(2, OK, EntryId(5))
    assert round_.newest == 5


def test_a_busy_bookie_makes_no_other_one_believed() -> None:
    round_ = poll()
    assert not round_.answer(0, BookieStatus.TOO_MANY_REQUESTS, EntryId(-1))
    assert not round_.answer(1, OK, EntryId(2**62))
    assert round_.answer(2, OK, EntryId(5))
    assert round_.newest == 5


def test_supporters_of_different_write_sets_do_not_add_up() -> None:
    """E6 WQ3 AQ2: one of each three may lie, so two that share no write set may both."""
    metadata = ledger((6, 3, 2), (0, "b0 b1 b2 b3 b4 b5"))
    for second, believed in ((3, 5), (2, 9)):
        round_ = LongPoll(metadata, EntryId(5))
        round_.answer(0, OK, EntryId(9))
        round_.answer(second, OK, EntryId(9))
        assert round_.newest == believed


@pytest.mark.parametrize("claim", [-2, -(2**63)])
def test_an_impossible_number_is_no_answer(claim: int) -> None:
    round_ = poll()
    assert not round_.answer(0, OK, EntryId(claim))
    assert not round_.answer(1, OK, EntryId(6))
    assert round_.answer(2, OK, EntryId(6))
    assert round_.newest == 6


def test_a_poll_ends_when_nobody_else_can_know() -> None:
    round_ = poll()
    assert not round_.answer(0, OK, EntryId(5))
    assert round_.answer(1, NO_LEDGER, EntryId(-1))
    assert round_.newest == 5


def test_a_poll_ends_when_all_have_answered() -> None:
    round_ = poll()
    assert not round_.answer(0, DOWN, EntryId(-1))
    assert not round_.answer(1, OK, EntryId(3))
    assert round_.answer(2, DOWN, EntryId(99))
    assert round_.newest == 5, "an older answer takes nothing back, a failure tells nothing"


TWO_COPIES = ledger((2, 2, 1), (0, "b0 b1"))
"""Of which one has to answer: what one of them says is never believed by agreement alone."""


def says(bookie_index: int, last: int, last_entry: int) -> LastConfirmedAnswer:
    return LastConfirmedAnswer(bookie_index, OK, EntryId(last), "", EntryId(last_entry))


def test_what_one_of_two_says_is_believed_when_an_entry_proves_it() -> None:
    round_ = LastConfirmedRead(TWO_COPIES, fence=False)
    round_.answer(told(0, NO_LEDGER))
    assert round_.answer(says(1, 5, 6))
    assert round_.result == -1
    assert round_.proofs == [Proof(1, BookieId("b1"), EntryId(6))]
    round_.prove(EntryId(4))
    assert round_.result == 4, "the rest was announced, and no entry carries it"
    round_.prove(EntryId(5))
    assert round_.result == 5 and round_.proofs == []
    round_.prove(EntryId(4))
    assert round_.result == 5, "an older proof takes nothing back"


def test_proof_never_takes_back_what_is_agreed() -> None:
    round_ = LastConfirmedRead(TWO_COPIES, fence=False)
    round_.answer(says(0, 3, 4))
    round_.answer(says(1, 5, 6))
    round_.prove(EntryId(1))
    assert round_.result == 3


def test_highest_claim_is_proved_first_and_an_empty_bookie_not_at_all() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 1), (0, "b0 b1 b2")), fence=False)
    for answer in (says(0, 4, 5), says(1, 8, 9), says(2, 2**62, -1)):
        round_.answer(answer)
    assert round_.result == 4, "three have to agree"
    assert [proof.bookie_index for proof in round_.proofs] == [1]


def test_proofs_are_in_the_order_of_what_is_said_and_not_of_what_is_held() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 1), (0, "b0 b1 b2")), fence=False)
    for answer in (says(0, 4, 9), says(1, 8, 8), says(2, -1, 20)):
        round_.answer(answer)
    assert [(proof.bookie_index, proof.entry_id) for proof in round_.proofs] == [(1, 8), (0, 9)]


def test_second_answer_of_a_bookie_that_failed_to_answer_counts_for_nothing() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=True)
    assert not round_.answer(told(0, DOWN))
    assert not round_.answer(told(0, OK, 4)), "to an earlier question"
    assert not round_.answer(told(1, OK, 4))
    assert round_.answer(told(2, OK, 4)) and round_.result == 4


def test_nothing_is_proved_where_agreement_suffices() -> None:
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=False)
    for index, last in enumerate((4, 4, 2**62)):
        round_.answer(says(index, last, last))
    assert round_.result == 4 and round_.proofs == []


@pytest.mark.parametrize("status", [OK, NO_LEDGER])
def test_bookies_that_know_of_nothing_have_answered(status: BookieStatus) -> None:
    """They agree that nothing is confirmed: nobody is asked to prove more."""
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=False)
    for answer in (says(0, 5, 6), told(1, status), told(2, status)):
        round_.answer(answer)
    assert round_.result == -1 and round_.proofs == []


def test_bookie_that_says_an_impossible_number_lets_another_prove_what_it_says() -> None:
    """It is as bad as one that cannot be asked."""
    round_ = LastConfirmedRead(ledger((3, 3, 2), (0, "b0 b1 b2")), fence=False)
    for answer in (says(0, 5, 6), told(1, OK, -2), told(2, OK)):
        round_.answer(answer)
    assert round_.result == -1
    assert round_.proofs == [Proof(0, BookieId("b0"), EntryId(6))]


def test_bookie_that_cannot_be_read_has_not_answered() -> None:
    """One of two copies has to be asked, and nobody can tell which one has the end."""
    round_ = LastConfirmedRead(TWO_COPIES, fence=False)
    round_.answer(told(0, NO_LEDGER))
    round_.answer(says(1, 5, 6))
    round_.fail(1)
    assert round_.result is None and isinstance(round_.error, BookieUnavailableError)
    assert "b1: its newest entry cannot be read" in str(round_.error)
    assert round_.proofs == [], "a round that has failed asks for nothing more"


def test_others_suffice_without_the_bookie_that_cannot_be_read() -> None:
    round_ = LastConfirmedRead(ledger((4, 4, 2), (0, "b0 b1 b2 b3")), fence=False)
    for index, last in enumerate((1, 2, 3, 9)):
        round_.answer(says(index, last, last + 1))
    assert round_.result == 2
    round_.fail(3)
    assert round_.error is None and round_.result == 2, "what it said still supports the others"
    assert [proof.bookie_index for proof in round_.proofs] == [2]


def test_bookie_that_cannot_be_read_has_answered_once_another_proves_what_it_says() -> None:
    round_ = LastConfirmedRead(ledger((2, 2, 1), (0, "b0 b1")), fence=False)
    round_.answer(says(0, 4, 6))
    round_.answer(says(1, 5, 6))
    round_.prove(EntryId(5))
    round_.fail(1)
    assert round_.error is None and round_.result == 5


def test_round_that_has_failed_fails_once() -> None:
    """Two of three cannot be read; the first of them is one too many already."""
    round_ = LastConfirmedRead(ledger((3, 3, 1), (0, "b0 b1 b2")), fence=False)
    for index, last in enumerate((1, 4, 9)):
        round_.answer(says(index, last, last + 1))
    round_.fail(2)
    round_.fail(1)
    assert "b2: its newest entry cannot be read" in str(round_.error)


def test_poll_is_ended_by_a_proof() -> None:
    round_ = LongPoll(TWO_COPIES, EntryId(5))
    assert not round_.answer(0, OK, EntryId(8), EntryId(9))
    assert round_.proofs == [Proof(0, BookieId("b0"), EntryId(9))]
    assert not round_.answer(1, NO_LEDGER, EntryId(-1)) or round_.newest == 5
    round_.prove(EntryId(8))
    assert round_.newest == 8 and round_.proofs == []


def test_poll_goes_on_without_a_bookie_that_cannot_be_read() -> None:
    round_ = LongPoll(TWO_COPIES, EntryId(5))
    round_.answer(0, OK, EntryId(8), EntryId(9))
    round_.fail(0)
    assert round_.newest == 5 and round_.proofs == []


def test_told_is_what_every_reader_believes() -> None:
    """Whoever fails to answer: every set of answers that covers the ensemble shows it."""
    for shape in ((2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 3, 2), (5, 3, 2)):
        metadata = ledger(shape, (0, " ".join(f"b{i}" for i in range(shape[0]))))
        indexes = range(shape[0])
        for knowing in subsets(indexes):
            if not is_told(frozenset(knowing), metadata.quorums):
                continue
            for silent in subsets(indexes):
                round_ = LastConfirmedRead(metadata, fence=False)
                order = [i for i in indexes if i not in knowing] + list(knowing)
                for index in order:
                    status = DOWN if index in silent else OK if index in knowing else NO_LEDGER
                    round_.answer(told(index, status, 7))
                assert round_.error is not None or round_.result == 7, (shape, knowing, silent)


def subsets(indexes: range) -> list[tuple[int, ...]]:
    return [each for count in range(len(indexes) + 1) for each in combinations(indexes, count)]
