"""A flush that finds no room leaves the disk with as much as it found (rules S14 and S19)."""

from __future__ import annotations

import errno

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryDisk, MemoryFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.ledgers.entry_log import log_path
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Machine,
    expected,
    formatted,
    small_config,
)

L, MORE, EARLIER = 2, range(4, 24, 2), 24
SIZE = 10 * KIB
EVEN = LEDGERS[0]
OK = BookieStatus.OK
STRIPED = ([0, 1, 3, 4], [3, 4, 6, 7])
DENSE = ([0, 1, 2, 3], [2, 3, 4, 5])


def start(files: FileSystem, entry_log_bytes: int = 64 * MIB) -> Machine:
    config = small_config(
        write_once_bytes=0,
        write_cache_bytes=16 * MIB,
        entry_log_bytes=entry_log_bytes,
        disk_reserve_bytes=0,
        disk_high_water_mark=1.0,
        disk_low_water_mark=0.99,
    )
    return Machine(files, config)


def on_a_disk() -> MemoryFileSystem:
    files = formatted()
    files.disks = (MemoryDisk(64 * MIB, [EVEN]),)
    return files


def fill(files: MemoryFileSystem, free_bytes: int) -> MemoryDisk:
    (disk,) = files.disks
    disk.others_bytes = files._free_bytes(disk) - free_bytes
    return disk


def add_a_generation(machine: Machine, sent: tuple[list[int], list[int]]) -> None:
    """``sent``: what a writer sends, and sends again behind a reconnect, cut otherwise."""
    for ids in sent:
        assert machine.add(L, ids, size=SIZE) is OK
    for ledger_id in MORE:
        assert machine.add(ledger_id, range(4), size=SIZE) is OK


@pytest.mark.parametrize("sent", [STRIPED, DENSE], ids=["striped", "dense"])
@pytest.mark.parametrize("is_open", [True, False])
def test_flush_that_finds_no_room_takes_none_and_is_made_up_for_once_there_is(
    sent: tuple[list[int], list[int]], *, is_open: bool
) -> None:
    """The log is removed, or rows name some of it. The flush of sparse blocks reads from it."""
    files = on_a_disk()
    machine = start(files)
    if is_open:
        assert machine.add(EARLIER, [0], size=SIZE) is OK
        machine.flush()
    add_a_generation(machine, sent)
    disk = fill(files, 300 * KIB)
    free_bytes = files._free_bytes(disk)
    for _again in range(3):
        with pytest.raises(OSError, match="No space"):
            machine.flush()
        assert files._free_bytes(disk) == free_bytes
    for _step in range(3):
        disk.others_bytes -= 100 * KIB
        try:
            machine.flush()
        except OSError:
            assert files._free_bytes(disk) < 600 * KIB
    for each in (machine, start(files.crash_clone(None))):
        assert each.held(L) == expected(L, sorted({*sent[0], *sent[1]}), SIZE)
        assert each.held(EARLIER) == (expected(EARLIER, [0], SIZE) if is_open else {})
    assert not machine.bookie._storage.store_of(LedgerId(L)).dirty_ledgers()


def test_deletion_has_room_behind_a_flush_that_filled_the_disk() -> None:
    files = on_a_disk()
    machine = start(files)
    for entry in range(10):
        assert machine.add(EARLIER, [entry]) is OK
        machine.flush()
    add_a_generation(machine, STRIPED)
    fill(files, 44 * KIB)  # enough for the block that is read back
    with pytest.raises(OSError, match="No space"):
        machine.flush()
    assert machine.bookie.delete_ledgers([LedgerId(EARLIER)]) > 0


def test_log_that_filled_up_in_the_middle_of_a_failed_flush_keeps_what_rows_name_only() -> None:
    files = on_a_disk()
    machine = start(files, 64 * KIB)
    assert machine.add(EARLIER, [0], size=SIZE) is OK
    machine.flush()
    add_a_generation(machine, DENSE)
    disk = fill(files, 200 * KIB)
    free_bytes = files._free_bytes(disk)
    with pytest.raises(OSError, match="No space"):
        machine.flush()
    assert files._free_bytes(disk) == free_bytes
    assert machine.held(EARLIER) == expected(EARLIER, [0], SIZE)


def test_log_that_a_failed_commit_may_have_named_keeps_all_of_it() -> None:
    fails = False

    def plan(operation: Operation) -> Fault | None:
        is_index = operation.path.is_relative_to(EVEN / "index")
        return (
            Fault(errno.EIO) if fails and operation.kind == "sync_directory" and is_index else None
        )

    files = on_a_disk()
    machine = start(FaultFileSystem(files, plan))
    assert machine.add(EARLIER, [0], size=SIZE) is OK
    machine.flush()
    add_a_generation(machine, DENSE)
    fails = True
    with pytest.raises(OSError, match="Input/output"):
        machine.flush()
    assert files.open(log_path(EVEN, 1)).hole_bytes() == 0
    after = start(files.crash_clone(None))
    assert after.held(L) == expected(L, range(6), SIZE)
    for number in range(5):
        after = start(files.crash_clone(number))
        assert after.held(L) == expected(L, range(6), SIZE)
