"""The writer's machine, rule by rule. Whole stories are in ``tests/scenarios``."""

from __future__ import annotations

import pytest

from spark_ledger.errors import (
    AddOutcomeUnknownError,
    ConflictError,
    FencedError,
    LedgerError,
    LedgerTakenOverError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from spark_ledger.protocol import append
from spark_ledger.protocol.append import AppendMachine, Phase
from spark_ledger.protocol.events import (
    ChooseBookies,
    CloseAppender,
    Command,
    ConfirmEntries,
    Done,
    FailEntries,
    LengthRead,
    OpenAppender,
    SendEntries,
    WriteMetadata,
)
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerState
from tests.unit.spark_ledger.protocol.append_driver import Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import fragment, ids, ledger, one, only

# -- adding ----------------------------------------------------------------------------------------


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


def test_our_own_mistakes_are_refused() -> None:
    writer = Writer()
    with pytest.raises(AssertionError, match="carries entries"):
        writer.add(0)
    with pytest.raises(AssertionError, match="not an event of a writer"):
        writer.machine.handle(LengthRead(0), 0.0)
    writer.close()
    with pytest.raises(AssertionError, match="before it adds"):
        writer.add()
    with pytest.raises(AssertionError, match="closes once"):
        writer.close()


def test_bytes_in_flight_are_those_of_the_slowest_live_bookie() -> None:
    writer = Writer()
    assert writer.machine.bytes_in_flight_max == 100
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


# -- ensemble changes ------------------------------------------------------------------------------


def test_a_change_starts_behind_the_confirmed_entries() -> None:
    writer = Writer()
    writer.add(2)
    writer.ack_all()
    writer.add(2)
    wanted = change_of_index_1(writer)
    assert wanted.fragments == (fragment(0, "b0 b1 b2"), fragment(2, "b0 b3 b2"))
    commands = writer.written(wanted)
    assert commands == [
        OpenAppender(1, BookieId("b3")),
        SendEntries(1, EntryId(2), EntryId(3)),
    ]
    assert writer.machine.metadata == wanted
    assert one(writer.close(), WriteMetadata).version == 5


def test_nothing_is_confirmed_during_a_change() -> None:
    writer = Writer()
    writer.add()
    wanted = change_of_index_1(writer)
    assert writer.ack(0, 0) == [] and writer.ack(2, 0) == []
    assert ConfirmEntries(EntryId(0)) in writer.written(wanted)


def test_a_second_failure_is_handled_before_anything_is_confirmed() -> None:
    writer = Writer()
    writer.add()
    wanted = change_of_index_1(writer)
    writer.ack(0, 0)
    writer.ack(2, 0)
    assert writer.fail(2) == [CloseAppender(2)]
    commands = writer.written(wanted)
    assert one(commands, ChooseBookies).indexes == (2,) and not only(commands, ConfirmEntries)


def test_a_late_failure_waits_for_the_next_add() -> None:
    writer = Writer()
    writer.add()
    writer.ack_all()
    assert writer.fail(1) == [CloseAppender(1)]
    assert writer.fail(1) == [], "known already"
    assert writer.machine.failed_indexes == {1}
    assert not only(writer.tick(0.1), ChooseBookies) and writer.machine.is_idle
    commands = writer.add()
    assert len(only(commands, SendEntries)) == 2 and one(commands, ChooseBookies)


def test_without_a_replacement_it_goes_on_and_looks_again_later() -> None:
    writer = Writer()
    writer.add()
    writer.fail(1)
    writer.ack(0, 0)
    writer.ack(2, 0)
    assert writer.choose() == [ConfirmEntries(EntryId(0))]
    assert not only(writer.add(), ChooseBookies)
    assert one(writer.tick(1.0), ChooseBookies).indexes == (1,)


def test_what_is_not_failed_is_not_replaced() -> None:
    writer = Writer()
    writer.add()
    writer.fail(1)
    assert not only(writer.choose(i0="b3"), WriteMetadata)
    assert writer.machine.bookies == ids("b0 b1 b2")


def test_answers_to_nothing_asked_change_nothing() -> None:
    writer = Writer()
    writer.add()
    assert writer.choose(i1="b3") == []
    assert writer.conflict(writer.first) == []
    assert writer.metadata_failed() == []
    assert writer.written(writer.first) == []
    assert writer.machine.phase is Phase.WRITING


def test_too_few_bookies_end_the_ledger_at_its_confirmed_end() -> None:
    writer = Writer()
    writer.add()
    writer.ack_all()
    writer.add(2)
    writer.fail(1)
    writer.fail(2)
    writer.choose()
    commands = writer.choose()
    error = one(commands, FailEntries).error
    assert isinstance(error, NotEnoughBookiesError) and "b1, b2" in str(error)
    closing = one(commands, WriteMetadata).metadata
    assert closing.is_closed and closing.last_entry_id == 0 and closing.length == 10
    assert writer.written(closing) == [], "nobody asked for it"
    assert writer.machine.phase is Phase.CLOSED and writer.machine.is_idle
    assert one(writer.close(), Done).metadata == closing


def test_out_of_reach_of_the_ack_quorum_asks_once_more_at_the_next_add() -> None:
    writer = Writer()
    writer.add()
    writer.fail(1)
    writer.ack(0, 0)
    writer.ack(2, 0)
    writer.fail(2)
    writer.choose()
    assert one(writer.choose(), ConfirmEntries).last == 0
    assert one(writer.add(), ChooseBookies).indexes == (1, 2)
    assert one(writer.choose(i1="b3"), WriteMetadata)


def test_a_replacement_that_refuses_again_and_again_ends_it() -> None:
    """A bookie that answers and yet refuses to store must not be chosen for ever."""
    writer = Writer((2, 2, 2))
    writer.add()
    assert one(writer.fail(1, BookieStatus.IO_ERROR), ChooseBookies)
    assert one(writer.choose(i1="b1"), OpenAppender)
    commands = writer.fail(1, BookieStatus.IO_ERROR)
    assert isinstance(one(commands, FailEntries).error, NotEnoughBookiesError)


def test_the_same_bookie_in_its_own_place_needs_no_write() -> None:
    writer = Writer()
    writer.add()
    writer.fail(1)
    commands = writer.choose(i1="b1")
    assert commands == [OpenAppender(1, BookieId("b1")), SendEntries(1, EntryId(0), EntryId(0))]


def test_fenced_stops_the_writer() -> None:
    writer = Writer()
    writer.add()
    commands = writer.fail(1, BookieStatus.FENCED)
    assert isinstance(one(commands, FailEntries).error, FencedError)
    assert len(only(commands, CloseAppender)) == 4
    assert writer.ack(0, 0) == [] and writer.ack(2, 0) == [], "nothing is confirmed any more"
    assert writer.fail(2) == []
    assert one(writer.close(), Done)


def test_unauthorized_stops_the_writer() -> None:
    writer = Writer()
    writer.add()
    error = one(writer.fail(0, BookieStatus.UNAUTHORIZED), FailEntries).error
    assert isinstance(error, UnauthorizedError)


def test_fenced_while_a_change_is_written() -> None:
    writer = Writer()
    writer.add()
    wanted = change_of_index_1(writer)
    assert isinstance(one(writer.fail(0, BookieStatus.FENCED), FailEntries).error, FencedError)
    assert writer.written(wanted) == []
    assert writer.choose(i1="b4") == []


def test_the_metadata_store_fails_during_a_change() -> None:
    """The store did nothing, but the entries may be on bookies: their outcome is unknown."""
    writer = Writer()
    writer.add()
    change_of_index_1(writer)
    error = one(writer.metadata_failed(), FailEntries).error
    assert isinstance(error, AddOutcomeUnknownError) and not error.retryable
    assert isinstance(error.__cause__, MetadataUnavailableError)


def test_a_lost_answer_is_recognised() -> None:
    writer = Writer()
    writer.add()
    wanted = change_of_index_1(writer)
    assert one(writer.conflict(wanted, 5), OpenAppender)
    assert one(writer.close(), WriteMetadata).version == 5


def test_a_conflict_keeps_both_edits() -> None:
    writer = Writer()
    writer.add(2)
    writer.ack_all()
    writer.add()
    change_of_index_1(writer)
    stored = writer.first.with_changes(fragments=(fragment(0, "b7 b1 b2"),))
    again = one(writer.conflict(stored, 6), WriteMetadata)
    assert again.version == 6
    assert again.metadata.fragments == (fragment(0, "b7 b1 b2"), fragment(2, "b0 b3 b2"))


def test_a_conflict_with_a_younger_fragment_is_the_end() -> None:
    writer = Writer()
    writer.add(2)
    change_of_index_1(writer)
    stored = ledger((3, 3, 2), (0, "b0 b1 b2"), (1, "b7 b8 b9"))
    assert isinstance(one(writer.conflict(stored), FailEntries).error, ConflictError)


@pytest.mark.parametrize(
    ("state", "error"),
    [(LedgerState.IN_RECOVERY, FencedError), (LedgerState.CLOSED, LedgerTakenOverError)],
)
def test_a_ledger_taken_over_during_a_change(state: LedgerState, error: type[LedgerError]) -> None:
    writer = Writer()
    writer.add()
    change_of_index_1(writer)
    stored = writer.first.with_changes(state=state)
    assert type(one(writer.conflict(stored), FailEntries).error) is error
    assert writer.machine.metadata == stored


def test_a_ledger_has_a_bounded_number_of_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "FRAGMENTS_MAX", 1)
    writer = Writer()
    writer.add(2)
    writer.ack_all()
    writer.add()
    writer.fail(1)
    commands = writer.choose(i1="b3")
    assert "the most allowed" in str(one(commands, FailEntries).error)
    assert one(commands, WriteMetadata).metadata.last_entry_id == 1


def test_too_many_fragments_after_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No write is in flight then: the closing one must not wait for its answer."""
    writer = Writer()
    writer.add(2)
    writer.ack_all()
    writer.add()
    change_of_index_1(writer)
    monkeypatch.setattr(append, "FRAGMENTS_MAX", 1)
    stored = writer.first.with_changes(fragments=(fragment(0, "b7 b1 b2"),))
    assert one(writer.conflict(stored), WriteMetadata).metadata.is_closed
