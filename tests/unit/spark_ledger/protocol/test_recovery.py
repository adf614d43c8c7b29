"""The recovery machine, rule by rule. Whole stories are in ``tests/scenarios``."""

from __future__ import annotations

import pytest

from spark_ledger.errors import (
    FencedError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchEntryError,
    RecoveryError,
    UnauthorizedError,
)
from spark_ledger.protocol.events import (
    AddAcknowledged,
    AddFailed,
    Append,
    BookiesChosen,
    CancelRead,
    ChooseBookies,
    CloseAppender,
    Command,
    DeliverEntries,
    Done,
    EntriesRead,
    Failed,
    LastConfirmedAnswer,
    LengthRead,
    LengthUnknown,
    MetadataConflict,
    MetadataFailed,
    MetadataWritten,
    OpenAppender,
    ReadEnded,
    ReadEntries,
    ReadLastConfirmed,
    ReadLength,
    SendEntries,
    Tick,
    WriteMetadata,
)
from spark_ledger.protocol.recovery import Phase, RecoveryMachine
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerMetadata, LedgerState
from tests.unit.spark_ledger.protocol.ledgers import fragment, ids, ledger, one, only

OK, NO = BookieStatus.OK, BookieStatus.NO_SUCH_ENTRY
DOWN, DAMAGED, DENIED = (
    BookieStatus.UNAVAILABLE,
    BookieStatus.IO_ERROR,
    BookieStatus.UNAUTHORIZED,
)
OPEN = ledger((3, 3, 2), (0, "b0 b1 b2"))
MARKED = OPEN.with_changes(state=LedgerState.IN_RECOVERY)


class Recoverer:
    """A machine with short words for events."""

    def __init__(self, metadata: LedgerMetadata = MARKED) -> None:
        self.machine = RecoveryMachine(metadata, 4, now=0.0, add_timeout_s=5.0)
        self.now = 0.0
        self.started = self.machine.start()

    def lac(self, slot: int, last: int, status: BookieStatus = OK) -> list[Command]:
        event = LastConfirmedAnswer(slot, status, EntryId(last))
        return self.machine.handle(event, self.now)

    def fenced(self, last: int = -1) -> list[Command]:
        """Two of three answers: coverage."""
        self.lac(0, last)
        return self.lac(1, last)

    def bring(self, slot: int, last: int, lane: int = 0) -> list[Command]:
        return self.machine.handle(EntriesRead(slot, lane, EntryId(last)), self.now)

    def end(self, slot: int, status: BookieStatus, entry_id: int, lane: int = 0) -> list[Command]:
        return self.machine.handle(ReadEnded(slot, lane, status, EntryId(entry_id)), self.now)

    def ack(self, slot: int, bookie: str, last: int) -> list[Command]:
        event = AddAcknowledged(slot, BookieId(bookie), EntryId(last))
        return self.machine.handle(event, self.now)

    def fail(self, slot: int, bookie: str, status: BookieStatus = DAMAGED) -> list[Command]:
        return self.machine.handle(AddFailed(slot, BookieId(bookie), status), self.now)

    def choose(self, **replacements: str) -> list[Command]:
        chosen = {int(slot[1:]): BookieId(name) for slot, name in replacements.items()}
        return self.machine.handle(BookiesChosen(chosen), self.now)

    def length(self, length: int) -> list[Command]:
        return self.machine.handle(LengthRead(length), self.now)

    def written(self, metadata: LedgerMetadata, version: int = 5) -> list[Command]:
        return self.machine.handle(MetadataWritten(metadata, version), self.now)

    def conflict(self, metadata: LedgerMetadata, version: int = 6) -> list[Command]:
        return self.machine.handle(MetadataConflict(metadata, version), self.now)

    def tick(self, now: float) -> list[Command]:
        self.now = now
        return self.machine.handle(Tick(), now)


def error_of(commands: list[Command]) -> LedgerError:
    return one(commands, Failed).error


# -- marking ---------------------------------------------------------------------------------------


def test_a_closed_ledger_needs_no_recovery() -> None:
    closed = OPEN.with_changes(state=LedgerState.CLOSED)
    recoverer = Recoverer(closed)
    assert recoverer.started == [Done(closed, 4)]
    assert recoverer.lac(0, 3) == [], "it has ended"


