"""Recovery marks, fences and finds the end. Whole stories are in ``tests/scenarios``."""

from __future__ import annotations

import pytest

from spark_ledger.errors import (
    MetadataUnavailableError,
    NoSuchEntryError,
    RecoveryError,
    UnauthorizedError,
)
from spark_ledger.protocol.ensemble import entry_range
from spark_ledger.protocol.events import (
    CancelRead,
    Command,
    DeliverEntries,
    Done,
    LengthUnknown,
    MetadataFailed,
    OpenAppender,
    ReadEntries,
    ReadLastConfirmed,
    ReadLength,
    SendEntries,
    TellLength,
    WriteMetadata,
)
from spark_ledger.protocol.recovery_phases import Phase
from spark_ledger.types import BookieStatus, EntryId, LedgerState
from tests.unit.spark_ledger.protocol.ledgers import fragment, ids, ledger, one, only
from tests.unit.spark_ledger.protocol.recovery_driver import (
    DAMAGED,
    DOWN,
    MARKED,
    NO,
    OK,
    OPEN,
    REFUSED,
    Recoverer,
    error_of,
)

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


def test_marking_after_ensemble_change_starts_again() -> None:
    recoverer = Recoverer(OPEN)
    stored = ledger((3, 3, 2), (0, "b0 b1 b2"), (4, "b0 b3 b2"))
    again = one(recoverer.conflict(stored), WriteMetadata)
    assert again.version == 6 and again.metadata.fragments == stored.fragments


@pytest.mark.parametrize("by_us", [True, False])
def test_marking_of_marked_ledger_goes_on(by_us: bool) -> None:
    recoverer = Recoverer(OPEN)
    stored = MARKED if by_us else MARKED.with_changes(fragments=(fragment(0, "b0 b1 b9"),))
    asked = only(recoverer.conflict(stored), ReadLastConfirmed)
    assert [question.bookie_id for question in asked] == list(stored.last_fragment.bookies)


