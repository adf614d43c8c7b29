"""A writer closes its ledger, or finds that another client has."""

from __future__ import annotations

import pytest

from spark_ledger.errors import (
    AddOutcomeUnknownError,
    FencedError,
    LedgerError,
    LedgerTakenOverError,
)
from spark_ledger.protocol.append_phases import Phase
from spark_ledger.protocol.events import (
    CloseAppender,
    Done,
    Failed,
    FailEntries,
    WriteMetadata,
)
from spark_ledger.types import EntryId, LedgerState
from tests.unit.spark_ledger.protocol.append_driver import Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import fragment, ledger, one, only

CLOSED = LedgerState.CLOSED


def test_close() -> None:
    writer = Writer()
    writer.add(2)
    writer.ack_all()
    commands = writer.close()
    assert not only(commands, FailEntries) and len(only(commands, CloseAppender)) == 3
    wanted = one(commands, WriteMetadata).metadata
    assert (wanted.last_entry_id, wanted.length) == (1, 20)
    assert writer.written(wanted) == [Done(wanted, 5)]


def test_pending_adds_of_a_close_are_indeterminate() -> None:
    writer = Writer()
    writer.add(2)
    writer.ack(0, 0)
    writer.ack(1, 0)
    commands = writer.close()
    assert isinstance(one(commands, FailEntries).error, AddOutcomeUnknownError)
    assert one(commands, WriteMetadata).metadata.last_entry_id == 0
    assert writer.ack(2, 1) == [] and writer.ack(0, 1) == []
    assert writer.tick(100.0) == [] and writer.fail(0) == []


def test_close_while_bookies_are_being_chosen() -> None:
    writer = Writer()
    writer.add()
    writer.fail(1)
    assert one(writer.close(), WriteMetadata)
    assert writer.choose(i1="b3") == []


def test_close_waits_for_a_change_in_flight() -> None:
    writer = Writer()
    writer.add()
    wanted = change_of_index_1(writer)
    assert not only(writer.close(), WriteMetadata)
    closing = one(writer.written(wanted), WriteMetadata)
    assert closing.metadata.is_closed and closing.metadata.fragments == wanted.fragments
    assert closing.version == 5


def test_close_while_it_closes_already() -> None:
    writer = Writer((1, 1, 1))
    writer.add()
    writer.fail(0)
    closing = one(writer.choose(), WriteMetadata).metadata
    assert writer.close() == []
    assert one(writer.written(closing), Done)


def test_close_after_rewritten_fragment_keeps_it() -> None:
    writer = Writer()
    writer.close()
    stored = writer.first.with_changes(fragments=(fragment(0, "b7 b1 b2"),))
    again = one(writer.conflict(stored), WriteMetadata)
    assert again.metadata.is_closed and again.metadata.fragments == stored.fragments


def test_close_after_lost_reply_is_done() -> None:
    writer = Writer()
    wanted = one(writer.close(), WriteMetadata).metadata
    assert writer.conflict(wanted, 5) == [Done(wanted, 5)]


def test_close_by_another_client_at_the_same_end_is_done() -> None:
    writer = Writer()
    wanted = one(writer.close(), WriteMetadata).metadata
    stored = wanted.with_changes(fragments=(fragment(0, "b7 b1 b2"),))
    assert writer.conflict(stored) == [Done(stored, 6)]


def test_close_by_another_client_at_the_same_end_before_pending_adds_is_done() -> None:
    writer = Writer()
    writer.add(2, size=10)
    for index in (0, 1):
        writer.ack(index, 0)
    wanted = one(writer.close(), WriteMetadata).metadata
    assert (wanted.last_entry_id, wanted.length) == (0, 10)
    stored = wanted.with_changes(fragments=(fragment(0, "b7 b1 b2"),))
    assert writer.conflict(stored) == [Done(stored, 6)]


def test_close_by_another_client_behind_empty_entries_is_a_takeover() -> None:
    """Their length is the same; what was in flight has become part of the ledger."""
    writer = Writer()
    writer.add(2, size=0)
    wanted = one(writer.close(), WriteMetadata).metadata
    stored = wanted.with_changes(last_entry_id=EntryId(1))
    assert type(one(writer.conflict(stored), Failed).error) is LedgerTakenOverError


@pytest.mark.parametrize(
    ("state", "last", "error"),
    [
        (LedgerState.CLOSED, 3, LedgerTakenOverError),
        (LedgerState.IN_RECOVERY, -1, FencedError),
    ],
)
def test_close_never_overrides(state: LedgerState, last: int, error: type[LedgerError]) -> None:
    writer = Writer()
    writer.add()
    writer.close()
    stored = ledger((3, 3, 2), (0, "b0 b1 b2"), state=state, last=last, length=40)
    commands = writer.conflict(stored)
    assert type(one(commands, Failed).error) is error
    assert not only(commands, FailEntries), "close has failed them already"
    assert writer.machine.phase is Phase.CLOSED


@pytest.mark.parametrize("asked", [True, False])
def test_giving_up_during_recovery_by_another_withdraws(asked: bool) -> None:
    writer = Writer((1, 1, 1))
    writer.add()
    writer.fail(0)
    writer.choose()
    if asked:
        writer.close()
    stored = writer.first.with_changes(state=LedgerState.IN_RECOVERY)
    told = writer.conflict(stored)
    assert [type(command) for command in told] == ([Failed] if asked else [])
    if asked:
        assert type(one(told, Failed).error) is FencedError, "why it is not closed"


@pytest.mark.parametrize("asked", [True, False])
def test_close_without_a_metadata_store(asked: bool) -> None:
    writer = Writer((1, 1, 1))
    writer.add()
    writer.fail(0)
    writer.choose()
    if asked:
        writer.close()
    told = writer.metadata_failed()
    assert [type(command) for command in told] == ([Failed] if asked else [])
    assert writer.machine.is_idle


def test_close_by_another_client_with_another_length_is_a_takeover() -> None:
    """The same end with other bytes: somebody else recovered entries that we never wrote."""
    for length, outcome in ((10, Done), (11, Failed)):
        writer = Writer()
        writer.add(size=10)
        writer.ack_all()
        one(writer.close(), WriteMetadata)
        stored = ledger((3, 3, 2), (0, "b0 b1 b2"), state=CLOSED, last=0, length=length)
        other = stored.with_changes(creation_token="repaired meanwhile")
        assert [type(command) for command in writer.conflict(other)] == [outcome]


def test_close_after_failed_close_of_giving_up_is_done() -> None:
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


def test_close_after_takeover_of_given_up_ledger_is_done() -> None:
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
