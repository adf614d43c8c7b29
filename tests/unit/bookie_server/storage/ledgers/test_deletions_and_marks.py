"""A ledger that comes again is deleted once the mark has passed all that came of it (rules G2 and
G9): that a flush has stored it does not say so."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from spark_ledger.types import BookieStatus, LedgerId
from spark_ledger.wire.frame import access_key_hash
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Machine,
    expected,
    formatted,
    small_config,
)

L, OTHER, ELSEWHERE = LedgerId(2), LedgerId(4), LedgerId(3)
FORMER, NEW = b"f" * 20, b"n" * 20
OK = BookieStatus.OK
SIZE = 40
NEW_SIZE = 60

both = pytest.mark.parametrize("how", ["reused", "named"])


def start(files: FileSystem, write_once_bytes: int = 0) -> Machine:
    return Machine(files, small_config(write_once_bytes=write_once_bytes))


def with_the_former(files: FileSystem, write_once_bytes: int = 0) -> Machine:
    machine = start(files, write_once_bytes)
    for ledger_id in (L, OTHER, ELSEWHERE):
        assert machine.add(ledger_id, [0], key=FORMER, size=SIZE) is OK
    machine.flush()
    return machine


def delete(machine: Machine, how: str, *ledger_ids: LedgerId) -> int:
    is_reused = how == "reused"
    return machine.bookie.delete_ledgers(ledger_ids, named=not is_reused, reused=is_reused)


def comes_again(files: MemoryFileSystem, machine: Machine, write_once_bytes: int = 0) -> None:
    """Nothing of the former is left, also behind a kill, and all of the new one is there."""
    assert not machine.held(L)
    killed = files.crash_clone(None)
    after = start(killed, write_once_bytes)
    assert not after.held(L) and not after.is_fenced(L)
    machine.keys.hashes[L] = access_key_hash(NEW)
    machine.bookie.disks.check()
    assert machine.add(L, range(3), key=NEW, size=NEW_SIZE) is OK
    after = start(files.crash_clone(None), write_once_bytes)
    after.keys.hashes[L] = access_key_hash(NEW)
    assert after.held(L) == expected(L, range(3), NEW_SIZE)
    assert not after.is_fenced(L)
    assert after.add(L, [3], key=NEW) is OK


@both
@pytest.mark.parametrize("write_once_bytes", [0, 1])
def test_ledger_that_was_stored_behind_the_mark_of_its_flush_waits_for_another(
    how: str, write_once_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = formatted()
    machine = with_the_former(files, write_once_bytes)
    store = machine.bookie._storage.store_of(L)
    flush = store.flush

    def late(*of: Any) -> bool:
        """Between the moment at which the mark was read, and the freeze."""
        monkeypatch.setattr(store, "flush", flush)
        assert machine.add(L, [1, 2], key=FORMER, recovery=True) is OK
        assert machine.add(OTHER, [1], key=FORMER) is OK
        return flush(*of)

    monkeypatch.setattr(store, "flush", late)
    machine.flush()
    assert not store.dirty_ledgers()
    assert delete(machine, how, L) > 0
    comes_again(files, machine, write_once_bytes)


@both
def test_ledger_that_came_while_the_generation_of_a_failed_flush_waited_goes_behind_its_own_flush(
    how: str,
) -> None:
    """The first flush that succeeds stores what the failed one had set apart, with its mark."""
    is_full = False

    def plan(operation: Operation) -> Fault | None:
        is_log = operation.kind == "create" and operation.path.is_relative_to(LEDGERS[0])
        return Fault(errno.ENOSPC) if is_full and is_log else None

    files = formatted()
    machine = with_the_former(FaultFileSystem(files, plan))
    machine.close()
    machine = start(FaultFileSystem(files, plan))  # its next entry log is to be made
    assert machine.add(OTHER, [1], key=FORMER) is OK
    is_full = True
    with pytest.raises(OSError, match="No space"):
        machine.flush()
    assert machine.add(L, [1], key=FORMER, recovery=True) is OK
    assert machine.fence(L, key=FORMER) is OK
    with pytest.raises(OSError, match="No space"):
        delete(machine, how, L)
    assert machine.held(L) == expected(L, [0, 1]) and machine.is_fenced(L)
    is_full = False
    assert delete(machine, how, L) > 0
    comes_again(files, machine)


@both
def test_ledger_whose_record_was_in_the_queue_beside_two_flushes_goes_behind_a_third(
    how: str,
) -> None:
    files = formatted()
    machine = with_the_former(files)
    waits = machine.start_add(L, [1], key=FORMER)
    machine.bookie.flush()
    machine.start_add(OTHER, [1], key=FORMER)
    machine.bookie.flush()
    machine.settle()
    assert waits[0][0] is OK
    assert delete(machine, how, L) > 0
    comes_again(files, machine)


@both
def test_ledger_that_the_mark_has_passed_goes_without_a_flush(how: str) -> None:
    """On a full disk there is none, and what goes makes room."""
    files = formatted()
    machine = with_the_former(files)
    assert machine.add(OTHER, [1], key=FORMER) is OK
    machine.flush()
    assert machine.add(OTHER, [2], key=FORMER) is OK
    before = machine.bookie._storage.stats().flushes
    assert delete(machine, how, L, ELSEWHERE) > 0
    assert machine.bookie._storage.stats().flushes == before
    comes_again(files, machine)


@both
def test_ledger_of_an_idle_bookie_goes_without_a_flush(how: str) -> None:
    files = formatted()
    machine = with_the_former(files)
    before = machine.bookie._storage.stats().flushes
    assert delete(machine, how, L, ELSEWHERE) > 0
    assert machine.bookie._storage.stats().flushes == before
    comes_again(files, machine)


@both
def test_directory_that_cannot_be_flushed_keeps_its_own_and_the_others_are_flushed_twice(
    how: str,
) -> None:
    full: set[int] = set()

    def plan(operation: Operation) -> Fault | None:
        is_full = any(operation.path.is_relative_to(LEDGERS[each]) for each in full)
        return Fault(errno.ENOSPC) if operation.kind == "create" and is_full else None

    files = formatted()
    with_the_former(files).close()
    machine = start(FaultFileSystem(files, plan))
    for ledger_id in (OTHER, ELSEWHERE):
        assert machine.add(ledger_id, [1], key=FORMER) is OK
    full.update((0, 1))
    with pytest.raises(OSError, match="No space"):
        machine.flush()
    for ledger_id in (L, ELSEWHERE):
        assert machine.add(ledger_id, [1, 2], key=FORMER, recovery=True) is OK
    full.remove(0)
    with pytest.raises(OSError, match=r"No space.*ledgers-1"):
        delete(machine, how, L, ELSEWHERE)
    assert machine.held(ELSEWHERE) == expected(ELSEWHERE, range(3))
    comes_again(files, machine)


def test_slow_directory_does_not_hold_back_the_mark_of_the_next() -> None:
    """What comes while it is flushed would be stored behind the mark, and replayed."""
    is_open, came = False, list[BookieStatus]()

    def plan(operation: Operation) -> Fault | None:
        is_slow = operation.kind == "fdatasync" and operation.path.is_relative_to(LEDGERS[0])
        if is_slow and is_open and not came:
            came.append(machine.add(ELSEWHERE, [1], key=FORMER))
        return None

    machine = start(FaultFileSystem(formatted(), plan))
    is_open = True
    assert machine.add(L, [0], key=FORMER) is OK
    machine.flush()
    assert came == [OK]
    storage = machine.bookie._storage
    assert storage.store_of(ELSEWHERE).mark == storage._journal.durable_mark
