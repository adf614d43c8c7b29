"""What a member owes, and since when: idleness, steady work, and answers that end an excuse."""

from __future__ import annotations

import pytest

from spark_ledger.limits.client import BUSY_RETRY_S
from spark_ledger.protocol.events import (
    AddFailed,
    ChooseBookies,
    CloseAppender,
    ConfirmEntries,
    OpenAppender,
    SendEntries,
)
from spark_ledger.types import BookieId, BookieStatus, EntryId
from tests.unit.spark_ledger.protocol.append_driver import LIMITS, Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import one, only

BUSY, STALLED = BookieStatus.TOO_MANY_REQUESTS, BookieStatus.STALLED


@pytest.mark.parametrize("idle_s", [LIMITS.add_timeout_s, 2 * LIMITS.stalled_wait_s])
def test_bookie_that_was_asked_nothing_for_long_owes_from_the_next_entry_on(idle_s: float) -> None:
    writer = Writer()
    writer.add()
    writer.ack_all()
    writer.now = idle_s
    writer.add()
    commands = writer.tick(idle_s + LIMITS.add_timeout_s - 0.1)
    assert not only(commands, CloseAppender) and not only(commands, ChooseBookies)


@pytest.mark.parametrize("busy_index", [None, 1])
def test_bookies_that_acknowledge_all_the_time_are_never_given_up(busy_index: int | None) -> None:
    """There is always an entry under way, so they never owe nothing."""
    writer = Writer()
    writer.add()
    for second in range(1, 2 * int(LIMITS.stalled_wait_s)):
        writer.now = float(second)
        writer.add(size=1)
        for index in range(3):
            writer.ack(index, second - 1)
        if busy_index is not None:
            writer.fail(busy_index, BUSY)
        writer.tick(second + 0.5)
        writer.tick(second + 0.9)
        assert not writer.machine.failed_indexes


def test_first_pause_after_an_acknowledgement_is_short_again() -> None:
    writer = Writer()
    writer.add()
    for second in range(5):
        writer.now = float(second)
        writer.fail(1, BUSY)
        writer.ack(0, 0)
        writer.ack(2, 0)
        assert only(writer.tick(second + 0.99), OpenAppender), "its entry is sent again"
    writer.ack(1, 0)
    writer.add()
    writer.fail(1, BUSY)
    due = writer.machine.next_deadline
    assert due is not None
    assert BUSY_RETRY_S <= due - writer.now <= 1.5 * BUSY_RETRY_S


def test_bookie_that_stalled_and_stored_since_is_as_any_other() -> None:
    """Its stall is over: its pauses are answers again, and its silence is that of the network."""
    writer = Writer()
    writer.add()
    writer.fail(1, STALLED)
    for index in range(3):
        writer.ack(index, 0)
    writer.add()
    writer.ack(0, 1)
    writer.ack(2, 1)
    for second in range(1, 10):
        writer.now = float(second)
        writer.fail(1, BUSY)
        writer.tick(second + 0.99)
        assert not writer.machine.failed_indexes, "it answers"
    writer.tick(20.0)
    (failed,) = writer.machine._replication.failed_members
    assert failed.status is BookieStatus.TIMEOUT


DOWN = BookieStatus.UNAVAILABLE


@pytest.mark.parametrize("said", [(BUSY, DOWN), (DOWN, BUSY), (DOWN, STALLED)])
def test_bookie_that_failed_is_not_sent_its_entries_again_whatever_else_it_says(
    said: tuple[BookieStatus, ...],
) -> None:
    writer = Writer()
    writer.add()
    for status in said:
        writer.fail(1, status)
    writer.choose()
    assert not only(writer.tick(0.9), OpenAppender)
    assert [send.bookie_index for send in only(writer.add(), SendEntries)] == [0, 2]
    assert writer.machine.failed_indexes == {1}
    assert writer.machine.next_deadline == LIMITS.replacement_retry_s


@pytest.mark.parametrize("status", [BookieStatus.READ_ONLY, BookieStatus.UNAUTHORIZED])
def test_bookie_that_stays_away_is_asked_before_an_add_ends_the_ledger(
    status: BookieStatus,
) -> None:
    """It refused before anything was added, and may take entries by now."""
    writer = Writer((2, 2, 2))
    assert writer.fail(1, status) == [CloseAppender(1)], "nothing waits for it"
    asked = only(writer.add(), ChooseBookies)
    assert [each.failed for each in asked] == [{1: "b1"}]


def test_late_answer_of_a_replaced_bookie_neither_pauses_nor_stalls_its_successor() -> None:
    writer = Writer()
    writer.add()
    writer.written(change_of_index_1(writer))
    for status in (BUSY, STALLED):
        assert not writer.machine.handle(AddFailed(1, BookieId("b1"), status), 0.0)
    writer.ack(0, 0)
    assert not only(writer.tick(0.1), CloseAppender), "the new one is not silent for long"
    assert [send.bookie_index for send in only(writer.add(), SendEntries)] == [0, 1, 2]


def test_acknowledgement_of_an_entry_of_another_lane_is_none() -> None:
    """Entry 1 was sent to b1 and b2 only, however many entries there are."""
    writer = Writer((3, 2, 1))
    writer.add(2)
    assert writer.ack(0, 1) == []
    assert writer.machine.last_add_confirmed == -1
    assert writer.ack(0, 0) == [ConfirmEntries(EntryId(0))]


def test_busy_bookie_is_asked_again_while_an_ensemble_change_is_written() -> None:
    writer = Writer()
    writer.add()
    change_of_index_1(writer)
    writer.fail(0, BUSY)
    assert [each.bookie_index for each in only(writer.tick(0.9), OpenAppender)] == [0]


def test_failed_and_silent_members_are_looked_after_by_one_question() -> None:
    writer = Writer()
    writer.add()
    writer.fail(0)
    writer.choose()
    asked = one(writer.tick(LIMITS.add_timeout_s), ChooseBookies)
    assert asked.indexes == (0, 1, 2) and asked.silent == {1: "b1", 2: "b2"}


def test_silent_member_is_kept_beside_one_that_has_had_its_time() -> None:
    """Without both of them nothing would be confirmed, however much producers wait."""
    writer = Writer()
    writer.add(size=1)
    writer.ack(0, 0)
    writer.ack(2, 0)
    wait_s = LIMITS.stalled_wait_s
    for second in range(int(wait_s)):
        writer.now = float(second)
        writer.fail(1, BUSY)
        writer.tick(second + 0.5)
    writer.now = wait_s - 0.4
    writer.add(size=LIMITS.bytes_in_flight_max)
    writer.ack(0, 1)
    assert not writer.machine.has_room and not writer.machine.failed_indexes
    commands = writer.tick(wait_s + 0.7)  # b2 is silent for a second, and would be spared
    assert only(commands, CloseAppender) == [CloseAppender(1)]
    assert writer.machine.failed_indexes == {1}
