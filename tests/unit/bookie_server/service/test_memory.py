"""The guard of a bookie's memory: whom it has cut, and when it gives freed memory back."""

from __future__ import annotations

import asyncio

import pytest

from bookie_server.service import memory
from bookie_server.service.memory import MemoryGuard, anonymous_bytes, trim
from spark_ledger.limits import MIB

BUDGET = 100 * MIB


class Process:
    """Memory in use, and what the guard did about it."""

    def __init__(self, used: int, cuts: int = 0, freed: int = 0) -> None:
        self.used = used * MIB
        self.cuts = cuts
        self.freed = freed * MIB
        self.patience: list[float] = []
        self.trims = 0
        self.guard = MemoryGuard(BUDGET, self.relieve, used=lambda: self.used, trim=self.trim)

    def relieve(self, waited_s: float) -> int:
        self.patience.append(waited_s)
        return self.cuts

    def trim(self) -> None:
        self.trims += 1
        self.used -= self.freed

    def look(self) -> None:
        asyncio.run(self.guard.look())


def test_nothing_is_cut_while_memory_is_below_its_high_mark() -> None:
    process = Process(74)
    process.look()
    assert (process.patience, process.trims) == ([], 0)
    assert not process.guard.is_high


@pytest.mark.parametrize(("used", "patience"), [(76, 0.25), (86, 0.02), (300, 0.02)])
def test_calls_that_keep_the_bookie_waiting_are_cut_near_the_budget(
    used: int, patience: float
) -> None:
    process = Process(used, cuts=3, freed=50)
    assert process.guard.is_high
    process.look()
    assert (process.patience, process.trims, process.guard.cut) == ([patience], 1, 3)


def test_freed_memory_is_given_back_again_and_again_only_if_that_helps() -> None:
    async def look_thrice(process: Process) -> int:
        for _number in range(3):
            await process.guard.look()
        return process.trims

    assert asyncio.run(look_thrice(Process(90))) == 1
    assert asyncio.run(look_thrice(Process(300, freed=20))) == 3


def test_guard_looks_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        process = Process(90)
        process.guard.start()
        async with asyncio.timeout(10):
            while len(process.patience) < 3:
                await asyncio.sleep(0.002)
        process.guard.stop()
        await asyncio.sleep(0.05)
        assert len(process.patience) < 10
        process.guard.stop()

    monkeypatch.setattr(memory, "BOOKIE_MEMORY_INTERVAL_S", 0.005)
    asyncio.run(main())


def test_memory_of_this_process_is_known() -> None:
    before = anonymous_bytes()
    held = bytearray(b"x" * (64 * MIB))
    assert anonymous_bytes() - before > 48 * MIB
    del held
    trim()
    assert anonymous_bytes() - before < 48 * MIB
