"""Reading a lane: order, failover, speculation, and what a failure means."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spark_ledger.errors import BookieUnavailableError, DigestMismatchError, NoSuchEntryError
from spark_ledger.limits.client import BUSY_PAUSE_S, BUSY_PAUSE_S_MAX, READ_TIMEOUT_S
from spark_ledger.protocol.events import (
    CancelRead,
    Command,
    ConsumerReady,
    DeliverEntries,
    Done,
    EntriesRead,
    Failed,
    LengthRead,
    ReadEnded,
    ReadEntries,
)
from spark_ledger.types import BookieId, BookieStatus, EntryId
from tests.unit.spark_ledger.protocol.ledgers import one, only
from tests.unit.spark_ledger.protocol.reader_driver import (
    DAMAGED,
    DOWN,
    METADATA,
    NO,
    OK,
    STRIPED,
    Reader,
    machine_for,
)


def asks(bookie_index: int, first: int, last: int = 9) -> ReadEntries:
    name = BookieId(f"b{bookie_index}")
    return ReadEntries(bookie_index, 0, name, EntryId(first), EntryId(last), 1, fence=False)


def delivers(bookie_index: int, first: int, last: int) -> DeliverEntries:
    return DeliverEntries(bookie_index, 0, EntryId(first), EntryId(last))


def test_the_preferred_replica_brings_all() -> None:
    reader = Reader()
    assert reader.started == [asks(1, 0)]
    assert reader.bring(1, 4) == [delivers(1, 0, 4)]
    assert reader.bring(1, 9) == [delivers(1, 5, 9), CancelRead(1, 0), Done(METADATA, 3)]
    assert reader.end(1, OK, 10) == [] and reader.tick(9.0) == [], "it is over"
    assert reader.machine.slow_indexes == set()


def test_a_striped_lane() -> None:
    machine = machine_for(STRIPED, 1, 4, 10, [1, 2])
    asked = one(machine.start(0.0), ReadEntries)
    assert (asked.bookie_index, asked.first, asked.last, asked.stride) == (1, 4, 10, 3)
    machine.handle(EntriesRead(1, 1, EntryId(7)), 0.0)
    assert one(machine.handle(EntriesRead(1, 1, EntryId(10)), 0.0), Done)


def test_a_striped_lane_goes_on_at_its_own_next_entry() -> None:
    machine = machine_for(STRIPED, 2, 5, 11, [2, 0])
    machine.start(0.0)
    brought = machine.handle(EntriesRead(2, 2, EntryId(5)), 0.0)
    assert brought == [DeliverEntries(2, 2, EntryId(5), EntryId(5))]
    failed = machine.handle(ReadEnded(2, 2, DOWN, EntryId(8)), 0.0)
    assert one(failed, ReadEntries).first == 8
    brought = machine.handle(EntriesRead(0, 2, EntryId(11)), 0.0)
    assert brought[0] == DeliverEntries(0, 2, EntryId(8), EntryId(11))


def test_the_next_replica_goes_on_where_one_failed() -> None:
    reader = Reader()
    reader.bring(1, 4)
    assert reader.end(1, DOWN, 5) == [asks(2, 5)]
    assert reader.bring(2, 9)[0] == delivers(2, 5, 9)


def test_the_byte_cap_is_no_failure() -> None:
    reader = Reader()
    reader.bring(1, 4)
    assert reader.end(1, OK, 5) == [asks(1, 5)]


def test_replica_that_goes_on_and_brings_nothing_more_is_asked_no_third_time() -> None:
    reader = Reader()
    reader.bring(1, 4)
    assert reader.end(1, OK, 5) == [asks(1, 5)]
    assert reader.end(1, OK, 5) == [asks(2, 5)]


def test_replica_that_is_asked_late_has_all_of_its_time() -> None:
    reader = Reader()
    assert reader.end(1, DOWN, now=0.4) == [asks(2, 0)]
    assert reader.machine.next_deadline == pytest.approx(0.9)
    assert reader.tick(0.8) == [] and reader.tick(0.9) == [asks(0, 0)]
    assert reader.machine.slow_indexes == {2}


def test_last_replica_that_is_left_is_waited_for_however_slow_it_is() -> None:
    """The others have said why not; it may be the only one that has the entry (rule P19)."""
    reader = Reader()
    reader.end(1, DOWN)
    assert reader.end(2, NO) == [asks(0, 0)]
    for second in range(1, 9):
        assert reader.tick(float(second)) == []
        due = reader.machine.next_deadline
        assert due is not None and due > second, "a time that has passed would be looked at again"
    assert reader.bring(0, 9, 9.0)[0] == delivers(0, 0, 9)


def test_error_names_the_entry_that_is_next() -> None:
    reader = Reader()
    reader.bring(1, 4)
    for index in (1, 2):
        reader.end(index, DOWN, 5)
    assert "ledger 7 entry 5" in str(one(reader.end(0, DOWN, 5), Failed).error)


def test_an_answer_with_nothing_in_it_is_a_failure() -> None:
    reader = Reader()
    assert reader.end(1, OK) == [asks(2, 0)]
    assert reader.end(2, OK) == [asks(0, 0)]
    assert isinstance(one(reader.end(0, OK), Failed).error, BookieUnavailableError)


def test_a_replica_may_be_asked_again_about_later_entries() -> None:
    reader = Reader()
    reader.end(1, NO, 0)
    reader.bring(2, 4)
    assert reader.end(2, DOWN, 5) == [asks(0, 5)]
    assert reader.end(0, DOWN, 5) == [asks(1, 5)], "its denial was of entry 0"


@pytest.mark.parametrize(
    ("statuses", "error"),
    [
        ((NO, NO, BookieStatus.NO_SUCH_LEDGER), NoSuchEntryError),
        ((NO, DOWN, NO), BookieUnavailableError),
        ((NO, NO, BookieStatus.UNKNOWN_STATE), BookieUnavailableError),
        ((DAMAGED, DAMAGED, DAMAGED), DigestMismatchError),
        ((NO, NO, DAMAGED), DigestMismatchError),
        ((DOWN, BookieStatus.TIMEOUT, DAMAGED), BookieUnavailableError),
        ((DAMAGED, NO, DOWN), BookieUnavailableError),
    ],
)
def test_missing_only_if_every_replica_says_so(
    statuses: tuple[BookieStatus, ...], error: type[Exception]
) -> None:
    reader = Reader()
    for bookie_index, status in zip((1, 2), statuses, strict=False):
        reader.end(bookie_index, status)
    failure = one(reader.end(0, statuses[2]), Failed).error
    assert type(failure) is error
    assert "ledger 7 entry 0" in str(failure) and "b1" in str(failure)
    if error is BookieUnavailableError:
        assert ("is damaged" in str(failure)) == (DAMAGED in statuses)


def test_a_silent_replica_is_overtaken() -> None:
    reader = Reader()
    assert reader.tick(0.4) == []
    assert reader.tick(0.5) == [asks(2, 0)]
    commands = reader.bring(2, 4, 0.6)
    assert commands == [delivers(2, 0, 4), CancelRead(1, 0)]
    assert reader.machine.slow_indexes == {1}
    assert reader.bring(1, 4, 0.6) == [] and reader.end(1, DOWN) == [], "cancelled"
    assert reader.bring(2, 9, 0.7)[0] == delivers(2, 5, 9)


def test_slow_replica_that_answers_first_wins() -> None:
    reader = Reader()
    reader.tick(0.5)
    assert reader.bring(1, 9, 0.6)[0] == delivers(1, 0, 9)
    assert reader.machine.slow_indexes == {1}


def test_silent_replicas_count_as_slow() -> None:
    """Also the one that was asked for help and had brought nothing yet."""
    reader = Reader()
    reader.tick(0.5)
    assert reader.bring(1, 4, 0.6) == [delivers(1, 0, 4), CancelRead(2, 0)]
    assert reader.machine.slow_indexes == {1, 2}


def test_what_was_delivered_is_not_delivered_again() -> None:
    """Two replicas at work: the second brings less than the first has brought."""
    reader = Reader()
    reader.bring(1, 4)
    reader.tick(0.5)
    assert reader.started and reader.bring(1, 4) == []
    assert reader.end(1, DOWN, 5, 0.6) == [], "2 is at work on it"
    assert reader.bring(2, 9, 0.7)[0] == delivers(2, 5, 9)


def test_all_replicas_are_asked_then_only_waited_for() -> None:
    reader = Reader()
    assert reader.tick(0.5) and reader.tick(1.0)
    assert reader.tick(1.5) == []
    assert reader.machine.next_deadline == 2.0, "a time that has passed would be looked at for ever"
    for bookie_index in (0, 1):
        assert reader.end(bookie_index, DOWN) == []
    assert isinstance(one(reader.end(2, DOWN), Failed).error, BookieUnavailableError)


def test_an_overtaken_replica_that_ends_is_no_problem() -> None:
    reader = Reader()
    reader.tick(0.5)
    reader.end(1, DOWN)
    reader.bring(2, 4, 0.6)
    assert only(reader.end(2, DOWN, 5), ReadEntries) == [asks(0, 5)]


def test_overtaken_replica_is_not_waited_for() -> None:
    reader = Reader()
    reader.tick(0.5)
    reader.bring(2, 4, 0.6)  # 1 is cancelled and says nothing more
    assert reader.end(2, DOWN, 5) == [asks(0, 5)]
    assert reader.end(0, DOWN, 5) == [asks(1, 5)]


def test_entries_already_delivered_do_not_end_speculation() -> None:
    reader = Reader(first=5)
    assert reader.bring(1, 3) == []
    assert reader.end(1, NO, 4) == [asks(2, 5)]
    reader.end(2, DOWN, 5)
    assert reader.end(0, DOWN, 5) == [asks(1, 5)]


def test_misuse_by_the_shell_is_refused() -> None:
    reader = Reader()
    with pytest.raises(AssertionError, match="not an event of a reader"):
        reader.machine.handle(LengthRead(0, EntryId(-1)), 0.0)
    for order, first, message in (([0, 1], 0, "every replica once"), ([0, 2], 1, "of the lane")):
        with pytest.raises(AssertionError, match=message):
            machine_for(STRIPED, 2, first, 9, order)


BUSY = BookieStatus.TOO_MANY_REQUESTS


def all_busy(reader: Reader, now: float) -> list[Command]:
    """Everybody who is asked says that it is busy, until nobody is asked."""
    commands: list[Command] = []
    for index in (1, 2, 0):
        commands = reader.end(index, BUSY, now=now)
    return commands


def test_busy_replicas_are_asked_again_after_pauses_that_double() -> None:
    reader = Reader()
    now, pauses = 0.0, []
    for _ in range(4):
        assert all_busy(reader, now) == []
        due = reader.machine.next_deadline
        assert due is not None
        assert reader.tick(due - 0.001) == [], "nobody is asked before"
        assert one(reader.tick(due), ReadEntries).first == 0
        pauses.append(due - now)
        now = due
    assert pauses == pytest.approx([pauses[0] * 2**n for n in range(4)])
    assert reader.bring(1, 9, now=now)[-1] == Done(METADATA, 3)
    assert reader.machine.next_deadline is None


def test_busy_replicas_are_waited_for_up_to_a_bound() -> None:
    reader = Reader()
    now = 0.0
    while not (commands := all_busy(reader, now)):
        due = reader.machine.next_deadline
        assert due is not None and due - now <= BUSY_PAUSE_S_MAX
        now = due
        reader.tick(now)
    assert now >= READ_TIMEOUT_S
    failed = one(commands, Failed)
    assert isinstance(failed.error, BookieUnavailableError)
    assert "too_many_requests" in str(failed.error)


def test_pauses_of_busy_replicas_begin_anew_with_each_entry() -> None:
    reader = Reader()
    for now in (0.0, 1.0):
        all_busy(reader, now)
        reader.tick(now + 0.9)
    reader.bring(1, 4, now=2.0)
    all_busy(reader, 2.0)
    due = reader.machine.next_deadline
    assert due is not None and due - 2.0 <= BUSY_PAUSE_S


def test_busy_replicas_are_waited_for_from_the_last_entry_that_was_brought() -> None:
    reader = Reader()
    assert all_busy(reader, 0.0) == []
    assert one(reader.tick(0.5), ReadEntries).bookie_index == 1
    later = 2 * READ_TIMEOUT_S
    reader.bring(1, 4, now=later)
    assert all_busy(reader, later) == [], "that they were busy was about an earlier entry"


def test_missing_everywhere_but_on_busy_replicas_is_not_missing() -> None:
    reader = Reader()
    reader.end(1, NO)
    reader.end(2, BUSY)
    assert reader.end(0, NO) == []
    due = reader.machine.next_deadline
    assert due is not None
    assert one(reader.tick(due), ReadEntries).bookie_index == 2, "the others have said it"
    failed = one(reader.end(2, NO, now=due), Failed)
    assert isinstance(failed.error, NoSuchEntryError)


def test_silence_counts_from_where_the_consumer_goes_on() -> None:
    reader = Reader()
    reader.bring(1, 4)
    assert reader.machine.handle(ConsumerReady(), 100.0) == []
    assert reader.tick(100.4) == []
    assert reader.machine.slow_indexes == frozenset()
    assert one(reader.tick(100.5), ReadEntries).bookie_index == 2


def test_busy_replicas_are_waited_for_from_where_the_consumer_goes_on() -> None:
    """While it took its time nobody was asked, so nobody has failed it."""
    reader = Reader()
    reader.bring(1, 4)
    later = 10 * READ_TIMEOUT_S
    reader.machine.handle(ConsumerReady(), later)
    assert all_busy(reader, later) == []
    due = reader.machine.next_deadline
    assert due is not None
    assert one(reader.tick(due), ReadEntries).first == 5


def test_busy_replicas_are_asked_again_beside_a_silent_one() -> None:
    """They were busy for a moment; it may hang for as long as one request may take (rule P19)."""
    reader = Reader()
    assert reader.tick(0.5) == [asks(2, 0)] and reader.end(2, BUSY, now=0.5) == []
    assert reader.tick(1.0) == [asks(0, 0)] and reader.end(0, BUSY, now=1.0) == []
    assert reader.machine.next_deadline == 1.5
    assert reader.tick(1.5) == [asks(2, 0)], "nobody else is left, and its pause is over"
    assert reader.bring(2, 9, now=1.6)[0] == delivers(2, 0, 9)
    assert reader.machine.slow_indexes == {1}


def test_busy_replicas_are_not_asked_beside_one_that_is_not_late() -> None:
    """It is at work: a second request would only keep them busy."""
    reader = Reader()
    reader.end(1, BUSY, now=0.0)
    assert reader.end(2, BUSY, now=0.0) == [asks(0, 0)]
    assert reader.machine.next_deadline == 0.5
    assert reader.tick(0.4) == []
    assert reader.tick(0.5) == [asks(1, 0)]


def test_pauses_of_busy_replicas_double_beside_a_silent_one_too() -> None:
    reader = Reader()
    reader.end(1, BUSY)
    reader.end(2, NO)
    asked, now = [], 0.0
    while now < READ_TIMEOUT_S - 1.0:
        due = reader.machine.next_deadline
        assert due is not None and due > now, "a time that has passed would be looked at for ever"
        now = due
        if reader.tick(now):
            asked.append(now)
            assert reader.end(1, BUSY, now=now) == [], "0 is asked"
    pauses = [after - before for before, after in pairwise(asked)]
    assert pauses == sorted(pauses) and BUSY_PAUSE_S_MAX <= pauses[-1] <= BUSY_PAUSE_S_MAX + 0.5
    assert len(asked) <= 9, "a busy bookie is left in peace"


def test_busy_replica_is_asked_again_when_a_silent_one_has_used_up_all_time() -> None:
    """It was busy for a moment, and has not been asked since."""
    reader = Reader()
    reader.end(1, BUSY)
    reader.end(2, NO)
    later = 2 * READ_TIMEOUT_S
    assert reader.end(0, BookieStatus.TIMEOUT, now=later) == []
    assert reader.tick(later) == [asks(1, 0)]
    failed = one(reader.end(1, BUSY, now=later), Failed)
    assert isinstance(failed.error, BookieUnavailableError), "that was for long enough"


def test_busy_replicas_are_waited_for_from_when_the_first_says_so() -> None:
    """Who was silent before has used up time of its own, and not theirs."""
    reader = Reader()
    later = 2 * READ_TIMEOUT_S
    reader.end(1, BookieStatus.TIMEOUT, now=later)
    reader.end(2, BUSY, now=later)
    assert reader.end(0, NO, now=later) == []
    due = reader.machine.next_deadline
    assert due is not None and later < due <= later + 2 * BUSY_PAUSE_S
    assert reader.tick(due) == [asks(2, 0)]
