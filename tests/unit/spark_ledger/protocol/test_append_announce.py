"""Whom a writer tells its last add confirmed while bookies do not answer (rule P5)."""

from __future__ import annotations

from spark_ledger.protocol.append_announce import REPEAT_S_MAX
from spark_ledger.protocol.events import AnnounceLastConfirmed, LastConfirmedTold
from spark_ledger.types import BookieId, BookieStatus, EntryId
from tests.unit.spark_ledger.protocol.append_driver import change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import ids, only
from tests.unit.spark_ledger.protocol.test_append_time import idle


def test_bookie_that_does_not_answer_is_told_once_however_much_is_confirmed() -> None:
    """A thousand writers beside it would leave more unsaid each second than it ever hears."""
    writer = idle((3, 3, 2), "b0 b1 b2")
    writer.told("b0", "b1", last=0)
    writer.fail(2)
    for entry in range(1, 100):
        writer.tick(entry / 2)
        writer.add()
        writer.choose()
        writer.ack(0, entry)
        writer.ack(1, entry)
        for now in (entry / 2 + 0.1, entry / 2 + 0.45):
            for command in only(writer.tick(now), AnnounceLastConfirmed):
                assert "b2" not in command.bookies, "it was told 0, and has not answered"
                writer.told(*command.bookies, last=command.last_add_confirmed)
    writer.told("b2", last=0, status=BookieStatus.TIMEOUT)
    due = writer.machine.next_deadline
    assert due is not None
    assert writer.tick(due) == [AnnounceLastConfirmed(EntryId(99), ids("b2"))]
    assert writer.tick(due + 2 * REPEAT_S_MAX) == [], "it was told, again"


def test_bookie_that_was_busy_with_an_older_end_is_told_the_new_one_as_it_answers() -> None:
    writer = idle((3, 3, 2), "b0 b1 b2")
    writer.told("b0", "b1", last=0)
    writer.add()
    writer.ack_all()
    assert writer.tick(0.1) == [AnnounceLastConfirmed(EntryId(1), ids("b0 b1"))]
    late = LastConfirmedTold(BookieId("b2"), EntryId(0), BookieStatus.OK)
    assert writer.machine.handle(late, 0.2) == [AnnounceLastConfirmed(EntryId(1), ids("b2"))]
    writer.told("b0", "b1", "b2", last=1)
    assert writer.machine.is_idle


def test_bookie_whose_late_answer_comes_while_entries_are_under_way_is_told_nothing_more() -> None:
    """They carry the end."""
    writer = idle((3, 3, 2), "b0 b1 b2")
    writer.add()
    writer.ack_all()
    assert writer.tick(0.1) == []
    writer.add()
    writer.told("b0", last=0)


def test_bookie_that_has_left_is_told_nothing_more() -> None:
    writer = idle((2, 2, 2), "b0 b1")
    writer.told("b0", last=0)
    writer.add()
    writer.written(change_of_index_1(writer))
    writer.ack_all()
    assert writer.tick(0.1) == [AnnounceLastConfirmed(EntryId(1), ids("b0 b3"))]
    writer.told("b1", last=0)


def test_answer_that_comes_while_the_ledger_is_closed_tells_nothing_more() -> None:
    writer = idle((2, 2, 2), "b0 b1")
    writer.told("b0", last=0)
    writer.add()
    writer.ack_all()
    assert writer.tick(0.1) == [AnnounceLastConfirmed(EntryId(1), ids("b0"))]
    writer.close()
    writer.told("b1", last=0)
