"""A journal that found no room: what it keeps for later, and what it does once its disk fails."""

from __future__ import annotations

import errno

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.journal.support import Writer, journal_directory, read


class Disk:
    """A disk for which each new file, or each operation, fails in a way that can be changed."""

    def __init__(self) -> None:
        self.memory: MemoryFileSystem = journal_directory()
        self.error = 0
        self.kinds: list[str] = []
        self.files = FaultFileSystem(self.memory, self._plan)

    def _plan(self, operation: Operation) -> Fault | None:
        self.kinds.append(operation.kind)
        is_new = operation.kind in ("create", "preallocate")
        return Fault(self.error) if self.error and is_new else None


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def writer(disk: Disk) -> Writer:
    """Its first file is full, and there is no room for another."""
    made = Writer(disk.files, file_bytes=16 * KIB)
    made.write(1, 2)
    disk.error = errno.ENOSPC
    made.append(3, 4)
    made.journal.commit_pending()
    made.run_posted()
    assert made.journal.no_room
    assert made.answers[3] is made.answers[4] is BookieStatus.READ_ONLY
    return made


def test_what_was_refused_is_written_by_a_close_that_finds_room(disk: Disk, writer: Writer) -> None:
    """Memory has it: a fence that was refused holds there, and should after the restart."""
    disk.error = 0
    writer.journal.close()
    assert read(disk.memory.crash_clone(None)) == [[1], [2], [3, 4]]
    assert not writer.fatal and len(writer.answers) == 4, "nobody is told twice"


def test_close_without_room_ends(disk: Disk, writer: Writer) -> None:
    writer.journal.close()
    assert read(disk.memory.crash_clone(None)) == [[1], [2]] and not writer.fatal


def test_journal_that_failed_looks_for_room_no_more(disk: Disk, writer: Writer) -> None:
    """Another file would go on behind a write of which nothing is known (rule S3)."""
    disk.error = errno.EIO
    writer.journal.look_for_room()
    assert not writer.journal.commit_pending() and writer.journal.failure
    disk.error = 0
    disk.kinds.clear()
    writer.journal.look_for_room()
    assert not writer.journal.commit_pending()
    writer.append(5)
    writer.run_posted()
    assert writer.answers[5] is BookieStatus.IO_ERROR and len(writer.fatal) == 1
    writer.journal.close()
    assert not set(disk.kinds) & {"create", "preallocate", "pwritev", "fdatasync", "rename"}
