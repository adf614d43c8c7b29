"""A writer replaces bookies that fail, goes on without them, or stops."""

from __future__ import annotations

import pytest

from spark_ledger.errors import (
    AddOutcomeUnknownError,
    ConfigurationError,
    ConflictError,
    EnsembleLostError,
    FencedError,
    LedgerError,
    LedgerTakenOverError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from spark_ledger.limits.client import BOOKIE_RETURN_DELAY_S_MAX
from spark_ledger.protocol import append
from spark_ledger.protocol.append_phases import Phase
from spark_ledger.protocol.events import (
    AddFailed,
    ChooseBookies,
    CloseAppender,
    ConfirmEntries,
    Done,
    Failed,
    FailEntries,
    OpenAppender,
    SendEntries,
    WriteMetadata,
)
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerState
from tests.unit.spark_ledger.protocol.append_driver import Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import fragment, ids, ledger, one, only


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
    assert not only(writer.tick(0.1), ChooseBookies)
    writer.told("b0", "b2", last=0)
    assert not only(writer.tick(100.0), ChooseBookies)
    commands = writer.add()
    assert len(only(commands, SendEntries)) == 2 and one(commands, ChooseBookies)


def test_without_a_replacement_it_goes_on_and_looks_again_later() -> None:
    writer = Writer()
    writer.add()
    writer.fail(1)
    writer.ack(0, 0)
    writer.ack(2, 0)
    assert writer.choose() == []
    assert not only(writer.add(), ChooseBookies)
    assert one(writer.tick(1.0), ChooseBookies).indexes == (1,)


def test_replacement_of_live_bookie_is_ignored() -> None:
    writer = Writer()
    writer.add()
    writer.fail(1)
    assert not only(writer.choose(i0="b3"), WriteMetadata)
    assert writer.machine.bookies == ids("b0 b1 b2")


def test_answers_without_a_question_change_nothing() -> None:
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
    assert isinstance(error, NotEnoughBookiesError) and "b1 (unavailable), b2" in str(error)
    closing = one(commands, WriteMetadata).metadata
    assert closing.is_closed and closing.last_entry_id == 0 and closing.length == 10
    assert writer.written(closing) == [], "nobody asked for it"
    assert writer.machine.phase is Phase.CLOSED and writer.machine.is_idle
    assert one(writer.close(), Done).metadata == closing


def test_add_below_ack_quorum_looks_for_replacements_once_more() -> None:
    writer = Writer()
    writer.add()
    writer.fail(1)
    writer.ack(0, 0)
    writer.ack(2, 0)
    writer.fail(2)
    assert not writer.choose(), "entry 0 was confirmed while a bookie was looked for"
    assert one(writer.add(), ChooseBookies).indexes == (1, 2)
    assert one(writer.choose(i1="b3"), WriteMetadata)


def test_replacement_that_keeps_refusing_ends_the_writer() -> None:
    """A bookie that answers and yet refuses to store must not be chosen for ever."""
    writer = Writer((2, 2, 2))
    writer.add()
    assert one(writer.fail(1, BookieStatus.IO_ERROR), ChooseBookies)
    assert one(writer.choose(i1="b1"), OpenAppender)
    commands = writer.fail(1, BookieStatus.IO_ERROR)
    assert isinstance(one(commands, FailEntries).error, NotEnoughBookiesError)


def test_bookie_returning_to_its_index_needs_no_metadata_write() -> None:
    writer = Writer()
    writer.add()
    writer.fail(1)
    commands = writer.choose(i1="b1")
    assert commands == [OpenAppender(1, BookieId("b1")), SendEntries(1, EntryId(0), EntryId(0))]


def test_one_bookie_that_refuses_the_password_is_replaced() -> None:
    """Any client may be the first to speak of a ledger's id to a bookie; one that was told another
    key is one bad bookie, and not the end (rule P20)."""
    writer = Writer()
    writer.add()
    asked = one(writer.fail(0, BookieStatus.UNAUTHORIZED), ChooseBookies)
    assert asked.indexes == (0,) and asked.failed == {}, "it would refuse again: not at once"
    writer.ack(1, 0)
    assert one(writer.ack(2, 0), ConfirmEntries).last == 0
    assert one(writer.choose(i0="b3"), WriteMetadata)


def test_so_many_refuse_the_password_that_the_rest_does_not_suffice() -> None:
    writer = Writer()
    writer.add()
    writer.fail(0, BookieStatus.UNAUTHORIZED)
    writer.fail(1, BookieStatus.UNAUTHORIZED)
    writer.choose()
    error = one(writer.choose(), FailEntries).error
    assert isinstance(error, UnauthorizedError) and "b0 (unauthorized), b1" in str(error)


def test_one_that_refuses_the_password_is_not_what_ends_a_ledger_that_lost_another() -> None:
    writer = Writer()
    writer.add()
    writer.fail(0, BookieStatus.UNAUTHORIZED)
    writer.fail(1)
    writer.choose()
    error = one(writer.choose(), FailEntries).error
    assert isinstance(error, EnsembleLostError)
    assert "b0 (unauthorized), b1 (unavailable)" in str(error)


@pytest.mark.parametrize("waits", [1, 5])
def test_what_members_that_stay_hold_is_confirmed_while_a_replacement_is_chosen(waits: int) -> None:
    """A probe of a hung bookie takes a second; nothing waits for it (rule P4)."""
    writer = Writer()
    writer.add()
    writer.fail(1)
    writer.ack(0, 0)
    assert writer.ack(2, 0) == [ConfirmEntries(EntryId(0))]
    for entry in range(1, waits):
        writer.add()
        writer.ack(0, entry)
        assert writer.ack(2, entry) == [ConfirmEntries(EntryId(entry))]
    wanted = one(writer.choose(i1="b3"), WriteMetadata).metadata
    assert wanted.last_fragment.first_entry == waits, "computed when the choice is known (rule P7)"
    writer.add()
    writer.ack(0, waits)
    assert writer.ack(2, waits) == [], "not while it is written"


def test_what_a_failed_bookie_holds_is_not_confirmed_while_a_replacement_is_chosen() -> None:
    writer = Writer()
    writer.add()
    writer.ack(1, 0)
    writer.fail(1)
    assert writer.ack(0, 0) == []
    assert writer.choose() == [ConfirmEntries(EntryId(0))], "it stays in the metadata"


def test_the_metadata_store_fails_during_a_change() -> None:
    """The store did nothing, but the entries may be on bookies: their outcome is unknown."""
    writer = Writer()
    writer.add()
    change_of_index_1(writer)
    error = one(writer.metadata_failed(), FailEntries).error
    assert isinstance(error, AddOutcomeUnknownError) and not error.retryable
    assert isinstance(error.__cause__, MetadataUnavailableError)


def test_own_write_after_lost_reply_is_recognised() -> None:
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


def test_conflict_with_younger_fragment_stops_the_writer() -> None:
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
    assert writer.choose(i1="b3") == [], "the others suffice"
    one(writer.fail(2), ChooseBookies)
    commands = writer.choose(i2="b3")
    assert "the most allowed" in str(one(commands, FailEntries).error)
    assert one(commands, WriteMetadata).metadata.last_entry_id == 1


def test_most_fragments_that_are_allowed_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "FRAGMENTS_MAX", 2)
    writer = Writer()
    writer.add(2)
    writer.ack_all()
    writer.add()
    wanted = change_of_index_1(writer)
    assert len(wanted.fragments) == 2 and not wanted.is_closed
    writer.written(wanted)
    writer.fail(0)
    again = one(writer.choose(i0="b4"), WriteMetadata).metadata
    assert list(again.fragments[1:]) == [fragment(2, "b4 b3 b2")], "it is replaced, and adds none"
    assert not again.is_closed


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