def test_an_open_ledger_is_marked_before_anybody_is_fenced() -> None:
    recoverer = Recoverer(OPEN)
    assert recoverer.started == [WriteMetadata(MARKED, 4)]
    assert recoverer.lac(0, 3) == []
    asked: list[Command] = [ReadLastConfirmed(i, b, True) for i, b in enumerate(ids("b0 b1 b2"))]
    assert recoverer.written(MARKED) == asked


def test_a_ledger_in_recovery_is_fenced_at_once() -> None:
    assert len(only(Recoverer(MARKED).started, ReadLastConfirmed)) == 3


def test_marking_meets_a_change_of_ensemble() -> None:
    recoverer = Recoverer(OPEN)
    stored = ledger((3, 3, 2), (0, "b0 b1 b2"), (4, "b0 b3 b2"))
    again = one(recoverer.conflict(stored), WriteMetadata)
    assert again.version == 6 and again.metadata.fragments == stored.fragments


@pytest.mark.parametrize("by_us", [True, False])
def test_marking_meets_a_mark(by_us: bool) -> None:
    recoverer = Recoverer(OPEN)
    stored = MARKED if by_us else MARKED.with_changes(fragments=(fragment(0, "b0 b1 b9"),))
    asked = only(recoverer.conflict(stored), ReadLastConfirmed)
    assert [question.bookie_id for question in asked] == list(stored.last_fragment.bookies)


def test_marking_meets_the_closed_ledger() -> None:
    stored = OPEN.with_changes(state=LedgerState.CLOSED)
    assert Recoverer(OPEN).conflict(stored) == [Done(stored, 6)]


def test_the_metadata_store_fails() -> None:
    recoverer = Recoverer(OPEN)
    failed = MetadataFailed(MetadataUnavailableError("gone"))
    error = error_of(recoverer.machine.handle(failed, 0.0))
    assert isinstance(error, MetadataUnavailableError)


# -- fencing ---------------------------------------------------------------------------------------


def test_reading_begins_behind_the_highest_confirmed_entry_with_fencing() -> None:
    recoverer = Recoverer()
    commands = recoverer.fenced(3)
    reads = only(commands, ReadEntries)
    assert [(read.slot, read.first, read.fence) for read in reads] == [
        (0, 4, True),
        (1, 4, True),
        (2, 4, True),
    ]
    assert len(only(commands, OpenAppender)) == 3
    assert recoverer.lac(2, 99) == [], "too late"


def test_reading_begins_in_the_last_fragment() -> None:
    metadata = ledger((2, 2, 2), (0, "b0 b1"), (5, "b0 b2"), state=LedgerState.IN_RECOVERY)
    recoverer = Recoverer(metadata)
    assert {read.first for read in only(recoverer.lac(0, -1), ReadEntries)} == {5}


def test_too_few_can_be_fenced() -> None:
    recoverer = Recoverer()
    recoverer.lac(0, 3)
    recoverer.lac(1, -1, DOWN)
    assert isinstance(error_of(recoverer.lac(2, -1, DOWN)), RecoveryError)
    assert recoverer.machine.phase is Phase.ENDED


def test_a_wrong_password_when_fencing() -> None:
    assert isinstance(error_of(Recoverer().lac(0, -1, DENIED)), UnauthorizedError)


# -- reading ---------------------------------------------------------------------------------------


def test_two_negatives_end_it_without_the_third() -> None:
    recoverer = Recoverer()
    recoverer.fenced(3)
    assert recoverer.end(0, NO, 4) == []
    commands = recoverer.end(1, NO, 4)
    assert commands == [CancelRead(2, 0), ReadLength(EntryId(3))]
    closing = one(recoverer.length(40), WriteMetadata)
    assert (closing.metadata.last_entry_id, closing.metadata.length) == (3, 40)
    assert recoverer.written(closing.metadata)[-1] == Done(closing.metadata, 5)


def test_an_empty_ledger_has_no_length_to_ask_for() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.end(0, NO, 0)
    closing = one(recoverer.end(1, BookieStatus.NO_SUCH_LEDGER, 0), WriteMetadata)
    assert (closing.metadata.last_entry_id, closing.metadata.length) == (-1, 0)


