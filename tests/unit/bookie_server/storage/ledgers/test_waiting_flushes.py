"""Several flushes that wait for their turn: each is told if nothing moves, and only then (S15)."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_server.storage.ledgers import directory_store, ledger_storage
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import Machine, formatted

STEP_S = 2.0


class Turns:
    """The flush lock of a storage whose clock stands still: who waits for it, and what is said of
    that before each turn ends, and when the next one has hung for a while."""

    def __init__(self, storage: LedgerStorage, monkeypatch: pytest.MonkeyPatch) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.waiting = 0
        self.at_end: list[tuple[float, float]] = []
        self.now = time.monotonic()
        clock = SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: self.now)
        monkeypatch.setattr(ledger_storage, "time", clock)
        monkeypatch.setattr(directory_store, "time", clock)
        monkeypatch.setattr(storage, "_flush_lock", self)

    def __enter__(self) -> None:
        self.waiting += 1
        self._lock.acquire()
        self.waiting -= 1

    def __exit__(self, *_of: object) -> None:
        before = self._storage.unmoved[1]
        self.now += STEP_S
        self.at_end.append((before, self._storage.unmoved[1]))
        self._lock.release()

    def wait(self, count: int) -> None:
        """So many flushes come to wait."""
        for _each in range(count):
            self._threads.append(threading.Thread(target=self._storage.flush, daemon=True))
            self._threads[-1].start()
        deadline = time.monotonic() + 10
        while self.waiting < count:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def join(self) -> None:
        for each in self._threads:
            each.join(10)
            assert not each.is_alive()


@pytest.fixture
def machine() -> Machine:
    machine = Machine(formatted())
    assert machine.add(2, range(9)) is BookieStatus.OK
    return machine


@pytest.fixture
def turns(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(machine.bookie._storage, monkeypatch)


def test_flush_that_waits_is_told_once_nothing_moves_and_each_of_them_is(
    machine: Machine, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until now the time of one stood for all: what moved counted, and the second was not told."""
    storage = machine.bookie._storage
    begun: list[float] = []
    prepared: list[float] = []
    for store in storage._stores:

        def flush(*of: Any, flush: Any = store.flush) -> bool:
            if not begun:
                turns.wait(2)
            begun.append(storage.unmoved[1])
            turns.now += STEP_S
            return bool(flush(*of))

        monkeypatch.setattr(store, "flush", flush)
    prepare = storage._journal.prepare

    def slowly() -> None:
        turns.now += STEP_S
        prepared.append(storage.unmoved[1])
        prepare()

    monkeypatch.setattr(storage._journal, "prepare", slowly)
    storage.flush()
    turns.join()
    assert begun == [0.0] * 6, "each directory begins anew"
    assert prepared == [STEP_S] * 3, "the journal's part, also while no other waits"
    assert turns.at_end == [(0.0, STEP_S), (0.0, STEP_S), (0.0, 0.0)], "while others wait"
    assert storage.unmoved == ("", 0.0)


@pytest.mark.parametrize("part", ["prepare", "remove_before"])
def test_flush_that_hangs_in_the_journals_part_is_told_although_no_other_waits(
    machine: Machine, turns: Turns, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The flush thread is the only one, as a rule, and adds wait until it has come to its end."""
    storage = machine.bookie._storage
    told: list[tuple[str, float]] = []
    goes_on = getattr(storage._journal, part)

    def hangs(*of: Any) -> Any:
        turns.now += STEP_S
        told.append(storage.unmoved)
        if len(told) == 1:
            raise ZeroDivisionError("a bug of ours")
        return goes_on(*of)

    monkeypatch.setattr(storage._journal, part, hangs)
    with pytest.raises(ZeroDivisionError):
        storage.flush()
    assert storage.unmoved == ("", 0.0), "it has ended"
    storage.flush()
    directories = ", ".join(str(each.directory) for each in storage._stores)
    assert told == [(directories, STEP_S)] * 2
    assert storage.unmoved == ("", 0.0)


def test_step_of_a_deletion_is_one_that_moves(
    machine: Machine, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that waits behind many of them is not told that the disk stands still."""
    storage = machine.bookie._storage
    storage.flush()
    turns.at_end.clear()
    store = storage.store_of(LedgerId(2))
    delete_some = store.delete_some

    def slowly(*of: Any) -> Any:
        turns.wait(1)
        turns.now += STEP_S
        return delete_some(*of)

    monkeypatch.setattr(store, "delete_some", slowly)
    storage.delete_ledgers([LedgerId(2)])
    turns.join()
    assert turns.at_end[1] == (0.0, STEP_S), "behind the step; the first turn is that of memory"
