"""A power cut at every file operation: whatever was answered is there afterwards.

The workload runs until operation n, the power goes, and a bookie opens what the disk holds: only
what was synced, or also a random part of what was not. The same is done to the opening itself.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy

import pytest

from bookie_server.storage.fault_fs import FaultFileSystem
from bookie_server.storage.memory_fs import MemoryFileSystem
from tests.crash.workload import PowerCut, PowerCutError, Promises, run_workload
from tests.unit.bookie_server.storage.support import Machine, formatted

STEPS = 22
NEVER = 1 << 60


def run_until(at: int, seed: int) -> tuple[MemoryFileSystem, Promises, int]:
    """The machine after operation ``at - 1``, what it had promised, and the operations done."""
    disk = formatted()
    files = FaultFileSystem(disk, PowerCut(at))
    promises = Promises()
    with suppress(PowerCutError):
        machine = Machine(files)
        run_workload(machine, promises, seed=seed, steps=STEPS)
        machine.close()
    return disk, promises, files.operations


def reopened(disk: MemoryFileSystem, promises: Promises, context: str) -> None:
    machine = Machine(disk)
    promises.check(machine, context)
    machine.flush()
    promises.check(machine, f"{context}, after a checkpoint")
    machine.close()


def killed(disk: MemoryFileSystem) -> MemoryFileSystem:
    """The machine after the process died: the page cache is there, locks are gone."""
    survivor = deepcopy(disk)
    survivor._locks.clear()
    return survivor


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_operation(seed: int) -> None:
    _disk, promises, operations = run_until(NEVER, seed)
    assert operations > 100 and sum(map(len, promises.entries.values())) > 50, "it does something"
    assert promises.fenced and promises.lacs
    for at in range(1, operations + 1):
        disk, promises, _done = run_until(at, seed)
        context = f"seed {seed}, power cut at operation {at}"
        reopened(disk.crash_clone(None), promises, f"{context}, unsynced lost")
        reopened(disk.crash_clone(at), promises, f"{context}, lottery {at}")
        reopened(disk.crash_clone(-at), promises, f"{context}, lottery {-at}")


@pytest.mark.parametrize("seed", [4, 5])
def test_a_crash_of_the_process_alone(seed: int) -> None:
    """A killed process: the page cache survives, locks are gone, nothing was flushed."""
    _disk, promises, operations = run_until(NEVER, seed)
    for at in range(1, operations + 1, 3):
        disk, promises, _done = run_until(at, seed)
        reopened(killed(disk), promises, f"seed {seed}, killed at operation {at}")


def test_a_power_cut_while_opening_after_a_kill() -> None:
    """What the page cache showed to the first opening is gone at the second."""
    seed = 5
    _disk, promises, operations = run_until(NEVER, seed)
    for at in range(operations // 2, operations, 5):
        disk, promises, _done = run_until(at, seed)
        for second in range(1, 60, 2):
            survivor = killed(disk)
            files = FaultFileSystem(survivor, PowerCut(second))
            with suppress(PowerCutError):
                Machine(files)
            context = f"killed at {at}, power cut at {second} of the opening"
            promises.check(Machine(survivor.crash_clone(None)), context)
            if files.operations < second:
                break


@pytest.mark.parametrize("lottery", [False, True])
def test_power_cuts_while_opening(lottery: bool) -> None:
    """Opening is cut at each of its operations, and the opening after that as well."""
    seed = 6
    _disk, _promises, operations = run_until(NEVER, seed)
    disk, promises, _done = run_until(operations // 2, seed)
    crashed = disk.crash_clone(17 if lottery else None)

    def opening(disk: MemoryFileSystem, at: int) -> int:
        files = FaultFileSystem(disk, PowerCut(at))
        with suppress(PowerCutError):
            Machine(files).close()
        return files.operations

    total = opening(crashed.crash_clone(None), NEVER)
    assert total > 10
    for first in range(1, total + 1):
        once = crashed.crash_clone(None)
        opening(once, first)
        once = once.crash_clone(first if lottery else None)
        reopened(once.crash_clone(None), promises, f"opening cut at {first}")
        for second in range(first % 9 + 1, total + 1, 9):
            twice = once.crash_clone(None)
            opening(twice, second)
            twice = twice.crash_clone(second if lottery else None)
            promises.check(Machine(twice), f"opening cut at {first}, then at {second}")


def test_lives_in_a_row() -> None:
    """Many short lives on one disk, each ended by a power cut, share one set of promises."""
    for seed in range(8):
        disk, promises = formatted(), Promises()
        for life in range(6):
            files = FaultFileSystem(disk, PowerCut(40 + 37 * life))
            with suppress(PowerCutError):
                machine = Machine(files)
                promises.check(machine, f"seed {seed}, life {life}")
                run_workload(machine, promises, seed=100 * seed + life, steps=STEPS)
            disk = disk.crash_clone(seed * 10 + life)
        reopened(disk, promises, f"seed {seed}, at the end")
