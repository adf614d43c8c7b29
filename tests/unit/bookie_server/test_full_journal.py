"""A journal without room for a large batch, and one whose disk fails when there is room again."""

from __future__ import annotations

import errno

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    Machine,
    expected,
    formatted,
    small_config,
)
from tests.unit.bookie_server.test_full_disks import LAYOUTS, OK, READ_ONLY, Site, exhaust


def test_batch_larger_than_a_file_that_finds_no_room_ends_nothing() -> None:
    """Its blocks are had before it is written: half of it would be a write that failed (S3)."""
    allowed = 1000  # the file itself has its blocks, and the batch that is larger gets no more

    def plan(operation: Operation) -> Fault | None:
        nonlocal allowed
        if operation.kind != "preallocate" or operation.path.parent != JOURNAL:
            return None
        allowed -= 1
        return Fault(errno.ENOSPC) if allowed < 0 else None

    files = formatted()
    config = small_config(
        write_once_bytes=0, journal_batch_bytes_max=200 * KIB, write_cache_bytes=1024 * KIB
    )
    machine = Machine(FaultFileSystem(files, plan), config)
    assert machine.add(2, [0]) is OK
    allowed = 1
    assert machine.add(2, range(1, 40), size=3 * KIB) is READ_ONLY
    assert not machine.fatal and machine.bookie._journal.no_room
    allowed = 1000
    machine.bookie._journal.look_for_room()
    machine.settle()
    assert machine.add(2, range(1, 40), size=3 * KIB) is OK and not machine.fatal
    machine.close()
    held = Machine(files, config).held(2)
    assert held == expected(2, [0]) | expected(2, range(1, 40), 3 * KIB)


def test_journal_whose_disk_fails_when_there_is_room_again_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes no more for want of space first, and for good then: what waits is told so."""
    site = Site(LAYOUTS[1])
    site.add(6)
    exhaust(site)
    journal, machine = site.machine.bookie._journal, site.machine

    def fails() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(journal._logs, "roll", fails)
    journal.look_for_room()
    assert not machine.bookie.commit_pending()
    machine.settle()
    assert len(machine.fatal) == 1 and "Input/output" in (journal.failure or "")
    assert site.add(6, recovery=True) is BookieStatus.IO_ERROR
    journal.look_for_room()
    assert not machine.bookie.commit_pending() and len(machine.fatal) == 1
    machine.close()
