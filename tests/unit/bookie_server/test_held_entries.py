"""While a ledger disk answers no read, adds of what it holds are busy, and no other one waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bookie_server import held_entries
from bookie_server.held_entries import HeldEntries, _Look, _NotInMemory
from bookie_server.opening import open_bookie
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.index.base import BlockLocation, IndexRow
from bookie_server.storage.index.memory_index import MemoryIndex
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Machine,
    formatted,
    make_run,
    small_config,
)
from tests.unit.bookie_server.test_duplicates import send, with_other_entry

OK, BUSY = BookieStatus.OK, BookieStatus.TOO_MANY_REQUESTS
HUNG, WELL = 2, 3
"""Ledgers of the directory whose disk hangs, and of the other one."""


class HangingReads:
    """Each read of the first ledger directory waits while the disk hangs."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.fails = False
        self.readers: list[threading.Thread] = []

    def plan(self, operation: Operation) -> Fault | None:
        if operation.kind == "pread" and operation.path.parent == LEDGERS[0]:
            if not self.goes_on.is_set():
                self.readers.append(threading.current_thread())
            assert self.goes_on.wait(10)
            return Fault(5) if self.fails else None
        return None

    def end(self) -> None:
        self.goes_on.set()
        for reader in self.readers:
            reader.join(10)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingReads]:
    monkeypatch.setattr(held_entries, "HELD_ENTRIES_WAIT_S", 0.05)
    disk = HangingReads()
    yield disk
    disk.end()


def holding(disk: HangingReads) -> Machine:
    """A bookie that holds an entry of each ledger on its disks, and asks these in threads."""
    config = small_config(write_once_bytes=0, block_cache_bytes=1000)  # no block stays in memory
    machine = Machine(FaultFileSystem(formatted(), disk.plan), config)
    assert machine.add(HUNG, [0], size=2000) is OK and machine.add(WELL, [0], size=2000) is OK
    machine.flush()
    machine.bookie._held.start()
    assert machine.add(HUNG, [0], size=2000) is OK  # now its log is open
    return machine


def hold_more(machine: Machine) -> None:
    """Further entries on the disk that may hang, each in a block of its own, and holes."""
    for entry in (1, 2, 5):
        assert machine.add(HUNG, [entry], size=2000) is OK
        machine.flush()


@pytest.mark.parametrize("recovery", [False, True])
def test_adds_of_held_entries_are_busy_while_their_disk_hangs_and_no_others(
    disk: HangingReads, caplog: pytest.LogCaptureFixture, *, recovery: bool
) -> None:
    machine = holding(disk)
    disk.goes_on.clear()
    began = time.monotonic()
    for _ in range(50):
        ((status, message),) = machine.start_add(HUNG, [0], recovery=recovery, size=2000)
        assert status is BUSY and str(LEDGERS[0]) in message
    assert time.monotonic() - began < 2, "only the first one waits, for a moment"
    assert len(disk.readers) == 1, "one thread waits for the disk, however many adds come"
    assert disk.readers[0] is not threading.current_thread()
    assert len([each for each in caplog.records if "does not answer a read" in each.message]) == 1
    assert machine.add(WELL, [0], size=2000) is OK, "the other disk answers"
    assert machine.add(HUNG, [1], size=2000) is OK, "it is new, and asks no disk"
    assert machine.add(HUNG, [1], size=2000) is OK, "it is in memory"
    assert machine.bookie.append_bytes_in_flight == 0
    disk.end()
    assert machine.add(HUNG, [0], recovery=recovery, size=2000) is OK
    other = with_other_entry(make_run(HUNG, [0], 2000), 0)
    assert send(machine, other)[0] is BookieStatus.ENTRY_CONFLICT
    assert machine.add(HUNG, [2], recovery=recovery, size=2000) is OK
    assert sorted(machine.held(HUNG)) == [0, 1, 2]
    machine.close()


def test_disk_that_hangs_again_is_told_again(
    disk: HangingReads, caplog: pytest.LogCaptureFixture
) -> None:
    machine = holding(disk)
    hold_more(machine)
    for entry in (0, 1):
        disk.goes_on.clear()
        assert machine.add(HUNG, [entry], size=2000) is BUSY
        disk.end()
        assert machine.add(HUNG, [entry], size=2000) is OK
        send_until_stored(machine, 5)  # in time: the disk is well
        assert machine.add(HUNG, [2], size=2000) is OK
    assert len([each for each in caplog.records if "does not answer a read" in each.message]) == 2
    machine.close()


