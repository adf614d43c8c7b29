"""A deletion beside records of its ledger that the journal has not written yet (rules G2, G9)."""

from __future__ import annotations

import errno
import tracemalloc

import pytest

from bookie_server.storage.config import StorageConfig
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, LedgerId
from spark_ledger.wire.frame import access_key_hash
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    LEDGERS,
    Machine,
    expected,
    formatted,
    small_config,
)

L, OTHER = LedgerId(2), LedgerId(4)
LOST, NEW = b"l" * 20, b"n" * 20
CONFIG = small_config(write_once_bytes=0)
LARGE = small_config(write_once_bytes=KIB)

both = pytest.mark.parametrize("how", ["reused", "named"])


def with_a_lost_ledger(files: FileSystem, config: StorageConfig = CONFIG) -> Machine:
    machine = Machine(files, config)
    for ledger_id in (L, OTHER):
        assert machine.add(ledger_id, [0], key=LOST) is BookieStatus.OK
    machine.flush()
    return machine


def delete(machine: Machine, *ledger_ids: LedgerId, how: str) -> int:
    is_reused = how == "reused"
    return machine.bookie.delete_ledgers(ledger_ids, named=not is_reused, reused=is_reused)


def write_new(machine: Machine) -> None:
    """The new ledger of the lost one's id is taken, under its own key."""
    machine.keys.hashes[L] = access_key_hash(NEW)
    assert machine.add(L, [0, 1, 2, 3], key=NEW, size=60) is BookieStatus.OK


def after_a_kill(files: MemoryFileSystem, config: StorageConfig = CONFIG) -> Machine:
    machine = Machine(files.crash_clone(None), config)
    machine.keys.hashes[L] = access_key_hash(NEW)
    return machine


NEW_ENTRIES = expected(L, range(4), 60)


@both
def test_ledger_goes_once_the_journal_has_written_what_came_of_it(how: str) -> None:
    files = formatted()
    machine = with_a_lost_ledger(files)
    late = machine.start_add(L, [1], key=LOST)
    fence = machine.start_fence(L, key=LOST)
    with pytest.raises(OSError, match="ledger 2 stays: the journal has not written"):
        delete(machine, L, OTHER, how=how)
    assert not machine.held(OTHER), "it keeps no other"
    assert machine.held(L) == expected(L, [0, 1])
    machine.settle()
    assert late[0][0] is fence[0][0] is BookieStatus.OK
    assert delete(machine, L, how=how) > 0
    write_new(machine)
    for each in (machine, after_a_kill(files)):
        assert each.held(L) == NEW_ENTRIES
        assert not each.is_fenced(L)
        assert each.add(L, [4], key=NEW) is BookieStatus.OK


@both
@pytest.mark.parametrize("fails", [0, errno.EIO])
def test_ledger_stays_while_the_batch_with_it_is_written_or_may_have_been(
    how: str, fails: int
) -> None:
    files = formatted()
    seen: list[str] = []
    writes = False

    def plan(operation: Operation) -> Fault | None:
        nonlocal writes
        is_sync = operation.kind == "fdatasync" and operation.path.is_relative_to(JOURNAL)
        if not writes or not is_sync:
            return None
        writes = False
        with pytest.raises(OSError, match="the journal has not written"):
            delete(machine, L, how=how)
        seen.append("while it is written")
        return Fault(fails) if fails else None

    machine = with_a_lost_ledger(FaultFileSystem(files, plan))
    machine.start_add(L, [1], key=LOST)
    writes = True
    machine.settle()
    assert seen
    if not fails:
        assert delete(machine, L, how=how) > 0
        return
    with pytest.raises(OSError, match="the journal has not written"):
        delete(machine, L, how=how)


def test_ledger_stays_while_the_journal_has_no_room_for_what_came_of_it() -> None:
    is_full = False

    def plan(operation: Operation) -> Fault | None:
        takes = is_full and operation.kind in ("create", "preallocate")
        return Fault(errno.ENOSPC) if takes and operation.path.is_relative_to(JOURNAL) else None

    files = formatted()
    machine = with_a_lost_ledger(FaultFileSystem(files, plan))
    is_full = True
    journal, number = machine.bookie._journal, 1
    while not journal.no_room:
        answers = [machine.start_add(each, [number], key=LOST, size=8 * KIB) for each in (L, 6)]
        machine.settle()
        number += 1
    assert answers[-1][0][0] is BookieStatus.READ_ONLY and journal.keeps_refused
    with pytest.raises(OSError, match="the journal has not written"):
        delete(machine, L, how="reused")
    is_full = False
    journal.look_for_room()
    machine.settle()
    assert not journal.no_room
    assert delete(machine, L, how="reused") > 0
    write_new(machine)
    assert after_a_kill(files).held(L) == NEW_ENTRIES


@both
def test_ledger_of_a_batch_that_failed_in_the_run_log_stays_until_a_start_has_looked(
    how: str,
) -> None:
    """The batch may be durable all the same, and that log is written no more."""
    fails = False

    def plan(operation: Operation) -> Fault | None:
        is_log = operation.path.is_relative_to(LEDGERS[0]) and "journal-" in operation.path.name
        syncs = fails and is_log and operation.kind == "fdatasync"
        return Fault(errno.EIO, write_part=1.0) if syncs else None

    files = formatted()
    machine = with_a_lost_ledger(FaultFileSystem(files, plan), LARGE)
    assert machine.add(L, [1], key=LOST, size=KIB) is BookieStatus.OK
    fails = True
    assert machine.add(L, [2], key=LOST, size=KIB) is BookieStatus.OK, "the journal has it"
    fails = False
    needs_restart = "ledger 2 stays: its run log failed.* restart"
    for _again in range(2):
        with pytest.raises(OSError, match=needs_restart):
            delete(machine, L, OTHER, how=how)
        assert not machine.held(OTHER), "it keeps no other"
        machine.flush()
    machine.start_add(LedgerId(0), [0], key=LOST)
    with pytest.raises(OSError, match=needs_restart):  # not of the one that only has to wait
        delete(machine, LedgerId(0), L, how=how)
    files = files.crash_clone(None)
    machine = Machine(files, LARGE)
    assert machine.held(L)
    assert delete(machine, L, how=how) > 0
    write_new(machine)
    assert after_a_kill(files, LARGE).held(L) == NEW_ENTRIES


def test_question_for_a_few_ledgers_copies_no_million() -> None:
    """Each flush asks so for all of the last one, and everything else stands still meanwhile."""
    machine = Machine(formatted(), CONFIG)
    machine.start_add(L, [0], key=LOST)
    stored = frozenset(map(LedgerId, range(100_000)))
    tracemalloc.start()
    try:
        found = machine.bookie._journal.unwritten_of(stored)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == {L}
    assert most < 100 * KIB


def test_queue_of_other_ledgers_keeps_none() -> None:
    """A bookie that is written to always has one."""
    files = formatted()
    machine = with_a_lost_ledger(files)
    assert machine.add(6, [0], key=LOST) is BookieStatus.OK
    machine.start_add(6, [1], key=LOST)
    assert delete(machine, L, how="reused") > 0
    machine.settle()
    write_new(machine)
    assert after_a_kill(files).held(L) == NEW_ENTRIES
