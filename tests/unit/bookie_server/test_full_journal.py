"""A journal without room for a large batch, and one whose disk fails when there is room again."""

from __future__ import annotations

import errno

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    LEDGERS,
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


def test_run_of_a_refused_batch_that_is_durable_is_not_written_again() -> None:
    """One run log took its run, the other one and then the journal have no room: the batch is
    refused as a whole, kept, and written once there is room. What is durable by then stays where it
    is: places are settled once, and reads may rely on the first (rule S16)."""
    full = False
    refused = {JOURNAL: ("create", "preallocate"), LEDGERS[1]: ("create",)}

    def plan(operation: Operation) -> Fault | None:
        kinds = refused.get(operation.path.parent, ())
        return Fault(errno.ENOSPC) if full and operation.kind in kinds else None

    files = formatted()
    config = small_config(write_once_bytes=KIB, journal_batch_bytes_max=200 * KIB)
    machine = Machine(FaultFileSystem(files, plan), config)
    assert machine.add(4, [0], size=2 * KIB) is OK and machine.add(5, [0]) is OK
    full = True
    before = machine.bookie.stats().journal.run_log_bytes
    sizes = {4: 2 * KIB, 5: 70 * KIB}  # the second one takes a file of its own
    with machine.bookie.batch():
        answers = [machine.start_add(each, [1], size=size) for each, size in sizes.items()]
    machine.settle()
    assert [status for ((status, _message),) in answers] == [READ_ONLY, READ_ONLY]
    assert machine.bookie.stats().journal.run_log_bytes > before, "the first run is durable"
    full, before = False, machine.bookie.stats().journal.run_log_bytes
    machine.bookie._journal.look_for_room()
    machine.settle()
    assert machine.bookie.stats().journal.run_log_bytes == before and not machine.fatal
    for ledger_id in sizes:
        assert machine.add(ledger_id, [2], size=KIB // 2) is OK
    for again in (machine, Machine(files.crash_clone(None), config)):
        for ledger_id, size in sizes.items():
            assert again.held(ledger_id)[1] == expected(ledger_id, [1], size)[1]


def test_journal_without_room_does_not_count_as_stalled() -> None:
    """What it keeps waits for room, and nobody for it: clients were told why."""
    site = Site(LAYOUTS[1])
    site.add(6)
    exhaust(site)
    journal = site.machine.bookie._journal
    assert journal._queue and journal.unsynced_s == 0.0
    assert site.machine.bookie.stall is None


def test_look_at_the_disks_prepares_the_file_that_comes_next() -> None:
    """On a disk that fills up it may be the last one."""
    files = formatted()
    machine = Machine(files)
    supply = machine.bookie._journal._logs.journal.supply
    machine.bookie.disks.check()
    (prepared,) = supply._spares
    assert prepared.name in files.list(JOURNAL)
    while supply._spares:
        machine.add(2, [len(machine.held(2))], size=4 * KIB)
    machine.bookie.disks.check()
    assert len(supply._spares) == 1 and not supply.refusal


def test_journal_that_found_room_again_is_not_told_as_full() -> None:
    site = Site(LAYOUTS[1])
    site.add(6)
    exhaust(site)
    journal = site.machine.bookie._journal
    assert "no room" in journal.space_refusal
    site.free()
    journal.look_for_room()
    site.machine.settle()
    assert journal.space_refusal == "", "also before the next file is prepared"


@pytest.mark.parametrize("kind", ["preallocate", "pwritev", "fdatasync", "rename"])
def test_spare_that_finds_no_room_goes(kind: str) -> None:
    """It is never written again (rule S3), also not by the next start, and takes no space."""
    fails = False

    def plan(operation: Operation) -> Fault | None:
        hit = fails and operation.kind == kind and operation.path.name.endswith(".free")
        return Fault(errno.ENOSPC) if hit else None

    files = formatted()
    machine = Machine(FaultFileSystem(files, plan))
    machine.bookie.disks.check()
    supply = machine.bookie._journal._logs.journal.supply
    (spare,) = supply._spares
    fails = True
    entry, answer = 0, OK
    while answer is OK:
        answer = machine.add(2, [entry], size=4 * KIB)
        entry += 1
    assert answer is READ_ONLY and not machine.fatal
    assert not supply._spares and spare.name not in files.list(JOURNAL)


def fence_until_refused(site: Site, first: int) -> int:
    """Fence ledgers until the journal has no room; the next ledger."""
    for ledger in range(first, first + 5000):
        if site.fence(ledger) is not OK:
            return ledger
    raise AssertionError("the journal never fills")


def test_files_that_a_flush_gives_back_serve_fences_on_a_disk_that_stays_full() -> None:
    site = Site(LAYOUTS[1])
    for _ in range(5):
        site.add(6)
        site.add(7)
    site.flush()
    site.fill()
    refused = fence_until_refused(site, 1000)
    assert site.add(6, recovery=True) is READ_ONLY
    site.flush()  # the disks of the ledgers are well
    site.machine.bookie.disks.check()
    site.machine.settle()
    assert site.machine.bookie.disks.states.journal.above_marks, "nothing was freed"
    assert site.fence(refused) is OK and site.add(6, recovery=True) is OK
    assert site.add(7) is READ_ONLY, "what is left is not for writers"
    site.check()


def test_room_above_the_marks_is_for_fences_and_recoveries() -> None:
    """The marks leave it just for them."""
    site = Site(LAYOUTS[1])
    site.add(6)
    site.fill()
    refused = fence_until_refused(site, 1000)
    (disk,) = site.filled
    disk.others_bytes -= 3 * site.config.journal_file_bytes
    site.machine.bookie.disks.check()
    site.machine.settle()
    assert site.machine.bookie.disks.states.journal.above_marks
    assert site.fence(refused) is OK and site.add(6, recovery=True) is OK
    assert site.add(7) is READ_ONLY
    site.check()
