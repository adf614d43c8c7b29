"""The directories together: checkpoints by several threads, and what is known of the last one."""

from __future__ import annotations

import threading
import time

import pytest

from bookie_server.storage.journal.mark import Mark
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.support import Machine, formatted


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

    def flush(*marks: Mark | None) -> bool:
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

    flushed: list[tuple[Mark | None, ...]] = []

    def flush_and_tell(*marks: Mark | None) -> bool:
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
