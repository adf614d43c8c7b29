"""Recovery writes back what it finds and replaces bookies that fail meanwhile."""

from __future__ import annotations

from spark_ledger.errors import (
    RecoveryError,
    UnauthorizedError,
)
from spark_ledger.limits.client import STALLED_BOOKIES_WAIT_S
from spark_ledger.protocol.events import (
    ChooseBookies,
    CloseAppender,
    OpenAppender,
    SendEntries,
    TellLength,
    WriteMetadata,
)
from spark_ledger.types import BookieId, BookieStatus, LedgerState
from tests.unit.spark_ledger.protocol.ledgers import fragment, ids, ledger, one, only
from tests.unit.spark_ledger.protocol.recovery_driver import (
    DOWN,
    NO,
    OK,
    REFUSED,
    Recoverer,
    error_of,
    found_one,
)


def test_replacements_stay_in_memory_until_the_close() -> None:
    recoverer = found_one()
    assert recoverer.end(2, NO, 1) == [], "the end is known already"
    asked = one(recoverer.fail(1, "b1"), ChooseBookies)
    assert asked.indexes == (1,) and asked.excluded == set(ids("b0 b1 b2"))
    assert recoverer.fail(1, "b1") == [], "known already"
    recoverer.ack(0, "b0", 0)
    assert recoverer.ack(2, "b2", 0) == [], "nothing is confirmed during a change"
    commands = recoverer.choose(i1="b3")
    assert not only(commands, WriteMetadata)
    assert OpenAppender(1, BookieId("b3")) in commands
    closing = one(recoverer.length(10), WriteMetadata).metadata
    assert closing.fragments == (fragment(0, "b0 b3 b2"),) and closing.is_closed


def test_missing_replacement_that_is_not_needed_is_passed_over() -> None:
    recoverer = found_one()
    recoverer.fail(1, "b1")
    recoverer.ack(0, "b0", 0)
    recoverer.ack(2, "b2", 0)
    assert one(recoverer.choose(), TellLength)
    assert recoverer.choose() == [], "nothing was asked"


def test_replacement_of_live_bookie_is_ignored() -> None:
    recoverer = found_one()
    recoverer.fail(1, "b1")
    recoverer.ack(0, "b0", 0)
    recoverer.ack(2, "b2", 0)
    commands = recoverer.choose(i0="b3")
    assert one(commands, TellLength) and not only(commands, OpenAppender)
    closing = one(recoverer.length(10), WriteMetadata).metadata
    assert closing.fragments == (fragment(0, "b0 b1 b2"),)


def test_a_second_failure_is_handled_first() -> None:
    recoverer = found_one()
    recoverer.fail(1, "b1")
    assert recoverer.fail(0, "b0") == [CloseAppender(0)]
    assert one(recoverer.choose(i1="b3"), ChooseBookies).indexes == (0,)


def test_recovery_closes_when_ack_quorum_bookies_hold_what_it_found_and_not_before() -> None:
    recoverer = found_one()
    recoverer.end(2, NO, 1)
    assert recoverer.ack(0, "b0", 0) == [], "one of AQ = 2 (rule P16)"
    assert recoverer.ack(0, "b0", 0) == [], "the same bookie, once more"
    assert one(recoverer.ack(2, "b2", 0), TellLength)


def test_write_back_below_ack_quorum_fails() -> None:
    recoverer = found_one()
    recoverer.fail(1, "b1")
    recoverer.fail(0, "b0")
    recoverer.choose()
    assert isinstance(error_of(recoverer.choose()), RecoveryError)


def test_replacement_that_keeps_refusing_fails_the_recovery() -> None:
    metadata = ledger((2, 2, 2), (0, "b0 b1"), state=LedgerState.IN_RECOVERY)
    recoverer = Recoverer(metadata)
    recoverer.lac(0, -1)
    recoverer.bring(0, 0)
    recoverer.fail(1, "b1")
    recoverer.choose(i1="b1")
    assert isinstance(error_of(recoverer.fail(1, "b1")), RecoveryError)


def test_a_wrong_password_when_writing_back() -> None:
    recoverer = found_one()
    assert one(recoverer.fail(1, "b1", REFUSED), ChooseBookies).failed == {}
    recoverer.fail(2, "b2", REFUSED)
    recoverer.choose()
    assert isinstance(error_of(recoverer.choose()), UnauthorizedError)


def test_a_failure_with_nothing_to_write_waits() -> None:
    recoverer = Recoverer()
    assert recoverer.fail(1, "b1") == [], "no appender yet"
    recoverer.fenced()
    assert recoverer.fail(1, "b1", DOWN) == [CloseAppender(1)]
    commands = recoverer.bring(2, 0)
    assert one(commands, ChooseBookies).indexes == (1,)
    assert [send.bookie_index for send in only(commands, SendEntries)] == [0, 2]


