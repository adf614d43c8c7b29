"""A bookie that was killed in the middle of a write, and loses power while it starts again."""

from __future__ import annotations

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.journal.journal_files import journal_numbers
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.support import JOURNAL, Machine, expected, formatted


class Killed(BaseException):
    """The process is gone; what it wrote is in the page cache."""


def killed_before_a_sync(adds: int) -> MemoryFileSystem:
    """The disk, and its page cache, of a bookie that was killed after the write of its last batch,
    with so many batches before."""
    files = formatted()
    kills = False

    def plan(operation: Operation) -> Fault | None:
        if kills and operation.path.parent == JOURNAL and operation.kind == "fdatasync":
            raise Killed
        return None

    machine = Machine(FaultFileSystem(files, plan))
    for entry in range(adds):
        for ledger in (7, 8):  # of both directories
            assert machine.add(ledger, [entry], size=6000) is BookieStatus.OK
    kills = True
    machine.start_add(7, [adds], size=6000)
    machine.start_add(8, [adds], size=6000)
    with pytest.raises(Killed):
        machine.bookie.commit_pending()
    for lock in machine.bookie._locks:  # the kernel does that
        lock.release()
    return files


@pytest.mark.parametrize("adds", [1, 6])
def test_a_power_cut_at_any_moment_of_the_start_loses_nothing(adds: int) -> None:
    """The batch that was not synced shows, so directories take it in. From then on the journal has
    to have it as well: one directory may be ahead of the other, and the journal must reach both."""
    files = killed_before_a_sync(adds)
    assert (len(journal_numbers(files, JOURNAL)) > 1) == (adds > 1)
    clones: list[MemoryFileSystem] = []

    def plan(_operation: Operation) -> Fault | None:
        clones.append(files.crash_clone(None))
        return None

    machine = Machine(FaultFileSystem(files, plan))
    for ledger in (7, 8):
        assert machine.held(ledger) == expected(ledger, range(adds + 1), 6000)
    assert len(clones) > 20
    for clone in clones:
        again = Machine(clone)
        for ledger in (7, 8):
            held = again.held(ledger)
            assert held == expected(ledger, sorted(held), 6000)
            assert sorted(held)[:adds] == list(range(adds)), "what was acknowledged"
