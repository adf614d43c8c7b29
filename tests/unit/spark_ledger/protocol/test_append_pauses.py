"""Bookies that hang, stall, or are busy: how long a writer waits, and whom it takes back when."""

from __future__ import annotations

import pytest

from spark_ledger.errors import EnsembleLostError
from spark_ledger.limits.bookie import BOOKIE_REFRESH_INTERVAL_S
from spark_ledger.limits.client import BOOKIE_RETURN_DELAY_S, BOOKIE_RETURN_DELAY_S_MAX
from spark_ledger.protocol.events import (
    AddFailed,
    BookiesChosen,
    ChooseBookies,
    CloseAppender,
    Command,
    ConfirmEntries,
    FailEntries,
    OpenAppender,
    SendEntries,
    WriteMetadata,
)
from spark_ledger.protocol.member import return_delay_s
from spark_ledger.types import BookieId, BookieStatus, EntryId
from tests.unit.spark_ledger.protocol.append_driver import LIMITS, Writer
from tests.unit.spark_ledger.protocol.ledgers import one, only

BUSY, STALLED = BookieStatus.TOO_MANY_REQUESTS, BookieStatus.STALLED


class Minute:
    """Sixty seconds of a writer on three bookies with no other: index 2 takes entries and, from the
    start on, never acknowledges one, though it answers every probe."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.changes = 0
        self.gap_s = 0.0
        self._confirmed_at = 0.0

    def run(self) -> None:
        for tenth in range(600):
            self._perform(self.writer.tick(tenth / 10))
            if self.writer.machine.has_room:
                self._perform(self.writer.add())
            last = self.writer.machine.last_add_pushed
            self._perform(self.writer.ack(0, last) + self.writer.ack(1, last))

    def _perform(self, commands: list[Command]) -> None:
        now = self.writer.now
        for command in commands:
            match command:
                case ConfirmEntries():
                    self.gap_s = max(self.gap_s, now - self._confirmed_at)
                    self._confirmed_at = now
                case ChooseBookies():
                    alive = frozenset(command.silent)
                    chosen = BookiesChosen(dict(command.failed), alive)
                    self._perform(self.writer.machine.handle(chosen, now))
                case WriteMetadata():
                    self.changes += 1
                    self._perform(self.writer.written(command.metadata, 4 + self.changes))


def test_a_bookie_whose_disk_hangs_for_a_minute_returns_three_times_at_most() -> None:
    minute = Minute()
    minute.run()
    assert 1 <= minute.changes <= 3
    assert minute.gap_s <= LIMITS.slow_bookie_grace_s + 0.5
    assert minute.writer.machine.last_add_confirmed > 400


def test_return_delays_double_up_to_a_bound() -> None:
    assert return_delay_s(0) == 0
    assert [return_delay_s(n) for n in (1, 2, 3)] == [BOOKIE_RETURN_DELAY_S * f for f in (1, 2, 4)]
    assert return_delay_s(50) == return_delay_s(5000) == BOOKIE_RETURN_DELAY_S_MAX


def fail_twice(writer: Writer, worked_for_s: float) -> ChooseBookies:
    """b1 fails, returns, acknowledges after so long, and fails again: what is asked then."""
    writer.add()
    writer.fail(1)
    writer.choose(i1="b1")
    writer.now = worked_for_s
    writer.ack(1, 0)
    return one(writer.fail(1), ChooseBookies)


def test_a_bookie_that_worked_for_a_while_returns_at_once() -> None:
    assert fail_twice(Writer(), BOOKIE_RETURN_DELAY_S).failed == {1: "b1"}


def test_a_bookie_that_fails_again_soon_stays_away() -> None:
    assert fail_twice(Writer(), BOOKIE_RETURN_DELAY_S - 0.1).failed == {}


def test_a_bookie_that_worked_returns_at_once_where_nothing_goes_on_without_it() -> None:
    assert fail_twice(Writer((2, 2, 2)), 1.0).failed == {1: "b1"}


@pytest.mark.parametrize(
    "status",
    [
        BookieStatus.UNAUTHORIZED,
        BookieStatus.ENTRY_CONFLICT,
        BookieStatus.WRONG_BOOKIE,
        BookieStatus.BAD_REQUEST,
        BookieStatus.UNKNOWN_STATE,
    ],
)
def test_a_refusal_that_a_restart_does_not_mend_keeps_a_bookie_away(status: BookieStatus) -> None:
    writer = Writer()
    writer.add()
    assert one(writer.fail(1, status), ChooseBookies).failed == {}
    writer.choose()
    asked = one(writer.tick(BOOKIE_RETURN_DELAY_S), ChooseBookies)
    assert asked.failed == {1: "b1"} if asked.silent == {} else 1 in asked.failed


def test_a_full_bookie_returns_when_its_registration_may_say_so() -> None:
    writer = Writer()
    writer.add()
    assert one(writer.fail(1, BookieStatus.READ_ONLY), ChooseBookies).failed == {}
    writer.choose()
    writer.ack(0, 0)
    writer.ack(2, 0)
    writer.tick(BOOKIE_REFRESH_INTERVAL_S)
    assert one(writer.add(), ChooseBookies).failed == {1: "b1"}


# -- silence that cannot be spared -----------------------------------------------------------------


def silent() -> tuple[Writer, ChooseBookies]:
    """All three are silent for as long as one alone would be given."""
    writer = Writer()
    writer.add()
    return writer, one(writer.tick(5.0), ChooseBookies)


def answer(writer: Writer, *alive: int, **replacements: str) -> list[Command]:
    chosen = {int(index[1:]): BookieId(name) for index, name in replacements.items()}
    return writer.machine.handle(BookiesChosen(chosen, frozenset(alive)), writer.now)


def test_all_are_silent_and_alive_nothing_is_sent_twice() -> None:
    writer, asked = silent()
    assert asked.failed == {} and asked.silent == {0: "b0", 1: "b1", 2: "b2"}
    assert answer(writer, 0, 1, 2) == []
    assert writer.tick(5.9) == [], "asked again after a while only"
    one(writer.tick(6.0), ChooseBookies)
    assert answer(writer, 0, 1, 2) == []
    writer.now = 10.0
    writer.ack(0, 0)
    assert one(writer.ack(1, 0), ConfirmEntries).last == 0
    assert not writer.machine.failed_indexes


def test_all_are_silent_and_others_take_their_places() -> None:
    writer, _ = silent()
    commands = answer(writer, 1, i0="b3", i2="b4")
    assert only(commands, CloseAppender) == [CloseAppender(0), CloseAppender(2)]
    assert one(commands, WriteMetadata).metadata.last_fragment.bookies == ("b3", "b1", "b4")


def test_silent_bookies_that_answer_no_probe_fail() -> None:
    writer, _ = silent()
    error = one(answer(writer, 2), FailEntries).error
    assert isinstance(error, EnsembleLostError) and "b0 (timeout), b1 (timeout)" in str(error)


def test_who_acknowledges_while_it_is_asked_about_is_not_replaced() -> None:
    writer, _ = silent()
    writer.now = 5.5
    writer.ack(0, 0)
    commands = answer(writer, i0="b3", i1="b4", i2="b5")
    assert only(commands, CloseAppender) == [CloseAppender(1), CloseAppender(2)]


def test_bookies_that_are_alive_are_not_waited_for_without_end() -> None:
    writer, _ = silent()
    answer(writer, 0, 1, 2)
    commands = writer.tick(LIMITS.stalled_wait_s)
    assert len(only(commands, CloseAppender)) == 3
    assert one(commands, ChooseBookies).failed == {}, "none of them may begin anew"
    assert isinstance(one(answer(writer), FailEntries).error, EnsembleLostError)


def test_a_bookie_whose_journal_stalls_is_replaced_at_the_next_tick() -> None:
    writer = Writer()
    writer.add()
    writer.ack(0, 0)
    assert writer.fail(1, STALLED) == [], "it may be needed"
    commands = writer.tick(0.02)
    assert one(commands, CloseAppender).bookie_index == 1
    assert writer.machine.failed_indexes == {1}
    assert one(commands, ChooseBookies).failed == {}, "it would hang again: not at once"


def test_bookies_whose_journals_all_stall_are_waited_for() -> None:
    writer = Writer()
    writer.add()
    for index in range(3):
        writer.fail(index, STALLED)
    assert set(one(writer.tick(0.02), ChooseBookies).silent) == {0, 1, 2}
    assert answer(writer, 0, 1, 2) == []
    writer.ack(0, 0)
    assert one(writer.ack(1, 0), ConfirmEntries)


def test_a_bookie_that_is_busy_because_it_stalls_is_replaced_where_others_suffice() -> None:
    """Its pauses are no answers: otherwise it would be waited for as long as it says busy."""
    writer = Writer()
    writer.add()
    writer.ack(0, 0)
    assert writer.fail(1, STALLED) == [] and writer.fail(1, BUSY) == [CloseAppender(1)]
    assert only(writer.tick(0.2), OpenAppender), "it is asked once more"
    writer.tick(0.3)
    assert writer.machine.failed_indexes == {1}


def test_a_stall_of_a_bookie_that_was_replaced_changes_nothing() -> None:
    writer = Writer()
    writer.add()
    writer.machine.handle(AddFailed(1, BookieId("b9"), STALLED), 0.0)
    writer.ack(0, 0)
    assert not only(writer.tick(0.02), CloseAppender)


# -- busy bookies ----------------------------------------------------------------------------------


def test_a_busy_bookie_is_sent_the_same_again_and_has_not_failed() -> None:
    writer = Writer()
    writer.add(2)
    writer.ack(1, 0)
    assert writer.fail(1, BUSY) == [CloseAppender(1)]
    assert writer.fail(1, BUSY) == [], "of the appender that was closed"
    assert [send.bookie_index for send in only(writer.add(), SendEntries)] == [0, 2]
    assert not writer.machine.failed_indexes and not writer.machine.is_idle
    due = writer.machine.next_deadline
    assert due is not None and 0.05 <= due < 0.1
    assert writer.machine.held_by_all == -1, "the others have not answered"
    writer.ack(0, 2)
    writer.ack(2, 2)
    assert writer.machine.held_by_all == 0
    assert not only(writer.tick(0.04), OpenAppender)
    assert writer.tick(0.08)[:2] == [
        OpenAppender(1, BookieId("b1")),
        SendEntries(1, EntryId(1), EntryId(2)),
    ]
    assert writer.ack(1, 2) == [] and writer.machine.held_by_all == 2


def test_pauses_of_a_busy_bookie_double_until_it_acknowledges() -> None:
    writer = Writer()
    writer.add()
    waits = []
    for _ in range(8):
        writer.fail(1, BUSY)
        began = writer.now
        while not only(writer.tick(writer.now + 0.01), OpenAppender):
            pass
        waits.append(writer.now - began)
    assert waits[0] < 0.1 and 1.0 <= waits[-1] < 1.6 and waits[:4] == sorted(waits[:4])


def test_a_bookie_that_is_busy_for_very_long_fails() -> None:
    writer = Writer()
    writer.add()
    writer.ack(0, 0)
    for second in range(int(LIMITS.stalled_wait_s)):
        writer.tick(float(second))
        writer.fail(1, BUSY)
        writer.ack(2, 0)
    assert not writer.machine.failed_indexes
    commands = writer.tick(LIMITS.stalled_wait_s)
    assert writer.machine.failed_indexes == {1}
    assert not only(commands, ChooseBookies), "all is confirmed"
    assert one(writer.add(), ChooseBookies).failed == {}, "it has had its time"


def test_a_busy_bookie_of_a_stripe_is_sent_its_own_unanswered_entries_only() -> None:
    writer = Writer((3, 2, 1))
    writer.add()  # entry 0 on b0 and b1
    writer.ack(0, 0)
    writer.ack(1, 0)
    writer.add()  # entry 1 on b1 and b2
    writer.ack(1, 1)
    writer.ack(2, 1)
    assert writer.machine.held_by_all == 1
    writer.add()  # entry 2 on b2 and b0
    writer.ack(2, 2)
    writer.fail(0, BUSY)
    assert writer.machine.held_by_all == 1, "b0 owes entry 2 only, whatever it acknowledged last"
    assert only(writer.tick(1.0), SendEntries) == [SendEntries(0, EntryId(2), EntryId(2))]