def send_until_stored(machine: Machine, entry: int) -> None:
    """As a client does: again behind a pause."""
    deadline = time.monotonic() + 10
    while (status := machine.add(HUNG, [entry], size=2000)) is BUSY:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert status is OK


@pytest.mark.parametrize("recovery", [False, True])
def test_entries_that_are_not_held_ask_no_disk_and_no_thread(
    disk: HangingReads, monkeypatch: pytest.MonkeyPatch, *, recovery: bool
) -> None:
    machine = holding(disk)
    hold_more(machine)
    monkeypatch.setattr(held_entries, "_Look", None)
    disk.goes_on.clear()
    for entry in (3, 4, 6):
        assert machine.add(HUNG, [entry], recovery=recovery, size=2000) is OK
    assert not disk.readers
    disk.end()
    assert sorted(machine.held(HUNG)) == [0, 1, 2, 3, 4, 5, 6]
    machine.close()


def test_block_in_the_cache_of_blocks_needs_no_disk_and_no_thread(
    disk: HangingReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(
        FaultFileSystem(formatted(), disk.plan),
        small_config(write_once_bytes=0, block_cache_bytes=100_000),
    )
    assert machine.add(HUNG, [0, 1], size=2000) is OK
    machine.flush()
    machine.bookie._held.start()
    assert machine.add(HUNG, [0], size=2000) is OK
    monkeypatch.setattr(held_entries, "_Look", None)
    disk.goes_on.clear()
    assert machine.add(HUNG, [1], size=2000) is OK
    assert machine.add(HUNG, [0], size=2000) is OK
    assert not disk.readers
    machine.close()


def test_holes_of_a_lane_read_its_block_once(disk: HangingReads) -> None:
    """As where repair copies lane after lane, and a flush comes in between."""
    machine = Machine(
        FaultFileSystem(formatted(), disk.plan),
        small_config(write_once_bytes=0, block_cache_bytes=100_000),
    )
    assert machine.add(HUNG, [0, 3, 6, 9], size=2000, recovery=True) is OK
    machine.flush()
    machine.bookie._held.start()
    assert machine.add(HUNG, [1], size=2000, recovery=True) is OK
    disk.goes_on.clear()
    assert machine.add(HUNG, [4, 7], size=2000, recovery=True) is OK
    assert machine.add(HUNG, [2, 5, 8], size=2000, recovery=True) is OK
    assert not disk.readers
    disk.end()
    assert sorted(machine.held(HUNG)) == list(range(10))
    machine.close()


def test_add_finds_what_a_late_look_has_read_and_no_other_waits_in_place(
    disk: HangingReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = holding(disk)
    hold_more(machine)
    disk.goes_on.clear()
    assert machine.add(HUNG, [0], size=2000) is BUSY
    disk.end()
    disk.goes_on.clear()
    monkeypatch.setattr(held_entries, "HELD_ENTRIES_WAIT_S", 5.0)
    assert machine.add(HUNG, [0], size=2000) is OK, "it is told what was read for it"
    assert len(disk.readers) == 1
    began = time.monotonic()
    assert machine.add(HUNG, [1], size=2000) is BUSY
    assert time.monotonic() - began < 3, "the disk was late the last time"
    disk.end()
    assert machine.add(HUNG, [1], size=2000) is OK
    answers = threading.Timer(0.1, disk.goes_on.set)
    disk.goes_on.clear()
    answers.start()
    assert machine.add(HUNG, [2], size=2000) is OK, "it was in time, and is waited for again"
    answers.join()
    machine.close()


def test_add_is_told_the_error_that_a_late_look_has_met_once(disk: HangingReads) -> None:
    machine = holding(disk)
    disk.fails = True
    disk.goes_on.clear()
    assert machine.add(HUNG, [0], size=2000) is BUSY
    disk.end()
    disk.fails = False
    assert machine.add(HUNG, [0], size=2000) is BookieStatus.IO_ERROR
    send_until_stored(machine, 0)
    machine.close()


def test_late_look_decides_nothing_about_what_came_since(disk: HangingReads) -> None:
    """It has found that entry 3 is not held: by now it is, with other bytes."""
    machine = holding(disk)
    hold_more(machine)
    run = make_run(HUNG, [2, 3], 2000)
    disk.goes_on.clear()
    assert send(machine, run)[0] is BUSY
    assert send(machine, with_other_entry(make_run(HUNG, [3], 2000), 3))[0] is OK
    disk.end()
    assert send(machine, run)[0] is BookieStatus.ENTRY_CONFLICT
    machine.close()


def test_late_look_keeps_no_more_than_a_message(
    disk: HangingReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_entries, "_KEPT_BYTES_MAX", 5000)
    machine = holding(disk)
    hold_more(machine)
    disk.goes_on.clear()
    assert send(machine, make_run(HUNG, [0, 1, 2], 2000))[0] is BUSY
    disk.end()
    (late,) = machine.bookie._held._late.values()
    assert late.answer.result(10) is True and len(late.met) == 2
    machine.close()


@pytest.mark.parametrize(("age_s", "kept"), [(1.0, 1), (1000.0, 0)])
def test_what_a_late_look_has_read_goes_if_nobody_comes_for_it(
    disk: HangingReads, age_s: float, kept: int
) -> None:
    """There is one for each directory, of many megabytes."""
    machine = holding(disk)
    disk.goes_on.clear()
    assert machine.add(HUNG, [0], size=2000) is BUSY
    machine.flush()
    disk.end()
    (late,) = machine.bookie._held._late.values()
    assert late.answer.result(10) is True
    late.ended_at -= age_s
    machine.flush()
    assert len(late.met) == kept
    machine.close()


def test_held_entries_are_busy_while_no_thread_is_to_be_had(
    disk: HangingReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = holding(disk)

    def fails(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        assert machine.add(HUNG, [0], size=2000) is BUSY
    assert machine.add(HUNG, [0], size=2000) is OK
    machine.close()


def test_error_of_ours_in_the_thread_is_raised_where_it_was_asked(
    disk: HangingReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = holding(disk)

    def fails(*_of: object) -> None:
        raise AssertionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(machine.bookie._storage.store_of(LedgerId(HUNG)), "read_block", fails)
        with pytest.raises(AssertionError, match="a bug"):
            machine.start_add(HUNG, [0], size=2000)


def test_close_waits_for_a_read_that_is_late_before_it_closes_files(
    disk: HangingReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = holding(disk)
    storage_closes = machine.bookie._storage.close
    reading: list[bool] = []

    def closes() -> None:
        reading.append(disk.readers[0].is_alive())
        storage_closes()

    monkeypatch.setattr(machine.bookie._storage, "close", closes)
    disk.goes_on.clear()
    assert machine.add(HUNG, [0], size=2000) is BUSY
    answers = threading.Timer(0.2, disk.goes_on.set)
    answers.start()
    machine.close()
    answers.join()
    assert reading == [False]


def test_close_waits_no_longer_than_a_slow_disk_takes(
    disk: HangingReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_entries, "BOOKIE_READS_END_S", 0.1)
    machine = holding(disk)
    disk.goes_on.clear()
    assert machine.add(HUNG, [0], size=2000) is BUSY
    began = time.monotonic()
    machine.close()
    assert time.monotonic() - began < 5


def test_bookie_with_threads_asks_disks_in_threads(disk: HangingReads) -> None:
    files = FaultFileSystem(formatted(), disk.plan)
    bookie = open_bookie(
        small_config(),
        post=lambda _call: None,
        on_fatal=lambda _message: None,
        file_system=files,
        open_index=lambda path: MemoryIndex(files, path),
    )
    try:
        assert bookie._held._has_threads
    finally:
        bookie.close()


class Blocks:
    """A directory whose blocks are in no cache."""

    def __init__(self) -> None:
        self.reads = 0

    def read_block(self, ledger_id: LedgerId, _row: IndexRow) -> EntryRun:
        self.reads += 1
        return make_run(ledger_id, [0])


def a_row() -> IndexRow:
    return IndexRow(EntryId(0), EntryId(3), BlockLocation(1, 0, 100), is_sparse=True)


def test_late_look_reads_a_block_once_for_all_the_holes_in_it() -> None:
    """Else holes alone use up the room, and the add is busy for ever."""
    blocks: Any = Blocks()
    look = _Look(blocks)
    for _ in range(5):
        assert look._read(LedgerId(HUNG), a_row()).first_entry == 0
    assert blocks.reads == 1 and len(look.met) == 1


@pytest.mark.parametrize("age_s", [1.0, 1000.0])
def test_error_that_a_late_look_met_is_told_while_it_is_new(age_s: float) -> None:
    machine = Machine(formatted(), small_config())
    held = HeldEntries(machine.bookie._storage)
    look = _Look(machine.bookie._storage.store_of(LedgerId(HUNG)))
    look.met[a_row().location] = OSError(5, "what the disk said")
    look.ended_at = time.monotonic() - age_s
    look.answer.set_result(True)
    held._late[machine.bookie._storage.number_of(LedgerId(HUNG))] = look
    with pytest.raises(OSError if age_s < 60 else _NotInMemory):
        held._kept(LedgerId(HUNG), a_row())
    assert not look.met
