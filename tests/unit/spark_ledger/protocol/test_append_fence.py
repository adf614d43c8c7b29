"""A bookie tells a writer of a fence: the metadata say whether it is one (rule P18)."""

from __future__ import annotations

import pytest

from spark_ledger.errors import (
    AddOutcomeUnknownError,
    CorruptionError,
    FencedError,
    LedgerError,
    MetadataUnavailableError,
)
from spark_ledger.protocol.append_phases import Phase
from spark_ledger.protocol.events import (
    ChooseBookies,
    CloseAppender,
    ConfirmEntries,
    Done,
    FailEntries,
    ReadMetadata,
    WriteMetadata,
)
from spark_ledger.types import BookieStatus, EntryId, LedgerMetadata, LedgerState
from tests.unit.spark_ledger.protocol.append_driver import LIMITS, Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import ledger, one, only

FENCED = BookieStatus.FENCED


def in_doubt(quorums: tuple[int, int, int] = (3, 3, 2)) -> Writer:
    """A writer with an entry; bookie 1 has said that the ledger is fenced."""
    writer = Writer(quorums)
    writer.add()
    commands = writer.fail(1, FENCED)
    assert commands == [CloseAppender(1), ReadMetadata()]
    return writer


def in_state(state: LedgerState) -> LedgerMetadata:
    return ledger((3, 3, 2), (0, "b0 b1 b2")).with_changes(state=state)


def in_recovery() -> LedgerMetadata:
    return in_state(LedgerState.IN_RECOVERY)


@pytest.mark.parametrize("stored", [LedgerState.IN_RECOVERY, LedgerState.CLOSED, None])
def test_writer_told_of_a_real_fence_stops(stored: LedgerState | None) -> None:
    writer = in_doubt()
    commands = writer.looked(None if stored is None else in_state(stored))
    error = one(commands, FailEntries).error
    assert isinstance(error, FencedError) and "bookie b1" in str(error)
    assert len(only(commands, CloseAppender)) == 3
    assert writer.ack(0, 0) == [] and writer.ack(2, 0) == [], "nothing is confirmed any more"
    assert writer.fail(2) == []
    assert one(writer.close(), Done)


def test_writer_whose_id_another_ledger_has_now_stops() -> None:
    writer = in_doubt()
    another = writer.first.with_changes(incarnation=b"another ledger's")
    assert isinstance(one(writer.looked(another), FailEntries).error, FencedError)


def test_bookie_that_lies_of_a_fence_is_replaced_as_any_that_failed() -> None:
    writer = in_doubt()
    asked = one(writer.looked(writer.first), ChooseBookies)
    assert asked.indexes == (1,) and asked.failed == {}, "it would say the same: not at once"
    writer.ack(0, 0)
    assert writer.ack(2, 0) == [ConfirmEntries(EntryId(0))]
    writer.add()
    wanted = one(writer.choose(i1="b3"), WriteMetadata).metadata
    assert wanted.last_fragment.first_entry == 1
    writer.written(wanted)
    assert writer.machine.error is None and writer.machine.bookies == ("b0", "b3", "b2")


def test_ledger_repaired_meanwhile_is_no_fence() -> None:
    writer = in_doubt()
    repaired = writer.first.with_changes(creation_token="repaired meanwhile")
    assert one(writer.looked(repaired), ChooseBookies)


def test_bookie_that_lies_of_a_fence_when_nothing_waits_is_replaced_at_the_next_add() -> None:
    writer = Writer()
    writer.add()
    writer.ack(0, 0)
    writer.ack(2, 0)
    assert ReadMetadata() in writer.fail(1, FENCED)
    assert writer.looked(writer.first) == []
    assert one(writer.add(), ChooseBookies).indexes == (1,)


def test_entries_are_confirmed_and_nothing_is_changed_while_a_fence_is_in_question() -> None:
    """AQ bookies that store are AQ bookies that nobody has fenced (rule P13)."""
    writer = in_doubt()
    assert not only(writer.fail(2), ChooseBookies), "nor is the ledger given up"
    writer.add()
    assert writer.ack(0, 1) == []
    assert writer.machine.phase is Phase.WRITING and writer.machine.error is None
    assert not only(writer.tick(LIMITS.replacement_retry_s), ChooseBookies)
    assert one(writer.looked(writer.first), ChooseBookies).indexes == (1, 2)
    other = in_doubt()
    other.ack(0, 0)
    assert other.ack(2, 0) == [ConfirmEntries(EntryId(0))]


