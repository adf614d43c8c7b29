"""Where the journal's threads meet: one step of another thread, put between two steps of a call."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.journal.files import journal_numbers, spare_paths
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.journal.support import (
    DIRECTORY,
    Writer,
    journal_directory,
    read,
)

BATCHES_PER_FILE = 15
"""Batches of 4 KiB in a file of 64 KiB, of which the header takes as much as a batch."""


class Interrupted(FaultFileSystem):
    """Calls ``act`` once, before the next operation of a kind."""

    def __init__(self, files: MemoryFileSystem) -> None:
        super().__init__(files, self._plan_operation)
        self.kind = ""
        self.act: Callable[[], Fault | None] = lambda: None

    def before_next(self, kind: str, act: Callable[[], Fault | None]) -> None:
        self.kind, self.act = kind, act

    def _plan_operation(self, operation: Operation) -> Fault | None:
        if operation.kind != self.kind:
            return None
        self.kind = ""
        return self.act()


@pytest.fixture
def files() -> MemoryFileSystem:
    return journal_directory()


def filled(files: Interrupted, file_count: int) -> Writer:
    """A journal of so many full files; its next batch starts another one."""
    writer = Writer(files)
    writer.write(*range(BATCHES_PER_FILE * file_count))
    assert journal_numbers(files, DIRECTORY) == list(range(1, file_count + 1))
    return writer


def test_spares_while_one_is_turned_into_a_file_stay_within_their_bound(
    files: MemoryFileSystem,
) -> None:
    """The flush thread gives up a file while the journal thread turns a spare into a new one.

    The spare is on the disk until it has its new name, so it counts until then. Otherwise the flush
    thread would keep a third file, and a crash at this moment would leave it there.
    """
    interrupted = Interrupted(files)
    writer = filled(interrupted, 4)
    writer.journal.remove_before(3)
    assert len(spare_paths(files, DIRECTORY)) == 2
    seen: list[int] = []

    def flush_thread() -> None:
        writer.journal.remove_before(4)
        seen.append(len(spare_paths(files, DIRECTORY)))

    interrupted.before_next("rename", flush_thread)
    writer.write(100)
    assert seen == [2]
    assert journal_numbers(files, DIRECTORY) == [4, 5]
    assert len(spare_paths(files, DIRECTORY)) == 1


def test_a_spare_is_used_only_after_its_name_is_durable(files: MemoryFileSystem) -> None:
    """The journal thread needs a file while the flush thread is about to sync the directory.

    If it took the renamed file, a power cut could bring back the old name over a new header.
    """
    interrupted = Interrupted(files)
    writer = filled(interrupted, 2)
    made: list[list[int]] = []

    def journal_thread() -> None:
        writer.write(100)
        made.append(journal_numbers(files, DIRECTORY))

    interrupted.before_next("sync_directory", journal_thread)
    writer.journal.remove_before(2)
    assert made == [[2, 3]]
    assert len(spare_paths(files, DIRECTORY)) == 1, "the new file is not made of the spare"
    writer.write(*range(101, 101 + BATCHES_PER_FILE))
    assert not spare_paths(files, DIRECTORY), "now it is used"


def test_spares_of_a_failed_call_are_handed_over_by_the_next(files: MemoryFileSystem) -> None:
    """Otherwise they stay on the disk, unused and uncounted, until the next start."""
    interrupted = Interrupted(files)
    writer = filled(interrupted, 3)
    interrupted.before_next("sync_directory", lambda: Fault(errno.EIO))
    with pytest.raises(OSError):
        writer.journal.remove_before(3)
    assert len(spare_paths(files, DIRECTORY)) == 2
    writer.journal.remove_before(3)
    writer.write(*range(100, 100 + 3 * BATCHES_PER_FILE))
    assert not spare_paths(files, DIRECTORY), "both are used"
    assert journal_numbers(files, DIRECTORY) == [3, 4, 5, 6]
    writer.journal.remove_before(6)
    assert len(spare_paths(files, DIRECTORY)) == 2


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_file_that_cannot_be_prepared_nor_removed_fails_nobody_and_is_prepared_later(
    files: MemoryFileSystem, error: int
) -> None:
    """A flush prepares it, and every look at the disks: neither may end by it."""
    kinds = {"create", "preallocate", "fdatasync", "rename", "sync_directory"}
    steps_left = 0
    fails = False

    def plan(operation: Operation) -> Fault | None:
        nonlocal steps_left, fails
        if operation.kind == "remove" and fails:
            return Fault(errno.EACCES)
        steps_left -= operation.kind in kinds
        if steps_left or operation.kind not in kinds:
            return None
        fails = True
        return Fault(error)

    writer = Writer(FaultFileSystem(files, plan))
    supply = writer.journal._logs.journal.supply
    for step in range(1, 6):
        steps_left, fails = step, False
        supply.prepare()
        assert fails and not supply._spares, f"step {step}"
        assert bool(supply.refusal) is (error == errno.ENOSPC), f"step {step}"
        if 1 < step < 5:  # what is in the way cannot be removed
            supply.prepare()
            assert not supply._spares
    fails = False
    supply.prepare()
    assert len(supply._spares) == 1 and not supply.refusal
    writer.write(1)


def test_bug_in_a_commit_answers_its_waiters(files: MemoryFileSystem) -> None:
    """The batch has left the queue when the bug shows; its waiters are told all the same."""
    interrupted = Interrupted(files)
    writer = Writer(interrupted)
    writer.write(1)

    def bug() -> Fault | None:
        raise AssertionError("a bug")

    writer.append(2, 3)
    interrupted.before_next("fdatasync", bug)
    with pytest.raises(AssertionError, match="a bug"):
        writer.journal.commit_pending()
    writer.append(4)
    writer.run_posted()
    assert writer.answers == {1: BookieStatus.OK} | dict.fromkeys((2, 3, 4), BookieStatus.IO_ERROR)
    assert len(writer.fatal) == 1 and "a bug" in writer.fatal[0]
    assert read(files.crash_clone(None)) == [[1]]


@pytest.mark.parametrize("has_file", [True, False])
def test_journal_on_a_full_disk_sleeps_until_it_is_told_to_look_again(
    files: MemoryFileSystem, has_file: bool
) -> None:
    """It looks once each time, whatever is queued: else it takes a whole core."""
    looks, told, is_full = 0, 1, not has_file

    def plan(operation: Operation) -> Fault | None:
        nonlocal looks
        if not is_full or operation.kind != "preallocate":
            return None
        looks += 1
        assert looks <= told, "nobody asked"
        return Fault(errno.ENOSPC)

    writer = Writer(FaultFileSystem(files, plan))
    journal, written = writer.journal, BATCHES_PER_FILE * has_file
    writer.write(*range(written))
    is_full = True

    def settle() -> None:
        deadline = time.monotonic() + 10
        while not (journal._sleeping or journal.failure) and time.monotonic() < deadline:
            time.sleep(0.001)
        writer.run_posted()
        assert journal._sleeping and not writer.fatal

    journal.start()
    for number in range(4):
        writer.append(100 + number)
        settle()
        assert looks == told and writer.answers[100 + number] is BookieStatus.READ_ONLY
        told += 1
        journal.look_for_room()
        settle()
        assert looks == told, "it was told"
    is_full = False
    journal.look_for_room()
    settle()
    writer.append(200)
    settle()
    journal.close()
    assert writer.answers[200] is BookieStatus.OK
    batches = [ledger for batch in read(files.crash_clone(None)) for ledger in batch]
    assert batches == [*range(written), *range(100, 104), 200], "what waited goes first"
