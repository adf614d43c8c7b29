"""Recovery closes the ledger; nothing that arrives after its end changes anything."""

from __future__ import annotations

import pytest

from spark_ledger.errors import (
    FencedError,
    MetadataUnavailableError,
    NoSuchEntryError,
)
from spark_ledger.protocol.events import (
    AddAcknowledged,
    Append,
    BookiesChosen,
    CloseAppender,
    Done,
    EntriesRead,
    Event,
    Failed,
    LastConfirmedAnswer,
    LengthRead,
    LengthUnknown,
    MetadataConflict,
    MetadataFailed,
    MetadataWritten,
    ReadLength,
    Tick,
    WriteMetadata,
)
from spark_ledger.protocol.recovery_phases import Phase
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerMetadata, LedgerState
from tests.unit.spark_ledger.protocol.ledgers import fragment, ids, ledger, one, only
from tests.unit.spark_ledger.protocol.recovery_driver import (
    MARKED,
    NO,
    OPEN,
    Recoverer,
    error_of,
)

AWAY = MetadataFailed(MetadataUnavailableError("away"))


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
    recoverer.choose(i1="b3")
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


def test_own_write_after_lost_reply_is_recognised() -> None:
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


def test_length_of_known_end_is_read_from_its_own_fragment() -> None:
    """The writer changed its ensemble just before it died: the last fragment has no entry."""
    metadata = ledger((3, 3, 2), (0, "b0 b1 b2"), (4, "b3 b4 b5"), state=LedgerState.IN_RECOVERY)
    recoverer = Recoverer(metadata)
    recoverer.fenced(3)
    recoverer.end(0, NO, 4)
    wanted = one(recoverer.end(1, NO, 4), ReadLength).wanted
    assert (wanted.bookies, wanted.first, wanted.last) == (ids("b0 b1 b2"), 3, 3)


def test_ledger_is_measured_and_closed_with_the_ensembles_that_marking_found() -> None:
    """The writer replaced a bookie while its ledger was being marked."""
    recoverer = Recoverer(ledger((3, 3, 2), (0, "b0 b1 b9")))
    stored = ledger((3, 3, 2), (0, "b0 b1 b2"), (4, "b3 b4 b5"))
    marked = one(recoverer.conflict(stored), WriteMetadata).metadata
    recoverer.written(marked)
    recoverer.fenced(3)
    recoverer.end(0, NO, 4)
    assert one(recoverer.end(1, NO, 4), ReadLength).wanted.bookies == ids("b0 b1 b2")
    closed = one(recoverer.length(40), WriteMetadata).metadata
    assert (closed.fragments, closed.last_entry_id) == (stored.fragments, 3)


def test_the_length_cannot_be_read() -> None:
    recoverer = Recoverer()
    assert recoverer.length(3) == [], "not asked"
    recoverer.fenced(3)
    recoverer.end(0, NO, 4)
    recoverer.end(1, NO, 4)
    unknown = LengthUnknown(NoSuchEntryError("entry 3"))
    assert isinstance(error_of(recoverer.machine.handle(unknown, 0.0)), NoSuchEntryError)


def test_answers_without_a_question_change_nothing() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    assert recoverer.written(MARKED, 9) == []
    stored = MARKED.with_changes(fragments=(fragment(0, "b7 b8 b9"),))
    assert recoverer.conflict(stored) == []
    assert recoverer.machine.metadata == MARKED, "reads keep to the ensemble they began with"
    with pytest.raises(AssertionError, match="not an event of a recovery"):
        recoverer.machine.handle(Append([1]), 0.0)


@pytest.mark.parametrize(
    "late",
    [
        AWAY,
        MetadataWritten(MARKED, 9),
        MetadataConflict(OPEN, 9),
        LastConfirmedAnswer(2, BookieStatus.OK, EntryId(5)),
        EntriesRead(0, 0, EntryId(3)),
        AddAcknowledged(0, BookieId("b0"), EntryId(3)),
        BookiesChosen({0: BookieId("b7")}),
        LengthRead(7, EntryId(-1)),
        Tick(),
    ],
    ids=lambda event: type(event).__name__,
)
@pytest.mark.parametrize("reading", [True, False])
def test_event_after_the_end_changes_nothing(late: Event, reading: bool) -> None:
    recoverer = Recoverer()
    if reading:
        recoverer.fenced()
        for index in (0, 1):
            recoverer.end(index, BookieStatus.UNAUTHORIZED, 0)
        one(recoverer.end(2, BookieStatus.UNAUTHORIZED, 0), Failed)
    else:
        for index in (0, 1):
            recoverer.lac(index, -1, BookieStatus.UNAUTHORIZED)
        one(recoverer.lac(2, -1, BookieStatus.UNAUTHORIZED), Failed)
    assert recoverer.machine.handle(late, 100.0) == []
    assert recoverer.machine.phase is Phase.ENDED
