"""A writer gives ids, confirms in order and bounds what is in flight."""

from __future__ import annotations

import pytest

from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.events import (
    Command,
    ConfirmEntries,
    LengthRead,
    OpenAppender,
    SendEntries,
)
from spark_ledger.types import EntryId, LedgerState
from tests.unit.spark_ledger.protocol.append_driver import Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import ids, ledger, only


def test_begins_with_an_appender_per_bookie() -> None:
    writer = Writer()
    opened: list[Command] = [OpenAppender(i, b) for i, b in enumerate(ids("b0 b1 b2"))]
    assert writer.machine.start() == opened
    assert writer.machine.is_idle and writer.machine.last_add_pushed == -1


def test_entries_get_the_next_ids_and_are_confirmed_in_order() -> None:
    writer = Writer()
    assert only(writer.add(3), SendEntries) == [
        SendEntries(s, EntryId(0), EntryId(2)) for s in (0, 1, 2)
    ]
    assert writer.ack(0, 2) == []
    assert writer.ack(1, 1) == [ConfirmEntries(EntryId(1))]
    assert writer.ack(1, 1) == []
    assert writer.ack(2, 2) == [ConfirmEntries(EntryId(2))]
    assert writer.ack(1, 2) == [], "the third copy confirms nothing more"
    assert (writer.machine.last_add_confirmed, writer.machine.length) == (2, 30)


def test_only_a_writer_of_an_open_ledger() -> None:
    closed = ledger((1, 1, 1), (0, "b0"), state=LedgerState.CLOSED)
    with pytest.raises(AssertionError, match="open ledger"):
        AppendMachine(closed, 0, now=0.0)


def test_misuse_by_the_shell_is_refused() -> None:
    writer = Writer()
    with pytest.raises(AssertionError, match="checks before it adds"):
        writer.add(0)
    with pytest.raises(AssertionError, match="not an event of a writer"):
        writer.machine.handle(LengthRead(0, EntryId(-1)), 0.0)
    writer.close()
    with pytest.raises(AssertionError, match="before it adds"):
        writer.add()
    with pytest.raises(AssertionError, match="closes once"):
        writer.close()


def test_bytes_in_flight_are_those_of_the_slowest_live_bookie() -> None:
    writer = Writer()
    writer.add(9)
    for index in (0, 1):
        writer.ack(index, 8)
    writer.ack(2, 4)
    assert writer.machine.bytes_in_flight == 40 and writer.machine.has_room
    assert writer.machine.held_by_all == 4
    writer.add(6)
    assert writer.machine.bytes_in_flight == 100 and not writer.machine.has_room
    writer.fail(2)
    for index in (0, 1):
        writer.ack(index, 14)
    writer.choose()
    assert writer.machine.last_add_confirmed == 14 and writer.machine.bytes_in_flight == 0


def test_bytes_that_an_ensemble_change_holds_back_are_in_flight() -> None:
    """However long the metadata store takes, producers do not go on without bound."""
    writer = Writer()
    writer.add(4)
    wanted = change_of_index_1(writer)
    writer.add(8)
    for index in (0, 2):
        writer.ack(index, 11)
    assert writer.machine.bytes_in_flight == 120 and not writer.machine.has_room
    writer.written(wanted)
    assert writer.machine.last_add_confirmed == 11
    writer.ack(1, 11)
    assert writer.machine.bytes_in_flight == 0 and writer.machine.has_room


def test_lengths_of_held_entries_are_forgotten() -> None:
    """Memory does not grow with the ledger; lengths that may still be asked for stay."""
    writer = Writer((2, 2, 1))
    for _ in range(3):
        writer.add(5000, size=1)
        last = writer.machine.last_add_pushed
        writer.ack(0, last)
        writer.ack(1, last)
        writer.add()
        writer.ack(0, last + 1)
    assert writer.machine.bytes_in_flight == 10
    assert len(writer.machine._lengths._at) < 6000
    assert writer.machine.length == 3 * 5010
    with pytest.raises(AssertionError, match="forgotten"):
        writer.machine._lengths.at(0)
