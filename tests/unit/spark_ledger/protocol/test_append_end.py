"""The writer's machine: close, and what time does. See ``test_append`` for the rest."""

from __future__ import annotations

import pytest

from spark_ledger.errors import (
    AddOutcomeUnknownError,
    FencedError,
    LedgerError,
    LedgerTakenOverError,
)
from spark_ledger.protocol.append import Phase
from spark_ledger.protocol.events import (
    AnnounceLastConfirmed,
    ChooseBookies,
    CloseAppender,
    Done,
    Failed,
    FailEntries,
    WriteMetadata,
)
from spark_ledger.types import BookieStatus, EntryId, LedgerState
from tests.unit.spark_ledger.protocol.append_driver import Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import fragment, ids, ledger, one, only

# -- close -----------------------------------------------------------------------------------------


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


def test_close_meets_a_rewritten_fragment() -> None:
    writer = Writer()
    writer.close()
    stored = writer.first.with_changes(fragments=(fragment(0, "b7 b1 b2"),))
    again = one(writer.conflict(stored), WriteMetadata)
    assert again.metadata.is_closed and again.metadata.fragments == stored.fragments


def test_close_meets_its_own_write() -> None:
    writer = Writer()
    wanted = one(writer.close(), WriteMetadata).metadata
    assert writer.conflict(wanted, 5) == [Done(wanted, 5)]


def test_close_meets_the_same_end_by_another_client() -> None:
    writer = Writer()
    wanted = one(writer.close(), WriteMetadata).metadata
    stored = wanted.with_changes(fragments=(fragment(0, "b7 b1 b2"),))
    assert writer.conflict(stored) == [Done(stored, 6)]


def test_an_end_behind_empty_entries_is_not_the_same_end() -> None:
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
def test_giving_up_meets_recovery(asked: bool) -> None:
    writer = Writer((1, 1, 1))
    writer.add()
    writer.fail(0)
    writer.choose()
    if asked:
        writer.close()
    stored = writer.first.with_changes(state=LedgerState.IN_RECOVERY)
    told = writer.conflict(stored)
    assert [type(command) for command in told] == ([Failed] if asked else [])


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


# -- time ------------------------------------------------------------------------------------------


def test_a_silent_bookie_fails_after_the_timeout() -> None:
    writer = Writer()
    writer.add()
    writer.ack(0, 0)
    assert only(writer.tick(4.9), ChooseBookies) == []
    asked = one(writer.tick(5.0), ChooseBookies)
    assert asked.indexes == (1, 2), "silent together, replaced together"


def test_a_slow_bookie_is_borne_while_there_is_room() -> None:
    writer = Writer()
    writer.add(5)
    writer.ack(0, 4)
    writer.ack(1, 4)
    assert not only(writer.tick(2.0), CloseAppender)
    writer.add(5)
    writer.ack(0, 9)
    writer.ack(1, 9)
    assert only(writer.tick(2.1), CloseAppender) == [CloseAppender(2)]
    assert writer.machine.has_room


def test_the_confirmed_end_is_announced_when_idle() -> None:
    writer = Writer()
    writer.add()
    writer.ack(0, 0)
    writer.ack(1, 0)
    assert not writer.machine.is_idle
    assert writer.tick(0.01) == []
    assert writer.tick(0.02) == [AnnounceLastConfirmed(EntryId(0), ids("b0 b1 b2"))]
    assert writer.tick(0.04) == []
    writer.ack(2, 0)
    assert writer.machine.is_idle


def test_the_confirmed_end_travels_with_the_next_entries() -> None:
    writer = Writer()
    writer.add()
    writer.ack_all()
    writer.add()
    assert writer.tick(1.0) == [], "nobody needs to be told 0 again"


def test_time_does_nothing_to_a_writer_that_has_stopped() -> None:
    writer = Writer()
    writer.add()
    writer.fail(0, BookieStatus.FENCED)
    assert writer.tick(100.0) == []


def test_what_a_slow_bookie_lacks_counts_however_many_entries_it_is() -> None:
    writer = Writer()
    writer.add(10_000, size=1)
    for index in (0, 1):
        writer.ack(index, 9_999)
    assert writer.machine.last_add_confirmed == 9_999
    assert writer.machine.bytes_in_flight == 10_000
    writer.ack(2, 6_000)
    assert writer.machine.bytes_in_flight == 3_999