def test_one_copy_is_enough_and_goes_to_the_write_quorum() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.end(0, NO, 0)
    commands = recoverer.bring(2, 1)
    assert one(commands, DeliverEntries) == DeliverEntries(2, 0, EntryId(0), EntryId(1))
    assert only(commands, SendEntries) == [
        SendEntries(s, EntryId(0), EntryId(1)) for s in (0, 1, 2)
    ]
    assert [(r.slot, r.first) for r in only(commands, ReadEntries)] == [(0, 2)]
    assert recoverer.bring(1, 0) == [], "brought by 2 already"
    assert only(recoverer.end(1, NO, 1), ReadEntries)[0].first == 2, "its 'no' is of an older entry"
    recoverer.end(0, NO, 2)
    assert only(recoverer.end(2, NO, 2), ReadLength) == [], "not stored yet"
    recoverer.ack(0, "b0", 1)
    assert only(recoverer.ack(2, "b2", 1), ReadLength) == [ReadLength(EntryId(1))]
    assert recoverer.ack(1, "b1", 1) == [] and recoverer.bring(1, 3) == []
    assert recoverer.end(1, NO, 4) == [] and recoverer.fail(1, "b1") == []


def test_unknown_is_never_negative() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.end(0, NO, 0)
    recoverer.end(1, BookieStatus.UNKNOWN_STATE, 0)
    error = error_of(recoverer.end(2, DOWN, 0))
    assert isinstance(error, RecoveryError)
    assert "slot 1: unknown_state" in str(error) and "entry 0" in str(error)


def test_a_no_to_another_entry_than_the_next_counts_nothing() -> None:
    recoverer = Recoverer()
    recoverer.fenced(3)
    recoverer.end(0, NO, 9)
    assert recoverer.end(1, NO, 4) == []
    assert isinstance(error_of(recoverer.end(2, NO, 9)), RecoveryError)


def test_a_damaged_copy_of_a_found_entry_is_asked_about_the_next() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.bring(2, 1)
    assert [r.first for r in only(recoverer.end(0, DAMAGED, 0), ReadEntries)] == [2]


def test_the_byte_cap_is_no_end() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.bring(2, 1)
    assert [(r.slot, r.first) for r in only(recoverer.end(2, OK, 2), ReadEntries)] == [(2, 2)]


def test_a_bookie_that_says_nothing_again_and_again_is_unknown() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    assert recoverer.end(0, OK, 0) == [] and recoverer.end(1, OK, 0) == []
    assert isinstance(error_of(recoverer.end(2, NO, 0)), RecoveryError)


def test_a_wrong_password_when_reading() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    assert isinstance(error_of(recoverer.end(0, DENIED, 0)), UnauthorizedError)


def striped() -> Recoverer:
    """E3 WQ2 AQ2, fenced: three lanes, one negative ends an entry."""
    metadata = ledger((3, 2, 2), (0, "b0 b1 b2"), state=LedgerState.IN_RECOVERY)
    recoverer = Recoverer(metadata)
    recoverer.fenced()
    return recoverer


def test_the_first_hole_of_any_lane_ends_the_ledger() -> None:
    recoverer = striped()
    recoverer.bring(1, 4, lane=1)
    assert only(recoverer.end(2, NO, 2, lane=2), ReadLength) == [], "is there an entry 0?"
    commands = recoverer.bring(0, 0, lane=0)
    assert {send.last for send in only(commands, SendEntries)} == {0, 1}
    recoverer.ack(0, "b0", 0)
    recoverer.ack(1, "b1", 1)
    assert only(recoverer.ack(2, "b2", 1), ReadLength) == [ReadLength(EntryId(1))]


def test_a_lane_behind_the_hole_need_not_answer() -> None:
    recoverer = striped()
    recoverer.end(1, DOWN, 1, lane=1)
    assert recoverer.end(2, DOWN, 1, lane=1) == [], "entry 0 decides"
    commands = recoverer.end(0, NO, 0, lane=0)
    assert one(commands, WriteMetadata).metadata.last_entry_id == -1