def without_room() -> Writer:
    """b1 failed while entry 2 waits, and the metadata take no other fragment."""
    writer = Writer()
    writer.add(2)
    writer.ack_all()
    writer.add()
    change_of_index_1(writer)
    assert not writer.metadata_failed(ConfigurationError("its metadata need 300000 bytes"))
    return writer


def test_writer_whose_metadata_are_full_goes_on_while_the_ack_quorum_is_met() -> None:
    writer = without_room()
    writer.ack(0, 2)
    assert one(writer.ack(2, 2), ConfirmEntries).last == 2
    for second in range(int(BOOKIE_RETURN_DELAY_S_MAX)):
        commands = writer.tick(float(second)) + writer.add()
        assert not only(commands, ChooseBookies) and not only(commands, WriteMetadata)
        last = writer.machine.last_add_pushed
        writer.ack(0, last)
        assert one(writer.ack(2, last), ConfirmEntries).last == last
    assert writer.machine.failed_indexes == {1}
    writer.now = BOOKIE_RETURN_DELAY_S_MAX
    assert one(writer.add(), ChooseBookies).indexes == (1,), "another may have made room"


def test_what_was_stored_during_a_change_that_has_no_room_is_confirmed_at_its_end() -> None:
    writer = Writer()
    writer.add()
    change_of_index_1(writer)
    writer.ack(0, 0)
    assert writer.ack(2, 0) == []
    full = ConfigurationError("its metadata need 300000 bytes")
    assert writer.metadata_failed(full) == [ConfirmEntries(EntryId(0))]


def test_change_for_which_the_metadata_have_no_room_ends_the_ledger_where_it_is_needed() -> None:
    """Nothing was written: it is as with the most fragments (rule P10)."""
    writer = without_room()
    one(writer.fail(2), ChooseBookies)
    one(writer.choose(i2="b4"), WriteMetadata)
    commands = writer.metadata_failed(ConfigurationError("its metadata need 300000 bytes"))
    error = one(commands, FailEntries).error
    assert type(error) is EnsembleLostError
    assert "its metadata need 300000 bytes" in str(error) and "ends at entry 1" in str(error)
    wanted = one(commands, WriteMetadata)
    assert wanted.metadata.last_entry_id == 1 and wanted.version == 4
    assert wanted.metadata.fragments == writer.first.fragments, "without the change"
    writer.written(wanted.metadata)
    assert writer.machine.metadata.is_closed


def test_ledger_whose_change_has_no_room_as_its_close_is_asked_for_is_closed() -> None:
    writer = Writer()
    writer.add(2)
    writer.ack_all()
    writer.add()
    change_of_index_1(writer)
    assert not only(writer.close(), WriteMetadata), "the change is on its way"
    wanted = one(writer.metadata_failed(ConfigurationError("too large")), WriteMetadata).metadata
    assert wanted.is_closed and wanted.last_entry_id == 1
    assert one(writer.written(wanted), Done).metadata == wanted


def test_closing_write_for_which_there_is_no_room_is_not_tried_again() -> None:
    writer = Writer()
    one(writer.close(), WriteMetadata)
    full = ConfigurationError("its metadata need 300000 bytes")
    assert one(writer.metadata_failed(full), Failed).error is full


def test_fence_of_replaced_bookie_changes_nothing() -> None:
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
