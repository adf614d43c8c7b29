"""A ledger disk that hangs is told as soon as adds wait for it, and only while it hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from bookie_server.core import read_only
from bookie_server.core.read_only import Cause
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import LEDGERS, Machine, formatted
from tests.unit.bookie_server.test_bookie_waiting import ENTRY_BYTES, LEDGER, SMALL


class HangingDisk:
    """Each sync of a ledger directory waits while the disk hangs."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.asked = threading.Event()

    def plan(self, operation: Operation) -> Fault | None:
        if operation.kind == "fdatasync" and operation.path.parent in LEDGERS:
            self.asked.set()
            assert self.goes_on.wait(30)
        return None


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def disk() -> HangingDisk:
    return HangingDisk()


def hang(machine: Machine, disk: HangingDisk) -> threading.Thread:
    """A flush that hangs; its thread."""
    assert machine.add(LEDGER, [0], size=ENTRY_BYTES) is BookieStatus.OK
    disk.asked.clear()
    disk.goes_on.clear()
    flush = threading.Thread(target=machine.bookie.flush, daemon=True)
    flush.start()
    assert disk.asked.wait(10)
    return flush


def add_until_one_waits(machine: Machine) -> list[tuple[BookieStatus, str]]:
    storage = machine.bookie._storage
    for entry in range(1, 100):
        waits = storage.is_full(LedgerId(LEDGER))
        answer = machine.start_add(LEDGER, [entry], size=ENTRY_BYTES)
        machine.settle()
        if waits:
            return answer
        assert answer == [(BookieStatus.OK, "")], "there is room"
    raise AssertionError("the cache never fills")


def test_adds_that_wait_for_a_ledger_disk_that_hangs_are_a_stall(
    disk: HangingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_only, "LEDGERS_STALLED_S", 0.05)
    machine = Machine(FaultFileSystem(formatted(), disk.plan), SMALL)
    flush = hang(machine, disk)
    until(lambda: machine.bookie._storage.unmoved[1] > 0.1)
    assert machine.bookie.stall is None, "nobody waits for it"
    answer = add_until_one_waits(machine)
    stalled = machine.bookie.stall
    assert stalled is not None and stalled.cause is Cause.LEDGERS_STALLED
    assert str(LEDGERS[LEDGER % 2]) in stalled.reason and not answer
    disk.goes_on.set()
    flush.join(10)
    assert machine.bookie.stall is None, "the disk goes on"
    machine.settle()
    assert answer == [(BookieStatus.OK, "")], "it was kept, and is stored now"
    assert machine.bookie._storage.unmoved == ("", 0.0)


def test_flush_that_is_slow_and_goes_on_is_no_stall(
    disk: HangingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step counts, not the whole flush: else every full cache would be a stall."""
    machine = Machine(FaultFileSystem(formatted(), disk.plan), SMALL)
    storage = machine.bookie._storage
    flush = hang(machine, disk)
    until(lambda: storage.unmoved[1] > 0.2)
    before = storage.unmoved[1]
    seen: list[float] = []
    moves = storage.store_of(LedgerId(LEDGER)).moves

    def looked() -> None:
        moves()
        seen.append(storage.unmoved[1])

    monkeypatch.setattr(storage.store_of(LedgerId(LEDGER)), "moves", looked)
    disk.goes_on.set()
    flush.join(10)
    assert seen and max(seen) < before, "the flush has come further"


def test_flush_that_failed_stands_still_no_more(disk: HangingDisk) -> None:
    failing = True

    def plan(operation: Operation) -> Fault | None:
        in_ledgers = operation.path.parent in LEDGERS
        return Fault(5) if failing and in_ledgers and operation.kind == "fdatasync" else None

    failing = False
    machine = Machine(FaultFileSystem(formatted(), plan))
    assert machine.add(LEDGER, [0], size=ENTRY_BYTES) is BookieStatus.OK
    failing = True
    with pytest.raises(OSError, match="error"):
        machine.flush()
    assert machine.bookie._storage.unmoved == ("", 0.0)
