"""A cache to whose directory no flush comes keeps its bound: adds wait for it, and it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bookie_server.core import read_only
from bookie_server.core.read_only import Cause
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Answer,
    Machine,
    formatted,
    small_config,
)

ENTRY_BYTES = 4096
OK = (BookieStatus.OK, "")
CACHE_BYTES = 64 * KIB
CONFIG = small_config(write_cache_bytes=CACHE_BYTES)
SHARE_BYTES = CACHE_BYTES // len(LEDGERS)
SLOP_BYTES = 2 * ENTRY_BYTES
"""The bound is looked at before each add, and objects take something beside their bytes."""


class HangingDisk:
    """Syncs and index commits of the first ledger directory wait while its disk hangs."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.asked = threading.Event()
        self.threads: list[threading.Thread] = []

    def plan(self, operation: Operation) -> Fault | None:
        is_here = operation.path.is_relative_to(LEDGERS[0])
        if operation.kind == "fdatasync" and is_here and not self.goes_on.is_set():
            self.asked.set()
            assert self.goes_on.wait(30)
        return None

    def hang(self, work: Callable[[], object]) -> None:
        """Do something on a thread that waits for the disk."""
        self.goes_on.clear()
        self.start(work)
        assert self.asked.wait(10)

    def start(self, work: Callable[[], object]) -> None:
        """Do something on a thread."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.threads.append(thread)

    def go_on(self) -> None:
        """Let go what waits, until all of it has ended."""
        self.goes_on.set()
        for each in self.threads:
            each.join(20)
            assert not each.is_alive()


@pytest.fixture
def disk() -> Iterator[HangingDisk]:
    disk = HangingDisk()
    yield disk
    disk.go_on()


def add_until_one_waits(machine: Machine, ledger: int) -> tuple[int, list[Answer]]:
    """How many entries were taken, and the answer of the first that was not."""
    for entry in range(1, 200):
        answer = machine.start_add(ledger, [entry], size=ENTRY_BYTES)
        machine.settle()
        if not answer:
            return entry - 1, answer
        assert answer == [OK]
    raise AssertionError("the cache has no bound")


def check_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_only, "LEDGERS_STALLED_S", 0.05)
    deadline = time.monotonic() + 10
    while (stalled := machine.bookie.stall) is None and time.monotonic() < deadline:
        time.sleep(0.005)  # the thread that is to wait may begin late
    assert stalled is not None and stalled.cause is Cause.LEDGERS_STALLED
    assert str(LEDGERS[0]) in stalled.reason


def check_goes_on(machine: Machine, ledger: int, count: int, answer: list[Answer]) -> None:
    machine.flush()
    assert answer == [OK], "it was kept, and is stored now"
    assert machine.bookie.stall is None
    machine.flush()
    assert sorted(machine.held(ledger)) == list(range(1, count + 2))
    assert machine.bookie.stats().ledger_storage.cache_bytes == 0


def test_directory_whose_turn_does_not_come_keeps_its_share(
    disk: HangingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of another directory hangs in its flush. Until now all was taken, without bound."""
    machine = Machine(FaultFileSystem(formatted(), disk.plan), CONFIG)
    assert machine.add(2, [0]) is BookieStatus.OK
    disk.hang(machine.bookie.flush)
    count, answer = add_until_one_waits(machine, 3)
    held = machine.bookie._storage.store_of(LedgerId(3)).cache
    assert SHARE_BYTES <= held.byte_count <= SHARE_BYTES + SLOP_BYTES
    check_told(machine, monkeypatch)
    disk.go_on()
    assert held.byte_count <= SHARE_BYTES + SLOP_BYTES
    check_goes_on(machine, 3, count, answer)


def test_flush_that_waits_for_a_deletion_keeps_the_bound_and_is_told(
    disk: HangingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk hangs in the commit of a deletion: nothing is frozen."""
    machine = Machine(FaultFileSystem(formatted(), disk.plan), CONFIG)
    assert machine.add(4, [0]) is BookieStatus.OK
    machine.flush()
    disk.hang(lambda: machine.bookie.delete_ledgers([LedgerId(4)]))
    count, answer = add_until_one_waits(machine, 2)
    assert machine.bookie.stall is None, "no flush has come to wait"
    disk.start(machine.bookie.flush)
    check_told(machine, monkeypatch)
    held = machine.bookie._storage.store_of(LedgerId(2)).cache
    assert held.byte_count <= SHARE_BYTES + SLOP_BYTES
    disk.go_on()
    machine.settle()
    check_goes_on(machine, 2, count, answer)
    assert machine.bookie._storage.unmoved == ("", 0.0)
