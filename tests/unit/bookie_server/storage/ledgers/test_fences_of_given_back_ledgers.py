"""A copy that is given back is named elsewhere: until it is gone its fence holds (rule G9)."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index.base import LogUse
from bookie_server.storage.ledgers import directory_store
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Machine,
    expected,
    formatted,
    small_config,
)

L = LedgerId(2)
OTHER_DIRECTORY = LedgerId(3)
LATER = LedgerId(8)
KEY = b"k" * 20
TAKES_SPACE = ("create", "pwritev", "preallocate")


def with_a_stored_ledger(files: Any, *more: LedgerId) -> Machine:
    machine = Machine(files, small_config(write_once_bytes=0))
    for ledger_id in (L, *more):
        for entry in range(0, 6, 2):  # rows of their own
            assert machine.add(ledger_id, [entry], key=KEY) is BookieStatus.OK
            machine.flush()
    for ledger_id in (LATER, LedgerId(LATER + 1)):
        assert machine.add(ledger_id, [0], key=KEY) is BookieStatus.OK
    machine.flush()  # and the marks are behind all of it
    return machine


def give_back(machine: Machine, *ledger_ids: LedgerId) -> int:
    return machine.bookie.delete_ledgers(ledger_ids, named=True)


def test_fence_outlives_a_deletion_for_which_a_full_disk_has_no_room() -> None:
    is_full = False

    def plan(operation: Operation) -> Fault | None:
        takes = is_full and operation.kind in TAKES_SPACE
        return Fault(errno.ENOSPC) if takes and operation.path.is_relative_to(LEDGERS[0]) else None

    files = FaultFileSystem(formatted(), plan)
    machine = with_a_stored_ledger(files, OTHER_DIRECTORY)
    is_full = True
    assert machine.fence(L, key=KEY) is BookieStatus.OK
    assert machine.add(L, [6], key=KEY, recovery=True) is BookieStatus.OK
    machine.keys.closed.add(L)
    with pytest.raises(OSError, match="No space"):
        give_back(machine, L, OTHER_DIRECTORY)
    assert not machine.held(OTHER_DIRECTORY), "a full disk does not keep what is on the others"
    for restarted in range(2):
        for _flushed in range(2):
            assert machine.is_fenced(L)
            assert machine.held(L) == expected(L, [0, 2, 4, 6])
            assert machine.add(L, [7], key=KEY) is BookieStatus.FENCED
            is_full = False
            machine.flush()
        if not restarted:
            machine.close()
            machine = Machine(files, small_config(write_once_bytes=0))
    assert give_back(machine, L) > 0
    assert not machine.held(L)


def test_copy_of_which_the_index_has_all_costs_no_flush_of_all_others() -> None:
    """Some thousand are given back in a row, and each flush leaves a row of each ledger that is
    written."""
    machine = with_a_stored_ledger(formatted(), OTHER_DIRECTORY)
    assert machine.add(LedgerId(L + 2), [0], key=KEY) is BookieStatus.OK
    before = machine.bookie._storage.stats().flushes
    assert give_back(machine, L, OTHER_DIRECTORY) > 0
    assert machine.bookie._storage.stats().flushes == before


def test_copy_of_which_the_index_has_all_goes_though_a_full_disk_takes_no_flush() -> None:
    """It makes room. Were the flush of others told as its failure, each pass would end there."""
    is_full = False

    def plan(operation: Operation) -> Fault | None:
        is_log = operation.kind in TAKES_SPACE and "entries-" in operation.path.name
        return Fault(errno.ENOSPC) if is_full and is_log else None

    machine = with_a_stored_ledger(FaultFileSystem(formatted(), plan))
    is_full = True
    other = LedgerId(L + 2)
    assert machine.add(other, [0], key=KEY) is BookieStatus.OK
    assert give_back(machine, L) > 0
    assert not machine.held(L)
    with pytest.raises(OSError, match="No space"):
        give_back(machine, other)
    assert machine.held(other) == expected(other, [0])


def test_copy_that_was_flushed_goes_without_a_word_of_the_directory_that_was_not() -> None:
    is_full = False

    def plan(operation: Operation) -> Fault | None:
        takes = is_full and operation.kind in TAKES_SPACE
        return Fault(errno.ENOSPC) if takes and operation.path.is_relative_to(LEDGERS[1]) else None

    machine = with_a_stored_ledger(FaultFileSystem(formatted(), plan))
    is_full = True
    for ledger_id in (L, OTHER_DIRECTORY):
        assert machine.add(ledger_id, [8], key=KEY) is BookieStatus.OK
    assert give_back(machine, L) > 0
    assert not machine.held(L)
    assert machine.held(OTHER_DIRECTORY) == expected(OTHER_DIRECTORY, [8])


def test_fence_outlives_a_kill_in_the_middle_of_the_deletion_and_behind_a_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the flush has moved the mark behind is replayed no more."""
    files = formatted()
    machine = with_a_stored_ledger(files)
    assert machine.fence(L, key=KEY) is BookieStatus.OK
    monkeypatch.setattr(directory_store, "DELETED_ROWS_AT_ONCE", 1)
    storage = machine.bookie._storage
    store = storage.store_of(L)
    delete_some, after_a_kill = store.delete_some, list[MemoryFileSystem]()

    def step(*of: Any) -> tuple[int, LogUse]:
        store.flush(storage._journal.durable_marks.journal)
        after_a_kill.append(files.crash_clone(None))
        return delete_some(*of)

    monkeypatch.setattr(store, "delete_some", step)
    give_back(machine, L)
    assert len(after_a_kill) > 2
    for number, left in enumerate(after_a_kill):
        after = Machine(left, small_config(write_once_bytes=0))
        assert list(after.held(L)) == [0, 2, 4][number:]
        assert after.is_fenced(L)


def test_ledger_that_is_fenced_between_flush_and_deletion_stays_until_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = formatted()
    machine = with_a_stored_ledger(files)
    store = machine.bookie._storage.store_of(L)
    forget = store.forget

    def fenced_before(ledger_ids: Iterable[LedgerId], *, named: bool) -> list[LedgerId]:
        assert machine.fence(L, key=KEY) is BookieStatus.OK
        return forget(ledger_ids, named=named)

    with monkeypatch.context() as patch:
        patch.setattr(store, "forget", fenced_before)
        assert give_back(machine, L) == 0
    assert machine.is_fenced(L) and machine.held(L)
    assert machine.add(L, [7], key=KEY) is BookieStatus.FENCED
    after = Machine(files.crash_clone(None), small_config(write_once_bytes=0))
    assert after.is_fenced(L)
    assert give_back(machine, L) > 0
    assert not machine.held(L)