def test_marking_of_closed_ledger_is_done() -> None:
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
    assert [(read.bookie_index, read.first, read.fence) for read in reads] == [
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


def test_fencing_without_coverage_fails() -> None:
    recoverer = Recoverer()
    recoverer.lac(0, 3)
    recoverer.lac(1, -1, DOWN)
    assert isinstance(error_of(recoverer.lac(2, -1, DOWN)), RecoveryError)
    assert recoverer.machine.phase is Phase.ENDED


def test_a_wrong_password_when_fencing() -> None:
    recoverer = Recoverer()
    assert recoverer.lac(0, -1, REFUSED) == [] and recoverer.lac(1, -1, REFUSED) == []
    assert isinstance(error_of(recoverer.lac(2, -1)), UnauthorizedError)


# -- proving ---------------------------------------------------------------------------------------


def proving(*hints: int) -> tuple[Recoverer, list[Command]]:
    """Two bookies say what is confirmed; what is asked then."""
    fragments = (0, "b3 b1 b2"), (4, "b0 b1 b2")
    recoverer = Recoverer(ledger((3, 3, 2), *fragments, state=LedgerState.IN_RECOVERY))
    recoverer.lac(0, hints[0])
    return recoverer, recoverer.lac(1, hints[1])


def unreadable(recoverer: Recoverer) -> list[Command]:
    error = LengthUnknown(NoSuchEntryError("nobody has it"))
    return recoverer.machine.handle(error, 0.0)


def test_recovery_starts_at_what_the_entry_of_the_highest_hint_carries() -> None:
    recoverer, commands = proving(5, 9)
    assert one(commands, ReadLength).wanted.first == 9
    reads = only(recoverer.length(100, 8), ReadEntries)
    assert [read.first for read in reads] == [9, 9, 9]
    assert recoverer.machine.last_add_confirmed == 8


def test_a_hint_whose_entry_nobody_has_is_not_believed() -> None:
    recoverer, commands = proving(2**62, 9)
    assert one(commands, ReadLength).wanted.first == 2**62
    assert one(unreadable(recoverer), ReadLength).wanted.first == 9
    assert recoverer.length(100, 6) and recoverer.machine.last_add_confirmed == 6


def test_without_a_proof_recovery_reads_the_whole_last_fragment() -> None:
    recoverer, _ = proving(2**62, 2**62)
    assert [read.first for read in only(unreadable(recoverer), ReadEntries)] == [4, 4, 4]
    assert recoverer.machine.last_add_confirmed == 3


def test_a_proof_never_leads_below_the_last_fragment() -> None:
    recoverer, _ = proving(-1, 5)
    assert [read.first for read in only(recoverer.length(100, 2), ReadEntries)] == [4, 4, 4]


def test_hints_below_the_last_fragment_need_no_proof() -> None:
    _, commands = proving(3, -1)
    assert len(only(commands, ReadEntries)) == 3 and not only(commands, ReadLength)


# -- reading ---------------------------------------------------------------------------------------


def test_two_denials_end_the_ledger_without_the_third() -> None:
    recoverer = Recoverer()
    recoverer.fenced(3)
    assert recoverer.end(0, NO, 4) == []
    commands = recoverer.end(1, NO, 4)
    assert commands == [CancelRead(2, 0), ReadLength(entry_range(MARKED, 3))]
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
    assert [(r.bookie_index, r.first) for r in only(commands, ReadEntries)] == [(0, 2)]
    assert recoverer.bring(1, 0) == [], "brought by 2 already"
    assert only(recoverer.end(1, NO, 1), ReadEntries)[0].first == 2, (
        "its denial is of an older entry"
    )
    recoverer.end(0, NO, 2)
    assert only(recoverer.end(2, NO, 2), TellLength) == [], "not stored yet"
    recoverer.ack(0, "b0", 1)
    assert only(recoverer.ack(2, "b2", 1), TellLength) == [TellLength(EntryId(1))]
    assert recoverer.ack(1, "b1", 1) == [] and recoverer.bring(1, 3) == []
    assert recoverer.end(1, NO, 4) == [] and recoverer.fail(1, "b1") == []


def test_unknown_is_never_a_denial() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.end(0, NO, 0)
    recoverer.end(1, BookieStatus.UNKNOWN_STATE, 0)
    error = error_of(recoverer.end(2, DOWN, 0))
    assert isinstance(error, RecoveryError)
    assert "b1: unknown_state" in str(error) and "entry 0" in str(error)


def test_denial_of_another_entry_counts_nothing() -> None:
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
    assert [(r.bookie_index, r.first) for r in only(recoverer.end(2, OK, 2), ReadEntries)] == [
        (2, 2)
    ]


def test_bookie_that_ends_reads_without_entries_is_unknown() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    assert recoverer.end(0, OK, 0) == [] and recoverer.end(1, OK, 0) == []
    assert isinstance(error_of(recoverer.end(2, NO, 0)), RecoveryError)


def test_a_wrong_password_when_reading() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    assert recoverer.end(0, REFUSED, 0) == [] and recoverer.end(1, REFUSED, 0) == []
    assert isinstance(error_of(recoverer.end(2, NO, 0)), UnauthorizedError)


def test_one_bookie_that_refuses_the_password_does_not_end_a_recovery() -> None:
    recoverer = Recoverer()
    recoverer.fenced(3)
    assert recoverer.end(0, REFUSED, 4) == [] and recoverer.end(1, NO, 4) == []
    assert one(recoverer.end(2, NO, 4), ReadLength)


def striped() -> Recoverer:
    """E3 WQ2 AQ2, fenced: three lanes, one denial ends the ledger."""
    metadata = ledger((3, 2, 2), (0, "b0 b1 b2"), state=LedgerState.IN_RECOVERY)
    recoverer = Recoverer(metadata)
    recoverer.fenced()
    return recoverer


def test_the_first_hole_of_any_lane_ends_the_ledger() -> None:
    recoverer = striped()
    recoverer.bring(1, 4, lane=1)
    assert only(recoverer.end(2, NO, 2, lane=2), TellLength) == [], "is there an entry 0?"
    commands = recoverer.bring(0, 0, lane=0)
    assert {send.last for send in only(commands, SendEntries)} == {0, 1}
    recoverer.ack(0, "b0", 0)
    recoverer.ack(1, "b1", 1)
    assert only(recoverer.ack(2, "b2", 1), TellLength) == [TellLength(EntryId(1))]


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
    commands = recoverer.end(1, DOWN, 0, lane=0)
    assert "entry 0" in str(error_of(commands))
    cancelled = [(cancel.bookie_index, cancel.lane) for cancel in only(commands, CancelRead)]
    assert sorted(cancelled) == [(0, 2), (2, 1), (2, 2)]


def test_recovery_that_fails_for_two_reasons_says_the_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one event: what was found cannot be stored, and nobody tells what stands behind it."""
    recoverer = striped()
    recoverer.bring(1, 4, lane=1)
    recoverer.end(1, DOWN, 7, lane=1)
    recoverer.end(2, DOWN, 7, lane=1)
    recoverer.bring(2, 8, lane=2)
    recoverer.fail(0, "b0")
    recoverer.fail(1, "b1")
    # As of bookies that have failed before: others are not looked for at once.
    monkeypatch.setattr(recoverer.machine._replication, "failed_due", lambda _now: ())
    error = error_of(recoverer.bring(0, 9, lane=0))
    assert isinstance(error, RecoveryError) and "to store its end" in str(error)
