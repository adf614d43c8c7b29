"""While a ledger disk answers no read, adds of what it holds are busy, and no other one waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from bookie_server import held_entries
from bookie_server.opening import open_bookie
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.index.memory_index import MemoryIndex
from spark_ledger.types import BookieStatus
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
        self.readers: list[threading.Thread] = []

    def plan(self, operation: Operation) -> Fault | None:
        if operation.kind == "pread" and operation.path.parent == LEDGERS[0]:
            if not self.goes_on.is_set():
                self.readers.append(threading.current_thread())
            assert self.goes_on.wait(10)
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
    for _ in range(2):
        disk.goes_on.clear()
        assert machine.add(HUNG, [0], size=2000) is BUSY
        disk.end()
        assert machine.add(HUNG, [0], size=2000) is OK
    assert len([each for each in caplog.records if "does not answer a read" in each.message]) == 2
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
        patch.setattr(machine.bookie._storage, "run_with", fails)
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