def test_a_silent_bookie_fails_after_the_timeout() -> None:
    recoverer = Recoverer()
    assert recoverer.tick(1.0) == []
    recoverer.fenced()
    recoverer.bring(2, 0)
    recoverer.ack(2, "b2", 0)
    assert recoverer.tick(5.9) == []
    commands = recoverer.tick(6.0)
    assert only(commands, CloseAppender) == [CloseAppender(0), CloseAppender(1)]
    asked = one(commands, ChooseBookies)
    assert asked.indexes == (0, 1) and asked.failed == {}, "a recovery waits for nobody's return"


def test_a_bookie_that_is_busy_for_very_long_fails() -> None:
    recoverer = found_one()
    recoverer.ack(0, "b0", 0)
    for second in range(int(STALLED_BOOKIES_WAIT_S)):
        recoverer.now = float(second)
        recoverer.fail(1, "b1", BookieStatus.TOO_MANY_REQUESTS)
        recoverer.fail(2, "b2", BookieStatus.TOO_MANY_REQUESTS)
        assert not only(recoverer.tick(second + 0.99), ChooseBookies)
    asked = one(recoverer.tick(STALLED_BOOKIES_WAIT_S), ChooseBookies)
    assert asked.indexes == (1, 2)


def test_each_replacement_keeps_those_before_it() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.bring(2, 0)
    recoverer.fail(1, "b1")
    recoverer.choose(i1="b3")
    for index, bookie in enumerate(ids("b0 b3 b2")):
        recoverer.ack(index, bookie, 0)
    recoverer.bring(2, 1)
    recoverer.fail(0, "b0")
    recoverer.choose(i0="b4")
    recoverer.ack(2, "b2", 1)
    recoverer.ack(1, "b3", 1)
    recoverer.end(0, NO, 2)
    assert one(recoverer.end(1, NO, 2), TellLength)
    closing = one(recoverer.length(20), WriteMetadata).metadata
    assert closing.fragments == (fragment(0, "b0 b3 b2"), fragment(1, "b4 b3 b2"))


def test_what_a_live_bookie_owes_may_be_sent_again() -> None:
    """The shell keeps the frames of entries above this."""
    recoverer = found_one()
    assert recoverer.machine.held_by_all == -1
    recoverer.ack(0, "b0", 0)
    recoverer.fail(1, "b1", BookieStatus.TOO_MANY_REQUESTS)
    assert recoverer.machine.held_by_all == -1
    recoverer.ack(2, "b2", 0)
    assert recoverer.machine.held_by_all == -1, "b1 will be sent it again"


def test_next_look_of_a_recovery_is_at_silence_or_at_who_was_not_replaced() -> None:
    recoverer = found_one()
    assert recoverer.machine.next_deadline == 5.0
    recoverer.ack(0, "b0", 0)
    recoverer.now = 2.0
    recoverer.fail(1, "b1")
    recoverer.choose()
    assert recoverer.machine.next_deadline == 5.0, "b2 is silent"
    recoverer.now = 4.0
    recoverer.end(2, NO, 1)
    one(recoverer.ack(2, "b2", 0), TellLength)
    assert recoverer.machine.next_deadline is None, "only an answer is waited for"


def test_nothing_is_found_or_asked_behind_the_end() -> None:
    recoverer = found_one()
    assert recoverer.bring(2, 1) == [], "two have denied it: nobody was promised it"
    assert recoverer.end(2, OK, 2) == []
    recoverer.ack(0, "b0", 0)
    assert one(recoverer.ack(2, "b2", 0), TellLength).entry_id == 0


def test_one_refusal_of_the_password_is_not_why_too_few_store_the_end() -> None:
    recoverer = found_one()
    recoverer.fail(1, "b1", REFUSED)
    recoverer.fail(2, "b2", DOWN)
    recoverer.choose()
    assert type(error_of(recoverer.choose())) is RecoveryError


def test_a_stale_acknowledgement_counts_nothing() -> None:
    recoverer = found_one()
    assert recoverer.ack(0, "b9", 0) == []
    assert Recoverer().ack(0, "b0", 0) == []
    assert recoverer.machine.last_add_confirmed == -1


def test_a_busy_bookie_is_sent_what_was_found_again() -> None:
    recoverer = found_one()
    assert recoverer.fail(1, "b1", BookieStatus.TOO_MANY_REQUESTS) == [CloseAppender(1)]
    due = recoverer.machine.next_deadline
    assert due is not None and due < 0.1
    again = recoverer.tick(due)
    assert one(again, OpenAppender).bookie_id == "b1" and len(only(again, SendEntries)) == 1
    recoverer.ack(0, "b0", 0)
    assert recoverer.ack(1, "b1", 0), "with two copies the end is stored"


def test_recovery_looks_again_for_a_replacement_when_that_is_due_and_not_later() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.bring(2, 0)
    recoverer.fail(1, "b1")
    recoverer.choose()
    assert recoverer.machine.next_deadline == 5.0
    recoverer.now = 3.0
    for index in (0, 2):
        recoverer.ack(index, f"b{index}", 0)
    recoverer.bring(2, 1)
    assert recoverer.machine.next_deadline == 5.0, "the others are silent at 8 only"
    assert one(recoverer.tick(5.0), ChooseBookies).indexes == (1,)
