"""The directories together: checkpoints by several threads, and what is known of the last one."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from bookie_server.storage.fs.memory_fs import MemoryDisk
from bookie_server.storage.journal.files import journal_numbers
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    LEDGERS,
    Machine,
    expected,
    formatted,
    small_config,
)


def test_flush_failure_is_that_of_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that failed says so after a later one went well, as threads may be slow.

    The bookie would stay read-only, and refuse adds, although its disk is well.
    """
    machine = Machine(formatted())
    storage = machine.bookie._storage
    store = storage._stores[0]
    real_flush, real_clock = store.flush, time.perf_counter
    failing = True
    later = threading.Thread(target=storage.flush)

    def flush(*marks: Any) -> bool:
        if failing:
            raise OSError("no room")
        return real_flush(*marks)

    def clock() -> float:
        """The first checkpoint looks at the clock once it has failed: here comes the second."""
        nonlocal failing
        if threading.current_thread() is not later and flushed and later.ident is None:
            failing = False
            later.start()
            later.join(0.2)
        return real_clock()

    flushed: list[tuple[Any, ...]] = []

    def flush_and_tell(*marks: Any) -> bool:
        flushed.append(marks)
        return flush(*marks)

    monkeypatch.setattr(store, "flush", flush_and_tell)
    monkeypatch.setattr(time, "perf_counter", clock)
    before = storage.stats().flushes
    with pytest.raises(OSError, match="no room"):
        storage.flush()
    later.join(10)
    assert storage.failure is None
    assert storage.stats().flushes == before + 2


def test_next_ledger_id_is_above_what_is_stored_and_what_is_not() -> None:
    machine = Machine(formatted())
    assert machine.bookie.next_ledger_id() == 1
    assert machine.add(6, [0]) is BookieStatus.OK
    assert machine.bookie.next_ledger_id() == 7
    machine.flush()
    assert machine.bookie.next_ledger_id() == 7
    assert machine.fence(9) is BookieStatus.OK
    assert machine.bookie.next_ledger_id() == 10, "also without an entry"
    machine.flush()
    assert machine.bookie.next_ledger_id() == 10


@pytest.mark.parametrize("full", (0, 1))
def test_directory_that_never_had_room_keeps_the_whole_journal(full: int) -> None:
    """A new bookie of which one ledger disk is full: no flush has given that directory a mark yet.
    What the others have stored is no reason to remove a file from which it has to be filled."""
    files = formatted()
    files.disks = (MemoryDisk(0, [LEDGERS[full]]),)
    config = small_config(disk_reserve_bytes=0)
    machine = Machine(files, config)
    ledgers = (6, 7)
    for entry in range(40):  # of two journal files and more
        for ledger in ledgers:
            assert machine.add(ledger, [entry], recovery=True, size=2000) is BookieStatus.OK
    with pytest.raises(OSError, match="space"):
        machine.flush()
    assert machine.bookie.stats().journal.file_number > 2
    assert journal_numbers(files, JOURNAL)[0] == 1
    machine = Machine(files.crash_clone(None), config)
    for ledger in ledgers:
        assert machine.held(ledger) == expected(ledger, range(40), 2000)
