"""What comes late changes nothing: answers of bookies that were replaced, ticks after an add."""

from __future__ import annotations

from spark_ledger.protocol.append import Phase
from spark_ledger.protocol.events import (
    AddFailed,
    AnnounceLastConfirmed,
    Done,
    Failed,
    WriteMetadata,
)
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerState
from tests.unit.spark_ledger.protocol.append_driver import Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import ids, ledger, one

CLOSED = LedgerState.CLOSED


def test_the_fence_of_a_replaced_bookie_is_not_news() -> None:
    """Its index is another's now; only bookies of the ensemble speak for the ledger."""
    writer = Writer()
    writer.add()
    writer.written(change_of_index_1(writer))
    for status in (BookieStatus.FENCED, BookieStatus.UNAUTHORIZED, BookieStatus.TIMEOUT):
        late = AddFailed(1, BookieId("b1"), status)
        assert writer.machine.handle(late, 0.0) == []
    assert writer.machine.error is None and writer.machine.phase is Phase.WRITING
    assert writer.machine.bookies == ids("b0 b3 b2") and not writer.machine.failed_indexes


def test_a_bookie_fails_once() -> None:
    writer = Writer()
    writer.add()
    writer.fail(1)
    assert writer.fail(1, BookieStatus.FENCED) == []
    assert writer.machine.error is None


def test_idle_counts_from_the_last_add() -> None:
    """However long ago the writer began: entries that follow one another carry the LAC."""
    writer = Writer()
    writer.now = 100.0
    writer.add()
    writer.ack_all()
    assert writer.tick(100.01) == []
    assert writer.tick(100.03) == [AnnounceLastConfirmed(EntryId(0), ids("b0 b1 b2"))]


def test_a_close_of_another_length_is_not_ours() -> None:
    """The same end with other bytes: somebody else recovered entries that we never wrote."""
    for length, outcome in ((10, Done), (11, Failed)):
        writer = Writer()
        writer.add(size=10)
        writer.ack_all()
        one(writer.close(), WriteMetadata)
        stored = ledger((3, 3, 2), (0, "b0 b1 b2"), state=CLOSED, last=0, length=length)
        other = stored.with_changes(creation_token="repaired meanwhile")
        assert [type(command) for command in writer.conflict(other)] == [outcome]


def test_closing_ends_although_giving_up_could_not_close_the_ledger() -> None:
    """The metadata store failed when the writer gave up; the application closes later."""
    writer = Writer()
    writer.add()
    for index in (1, 2):
        writer.fail(index)
        commands = writer.choose()
    one(commands, WriteMetadata)
    assert writer.metadata_failed() == []
    assert writer.machine.is_idle
    one(writer.close(), Done)


def test_closing_ends_although_another_took_the_ledger_that_was_given_up() -> None:
    """Closing after giving up met a recovery: it is for that one to close the ledger."""
    writer = Writer()
    writer.add()
    for index in (1, 2):
        writer.fail(index)
        writer.choose()
    stored = ledger((3, 3, 2), (0, "b0 b1 b2"), state=LedgerState.IN_RECOVERY)
    assert writer.conflict(stored) == []
    assert writer.machine.is_idle
    one(writer.close(), Done)