def test_a_lane_before_the_hole_must_answer() -> None:
    recoverer = striped()
    recoverer.end(1, NO, 1, lane=1)
    recoverer.end(0, DOWN, 0, lane=0)
    assert "entry 0" in str(error_of(recoverer.end(1, DOWN, 0, lane=0)))


# -- writing back ----------------------------------------------------------------------------------


def found_one() -> Recoverer:
    """Entry 0 was found on b2 and is being written back; two have told that it is the last."""
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.bring(2, 0)
    recoverer.end(0, NO, 1)
    recoverer.end(1, NO, 1)
    return recoverer


def test_replacements_stay_in_memory_until_the_close() -> None:
    recoverer = found_one()
    assert recoverer.end(2, NO, 1) == [], "the end is known already"
    asked = one(recoverer.fail(1, "b1"), ChooseBookies)
    assert asked.slots == (1,) and asked.members == set(ids("b0 b1 b2"))
    assert recoverer.fail(1, "b1") == [], "known already"
    recoverer.ack(0, "b0", 0)
    assert recoverer.ack(2, "b2", 0) == [], "nothing is confirmed during a change"
    commands = recoverer.choose(s1="b3")
    assert not only(commands, WriteMetadata)
    assert OpenAppender(1, BookieId("b3")) in commands
    closing = one(recoverer.length(10), WriteMetadata).metadata
    assert closing.fragments == (fragment(0, "b0 b3 b2"),) and closing.is_closed


def test_nobody_can_take_a_place_that_is_not_needed() -> None:
    recoverer = found_one()
    recoverer.fail(1, "b1")
    recoverer.ack(0, "b0", 0)
    recoverer.ack(2, "b2", 0)
    assert one(recoverer.choose(), ReadLength)
    assert recoverer.choose() == [], "nothing was asked"


def test_what_is_not_failed_is_not_replaced() -> None:
    recoverer = found_one()
    recoverer.fail(1, "b1")
    recoverer.ack(0, "b0", 0)
    recoverer.ack(2, "b2", 0)
    commands = recoverer.choose(s0="b3")
    assert one(commands, ReadLength) and not only(commands, OpenAppender)
    closing = one(recoverer.length(10), WriteMetadata).metadata
    assert closing.fragments == (fragment(0, "b0 b1 b2"),)


def test_a_second_failure_is_handled_first() -> None:
    recoverer = found_one()
    recoverer.fail(1, "b1")
    assert recoverer.fail(0, "b0") == [CloseAppender(0)]
    assert one(recoverer.choose(s1="b3"), ChooseBookies).slots == (0,)


def test_too_few_to_write_back_to() -> None:
    recoverer = found_one()
    recoverer.fail(1, "b1")
    recoverer.fail(0, "b0")
    recoverer.choose()
    assert isinstance(error_of(recoverer.choose()), RecoveryError)


def test_a_replacement_that_refuses_again_ends_it() -> None:
    metadata = ledger((2, 2, 2), (0, "b0 b1"), state=LedgerState.IN_RECOVERY)
    recoverer = Recoverer(metadata)
    recoverer.lac(0, -1)
    recoverer.bring(0, 0)
    recoverer.fail(1, "b1")
    recoverer.choose(s1="b1")
    assert isinstance(error_of(recoverer.fail(1, "b1")), RecoveryError)


def test_a_wrong_password_when_writing_back() -> None:
    assert isinstance(error_of(found_one().fail(1, "b1", DENIED)), UnauthorizedError)


def test_a_failure_with_nothing_to_write_waits() -> None:
    recoverer = Recoverer()
    assert recoverer.fail(1, "b1") == [], "no appender yet"
    recoverer.fenced()
    assert recoverer.fail(1, "b1", DOWN) == [CloseAppender(1)]
    commands = recoverer.bring(2, 0)
    assert one(commands, ChooseBookies).slots == (1,)
    assert [send.slot for send in only(commands, SendEntries)] == [0, 2]