def test_no_tick_comes_for_a_replacement_while_a_fence_is_in_question() -> None:
    """It could do nothing, fifty times a second for as long as the metadata are away."""
    writer = in_doubt()
    due = writer.machine.next_deadline
    assert due == LIMITS.add_timeout_s, "the others may become silent"


def test_second_bookie_that_tells_of_the_fence_is_looked_after_again() -> None:
    """What is read may be older than what the second one says."""
    writer = in_doubt()
    assert writer.fail(0, FENCED) == [CloseAppender(0)]
    assert writer.looked(writer.first) == [ReadMetadata()]
    assert isinstance(one(writer.looked(in_recovery()), FailEntries).error, FencedError)


def test_writer_that_asked_twice_asks_no_third_time() -> None:
    writer = in_doubt()
    writer.fail(0, FENCED)
    writer.looked(writer.first)
    assert one(writer.looked(writer.first), ChooseBookies).indexes == (0, 1)


def test_fence_while_a_change_is_written_stops_the_writer() -> None:
    writer = Writer()
    writer.add()
    wanted = change_of_index_1(writer)
    assert writer.fail(0, FENCED) == [CloseAppender(0), ReadMetadata()]
    assert isinstance(one(writer.looked(in_recovery()), FailEntries).error, FencedError)
    assert writer.written(wanted) == []
    assert writer.choose(i1="b4") == []


def test_change_that_was_under_way_ends_while_a_fence_is_in_question() -> None:
    """Its compare-and-set says more than any answer: nobody had begun a recovery (rule P6)."""
    writer = Writer()
    writer.add()
    wanted = change_of_index_1(writer)
    writer.fail(0, FENCED)
    assert not only(writer.written(wanted), ChooseBookies)
    assert writer.machine.bookies == ("b0", "b3", "b2")
    assert one(writer.looked(wanted), ChooseBookies).indexes == (0,)


def test_change_that_ends_while_a_fence_is_in_question_confirms_what_was_stored_meanwhile() -> None:
    """As any acknowledgement does that comes then: the question may stay open for long."""
    writer = Writer()
    writer.add()
    wanted = change_of_index_1(writer)
    assert writer.ack(0, 0) == writer.ack(2, 0) == [], "the change is being written"
    writer.fail(0, FENCED)
    commands = writer.written(wanted)
    assert only(commands, ConfirmEntries) == [ConfirmEntries(EntryId(0))]
    assert writer.machine.failed_indexes == {0} and not only(commands, ChooseBookies)


def test_metadata_that_are_away_are_asked_again_while_the_others_suffice() -> None:
    away = MetadataUnavailableError("ZooKeeper is away")
    writer = in_doubt()
    assert writer.cannot_look(away) == [ReadMetadata()]
    writer.ack(0, 0)
    assert writer.ack(2, 0) == [ConfirmEntries(EntryId(0))]
    assert writer.machine.error is None
    writer.fail(2)
    error = one(writer.cannot_look(away), FailEntries).error
    assert isinstance(error, AddOutcomeUnknownError) and "ZooKeeper is away" in str(error)


@pytest.mark.parametrize("error", [CorruptionError("damaged"), LedgerError("not for this client")])
def test_metadata_that_cannot_be_read_for_good_stop_the_writer(error: LedgerError) -> None:
    writer = in_doubt()
    told = one(writer.cannot_look(error), FailEntries).error
    assert isinstance(told, AddOutcomeUnknownError) and told.__cause__ is error


@pytest.mark.parametrize("quorums", [(2, 2, 2), (1, 1, 1)])
def test_liar_that_is_needed_is_replaced_too(quorums: tuple[int, int, int]) -> None:
    writer = Writer(quorums)
    writer.add()
    writer.fail(0, FENCED)
    assert one(writer.looked(writer.first), ChooseBookies).indexes == (0,)


def test_answer_after_close_changes_nothing() -> None:
    writer = in_doubt()
    wanted = one(writer.close(), WriteMetadata).metadata
    assert writer.looked(in_recovery()) == [] and writer.cannot_look(LedgerError("")) == []
    assert one(writer.written(wanted), Done)
