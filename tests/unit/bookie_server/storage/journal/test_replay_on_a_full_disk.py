"""A start on a full ledger disk keeps what it replays in memory, once each (rules S8, S14)."""

from __future__ import annotations

import errno

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Machine,
    expected,
    formatted,
    small_config,
)

L, OTHER = LedgerId(2), LedgerId(4)
SIZE = 4 * KIB
OK = BookieStatus.OK


@pytest.mark.parametrize("write_once_bytes", [0, KIB])
def test_entries_that_were_sent_any_number_of_times_take_memory_once(
    write_once_bytes: int,
) -> None:
    """As by a recovery that is tried again and again: the journal has all of it."""
    is_full = False

    def plan(operation: Operation) -> Fault | None:
        takes = operation.kind in ("create", "pwritev", "preallocate")
        is_there = operation.path.is_relative_to(LEDGERS[0])
        return Fault(errno.ENOSPC) if is_full and takes and is_there else None

    config = small_config(write_once_bytes=write_once_bytes, write_cache_bytes=256 * KIB)
    files = formatted()
    machine = Machine(FaultFileSystem(files, plan), config)
    assert machine.add(L, [0], size=SIZE) is OK
    machine.flush()
    is_full = True
    for _again in range(40):
        assert machine.add(L, range(1, 11), size=SIZE, recovery=True) is OK
    assert machine.add(L, range(6, 14), size=SIZE, recovery=True) is OK
    assert machine.add(OTHER, [1], lac=0, recovery=True) is OK
    assert machine.add(OTHER, [1], lac=0, recovery=True) is OK

    killed = files.crash_clone(None)
    after = Machine(FaultFileSystem(killed, plan), config)
    storage = after.bookie._storage
    cache = storage.store_of(L).cache
    assert cache.byte_count <= config.write_cache_bytes
    assert after.held(L) == expected(L, range(14), SIZE)
    assert storage.ledger_record(OTHER) == machine.bookie._storage.ledger_record(OTHER)
    assert after.add(L, [14], size=SIZE, recovery=True) is OK, "there is room for it"

    is_full = False
    after.flush()
    after.flush()
    for each in (after, Machine(killed.crash_clone(None), config)):
        assert each.held(L) == expected(L, range(15), SIZE)
        assert each.held(OTHER) == expected(OTHER, [1])