def test_a_silent_bookie_fails_after_the_timeout() -> None:
    recoverer = Recoverer()
    assert recoverer.tick(1.0) == []
    recoverer.fenced()
    recoverer.bring(2, 0)
    recoverer.ack(2, "b2", 0)
    assert recoverer.tick(5.9) == []
    commands = recoverer.tick(6.0)
    assert only(commands, CloseAppender) == [CloseAppender(0), CloseAppender(1)]
    assert one(commands, ChooseBookies).slots == (0, 1)


def test_a_stale_acknowledgement_counts_nothing() -> None:
    recoverer = found_one()
    assert recoverer.ack(0, "b9", 0) == []
    assert Recoverer().ack(0, "b0", 0) == []
    assert recoverer.machine.last_add_confirmed == -1


# -- closing ---------------------------------------------------------------------------------------


def closing() -> tuple[Recoverer, LedgerMetadata]:
    """Up to the closing write, with a fragment changed in memory."""
    metadata = ledger((3, 3, 2), (0, "b0 b1 b2"), (4, "b0 b1 b2"), state=LedgerState.IN_RECOVERY)
    recoverer = Recoverer(metadata)
    recoverer.fenced(5)
    recoverer.bring(2, 6)
    recoverer.end(0, NO, 7)
    recoverer.end(1, NO, 7)
    recoverer.fail(1, "b1")
    recoverer.ack(0, "b0", 6)
    recoverer.ack(2, "b2", 6)
    recoverer.choose(s1="b3")
    return recoverer, one(recoverer.length(70), WriteMetadata).metadata


def test_the_close_carries_all_changes() -> None:
    recoverer, wanted = closing()
    assert wanted.fragments == (
        fragment(0, "b0 b1 b2"),
        fragment(4, "b0 b1 b2"),
        fragment(6, "b0 b3 b2"),
    )
    commands = recoverer.written(wanted)
    assert len(only(commands, CloseAppender)) == 3 and commands[-1] == Done(wanted, 5)
    assert recoverer.tick(100.0) == []


def test_a_lost_answer_is_recognised() -> None:
    recoverer, wanted = closing()
    assert recoverer.conflict(wanted)[-1] == Done(wanted, 6)


def test_another_recovery_was_faster() -> None:
    recoverer, wanted = closing()
    theirs = wanted.with_changes(last_entry_id=EntryId(5), length=60)
    assert recoverer.conflict(theirs)[-1] == Done(theirs, 6)


def test_rereplication_of_older_fragments_is_kept() -> None:
    recoverer, wanted = closing()
    stored = ledger((3, 3, 2), (0, "b0 b9 b2"), (4, "b0 b1 b2"), state=LedgerState.IN_RECOVERY)
    again = one(recoverer.conflict(stored), WriteMetadata)
    assert again.version == 6
    assert again.metadata.fragments == (fragment(0, "b0 b9 b2"), *wanted.fragments[1:])


@pytest.mark.parametrize(
    "stored",
    [
        ledger((3, 3, 2), (0, "b0 b1 b2"), (4, "b0 b1 b2")),
        ledger((3, 3, 2), (0, "b0 b1 b2"), (4, "b0 b8 b2"), state=LedgerState.IN_RECOVERY),
    ],
    ids=["open again", "another last ensemble"],
)
def test_a_ledger_that_moved_on_is_not_closed(stored: LedgerMetadata) -> None:
    recoverer, _ = closing()
    assert isinstance(error_of(recoverer.conflict(stored)), FencedError)


def test_the_length_cannot_be_read() -> None:
    recoverer = Recoverer()
    assert recoverer.length(3) == [], "not asked"
    recoverer.fenced(3)
    recoverer.end(0, NO, 4)
    recoverer.end(1, NO, 4)
    unknown = LengthUnknown(NoSuchEntryError("entry 3"))
    assert isinstance(error_of(recoverer.machine.handle(unknown, 0.0)), NoSuchEntryError)


def test_answers_to_nothing_asked_change_nothing() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    assert recoverer.written(MARKED, 9) == []
    stored = MARKED.with_changes(fragments=(fragment(0, "b7 b8 b9"),))
    assert recoverer.conflict(stored) == []
    assert recoverer.machine.metadata == MARKED, "reads keep to the ensemble they began with"
    with pytest.raises(AssertionError, match="not an event of a recovery"):
        recoverer.machine.handle(Append([1]), 0.0)
