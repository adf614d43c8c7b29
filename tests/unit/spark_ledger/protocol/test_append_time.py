"""What time does to a writer: silence, slowness, idleness."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.append_announce import REPEAT_S, REPEAT_S_MAX
from spark_ledger.protocol.append_limits import AppendLimits
from spark_ledger.protocol.events import (
    AddAcknowledged,
    AnnounceLastConfirmed,
    Append,
    ChooseBookies,
    CloseAppender,
    Command,
    LastConfirmedTold,
    Tick,
    WriteMetadata,
)
from spark_ledger.types import BookieStatus, EntryId
from tests.unit.spark_ledger.protocol.append_driver import LIMITS, Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import ids, ledger, one, only


def test_a_silent_bookie_fails_after_the_timeout() -> None:
    writer = Writer()
    writer.add()
    writer.ack(0, 0)
    assert only(writer.tick(4.9), ChooseBookies) == []
    asked = one(writer.tick(5.0), ChooseBookies)
    assert asked.indexes == (1, 2), "silent together, replaced together"


def test_slow_bookie_fails_only_when_there_is_no_room() -> None:
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
    assert not writer.machine.is_idle, "nobody has stored it yet"
    writer.told("b0", "b2", last=0)
    assert not writer.machine.is_idle, "whoever hears b1 and one of them would not believe it"
    writer.told("b1", last=0)
    assert writer.machine.is_idle


def test_writer_is_idle_only_once_every_live_bookie_holds_all() -> None:
    writer = Writer()
    writer.add()
    writer.ack(0, 0)
    writer.ack(1, 0)
    writer.tick(0.02)
    writer.told("b0", "b1", "b2", last=0)
    assert not writer.machine.is_idle, "b2 may yet be too slow"
    writer.fail(2)
    assert writer.machine.is_idle, "nobody waits for it"
    writer.close()
    assert not writer.machine.is_idle, "an answer is waited for"


def idle(quorums: tuple[int, int, int], bookies: str) -> Writer:
    """A writer whose one entry is confirmed, and that has announced it once."""
    writer = Writer(quorums)
    writer.add()
    writer.ack_all()
    assert writer.tick(0.02) == [AnnounceLastConfirmed(EntryId(0), ids(bookies))]
    return writer


def test_lost_announcement_is_repeated_to_those_who_do_not_know_it() -> None:
    writer = idle((3, 3, 2), "b0 b1 b2")
    writer.told("b1", last=0)
    writer.told("b0", last=0, status=BookieStatus.TIMEOUT)
    assert writer.machine.next_deadline == 0.02 + REPEAT_S
    assert writer.tick(0.4) == []
    writer.told("b2", last=0, status=BookieStatus.UNAVAILABLE)
    assert writer.tick(0.6) == [AnnounceLastConfirmed(EntryId(0), ids("b0 b2"))]
    assert writer.machine.next_deadline == 0.6 + 2 * REPEAT_S
    writer.told("b2", last=0)
    assert not writer.machine.is_idle, "two of three agree only if both of them answer"
    writer.told("b0", last=0)
    assert writer.machine.is_idle and writer.machine.next_deadline is None
    assert writer.tick(100.0) == []


def test_announcement_is_repeated_to_failed_members_at_pauses_that_are_bounded() -> None:
    """With two copies of which one has to answer, readers believe both or neither."""
    writer = idle((2, 2, 1), "b0 b1")
    writer.told("b0", last=0)
    writer.fail(1)
    times = []
    for _ in range(12):
        writer.told("b1", last=0, status=BookieStatus.UNAVAILABLE)
        due = writer.machine.next_deadline
        assert due is not None
        times.append(due)
        assert writer.tick(due) == [AnnounceLastConfirmed(EntryId(0), ids("b1"))]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses[:3] == pytest.approx([2 * REPEAT_S, 4 * REPEAT_S, 8 * REPEAT_S])
    assert pauses[-1] == pytest.approx(REPEAT_S_MAX)
    writer.told("b1", last=0)
    assert writer.machine.next_deadline is None


def test_first_announcement_goes_to_who_lives_and_its_repetition_is_soon_again() -> None:
    writer = idle((3, 3, 2), "b0 b1 b2")
    for now in (1.0, 3.0, 7.0, 15.0):
        writer.told("b0", "b1", "b2", last=0, status=BookieStatus.UNAVAILABLE)
        writer.tick(now)
    writer.told("b0", "b1", "b2", last=0, status=BookieStatus.UNAVAILABLE)
    writer.now = 20.0
    writer.add()
    writer.ack_all()
    writer.fail(1)
    assert writer.tick(20.1) == [AnnounceLastConfirmed(EntryId(1), ids("b0 b2"))]
    assert writer.machine.next_deadline == pytest.approx(20.1 + REPEAT_S)


def test_end_is_not_announced_while_entries_are_under_way() -> None:
    """They carry it, or the next ones will."""
    writer = Writer()
    writer.add(2)
    for index in (0, 1):
        writer.ack(index, 0)
    assert writer.machine.last_add_confirmed == 0
    assert writer.tick(1.0) == []


def test_answer_to_an_older_announcement_does_not_end_the_newer_one() -> None:
    writer = idle((2, 2, 2), "b0 b1")
    writer.add()
    writer.ack_all()
    writer.told("b0", "b1", last=0)
    assert writer.tick(0.05) == [AnnounceLastConfirmed(EntryId(1), ids("b0 b1"))]
    writer.told("b0", last=1)
    writer.told("b0", last=0)
    assert not writer.machine.is_idle
    writer.told("b1", last=1)
    assert writer.machine.is_idle


def test_member_that_comes_in_has_to_be_told() -> None:
    writer = idle((2, 2, 2), "b0 b1")
    writer.told("b0", "b1", last=0)
    writer.add()
    metadata = change_of_index_1(writer)
    writer.written(metadata)
    writer.ack_all()
    assert writer.tick(0.1) == [AnnounceLastConfirmed(EntryId(1), ids("b0 b3"))]
    writer.told("b0", "b1", last=1)
    assert not writer.machine.is_idle, "b1 is no member any more"
    writer.told("b3", last=1)
    assert writer.machine.is_idle


def test_confirmed_end_is_not_announced_after_another_add() -> None:
    writer = Writer()
    writer.add()
    writer.ack_all()
    writer.add()
    assert writer.tick(1.0) == [], "nobody needs to be told 0 again"


def test_spare_bookie_is_given_up_no_later_than_any_other() -> None:
    limits = AppendLimits(add_timeout_s=1.0, slow_bookie_grace_s=5.0)
    assert limits.spare_after_s == 1.0
    assert LIMITS.spare_after_s == LIMITS.slow_bookie_grace_s


def test_short_timeout_is_looked_at_in_time_also_while_producers_wait() -> None:
    """A client may be told to wait for less than the grace of a slow bookie."""
    limits = AppendLimits(
        add_timeout_s=0.5, slow_bookie_grace_s=1.0, bytes_in_flight_max=100, entry_bytes=0
    )
    machine = AppendMachine(ledger((3, 3, 2), (0, "b0 b1 b2")), 4, now=0.0, limits=limits)
    machine.handle(Append([10]), 0.0)
    assert machine.next_deadline == 0.5
    machine.handle(Append([100]), 0.0)
    assert not machine.has_room and machine.next_deadline == 0.5


@pytest.mark.parametrize(("entries", "size", "given_up_s"), [(10, 1, 5.0), (10, 10, 1.0)])
def test_slow_bookie_is_given_up_early_only_behind_much_payload(
    entries: int, size: int, given_up_s: float
) -> None:
    """A batch of small entries takes more memory than may be in flight, and nobody has to wait: a
    bookie went with each pause of its disk, and what it held had to be copied."""
    limits = AppendLimits(bytes_in_flight_max=100)
    machine = AppendMachine(ledger((3, 3, 2), (0, "b0 b1 b2")), 4, now=0.0, limits=limits)
    machine.handle(Append([size] * entries), 0.0)
    for index in (0, 1):
        bookie = machine.bookies[index]
        machine.handle(AddAcknowledged(index, bookie, EntryId(entries - 1)), 0.0)
    assert not machine.has_room
    now, closed = 0.0, list[Command]()
    while not closed:
        deadline = machine.next_deadline
        assert deadline is not None
        now = max(now, deadline)
        closed = only(machine.handle(Tick(), now), CloseAppender)
        for name in ids("b0 b1 b2"):
            machine.handle(LastConfirmedTold(name, EntryId(entries - 1), BookieStatus.OK), now)
    assert closed == [CloseAppender(2)] and now == given_up_s


def test_tick_after_stop_changes_nothing() -> None:
    writer = Writer()
    writer.add()
    writer.fail(0, BookieStatus.FENCED)
    writer.looked(None)
    assert writer.tick(100.0) == []


def test_bytes_in_flight_count_all_entries_of_a_slow_bookie() -> None:
    writer = Writer()
    writer.add(10_000, size=1)
    for index in (0, 1):
        writer.ack(index, 9_999)
    assert writer.machine.last_add_confirmed == 9_999
    assert writer.machine.bytes_in_flight == 10_000
    writer.ack(2, 6_000)
    assert writer.machine.bytes_in_flight == 3_999
    writer.add(5_000, size=1)
    writer.ack_all()
    assert writer.machine.bytes_in_flight == 0
    closed = one(writer.close(), WriteMetadata).metadata
    assert (closed.last_entry_id, closed.length) == (14_999, 15_000), "the last one is kept"


def test_entries_that_come_one_by_one_leave_nothing_in_flight() -> None:
    writer = Writer()
    for entry in range(3):
        writer.add(size=10)
        assert writer.machine.bytes_in_flight == 10
        writer.ack_all()
        assert (writer.machine.held_by_all, writer.machine.bytes_in_flight) == (entry, 0)


def test_idle_counts_from_the_last_add() -> None:
    """However long ago the writer began: entries that follow one another carry the LAC."""
    writer = Writer()
    writer.now = 100.0
    writer.add()
    writer.ack_all()
    assert writer.tick(100.01) == []
    assert writer.tick(100.03) == [AnnounceLastConfirmed(EntryId(0), ids("b0 b1 b2"))]


def test_next_deadline_is_when_a_tick_changes_something() -> None:
    writer = Writer()
    assert writer.machine.next_deadline is None
    writer.add()
    assert writer.machine.next_deadline == LIMITS.add_timeout_s
    writer.add(count=20)  # over the bound: producers wait
    assert writer.machine.next_deadline == LIMITS.slow_bookie_grace_s
    for index in range(2):
        writer.ack(index, writer.machine.last_add_pushed)
    assert writer.machine.next_deadline == LIMITS.explicit_lac_delay_s
    writer.tick(LIMITS.explicit_lac_delay_s)
    assert writer.machine.next_deadline == LIMITS.explicit_lac_delay_s + REPEAT_S
    writer.told("b0", "b1", "b2", last=writer.machine.last_add_confirmed)
    assert writer.machine.next_deadline == LIMITS.slow_bookie_grace_s, "the third one is silent"
    writer.ack(2, writer.machine.last_add_pushed)
    assert writer.machine.next_deadline is None


def test_next_deadline_of_a_writer_without_replacements_is_the_next_look() -> None:
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.choose()
    assert writer.machine.next_deadline == LIMITS.replacement_retry_s
    writer.close()
    assert writer.machine.next_deadline is None
