"""The guard of a bookie's memory: whom it has cut, and when it gives freed memory back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from itertools import count

import pytest

from bookie_server.service.guard import memory
from bookie_server.service.guard.beat import call_on_beat
from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.memory import MemoryGuard
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import BOOKIE_MEMORY_INTERVAL_S_MAX
from tests.unit.virtual_time import run_in_virtual_time

BUDGET = 100 * MIB


class Process:
    """Memory in use, and what the guard did about it."""

    def __init__(self, used: int, cuts: int = 0, freed: int = 0) -> None:
        self.used = used * MIB
        self.cuts = cuts
        self.freed = freed * MIB
        self.slow_s = 0.0
        self.looks = 0
        self.shortages: list[bool] = []
        self.trims = 0
        self.guard = MemoryGuard(
            BUDGET,
            self.relieve,
            self.shortages.append,
            calls=lambda: 0,
            used=lambda: self.used,
            trim=self.trim,
        )

    async def relieve(self) -> int:
        self.looks += 1
        return self.cuts

    def trim(self) -> None:
        self.trims += 1
        time.sleep(self.slow_s)
        self.used -= self.freed

    def look(self) -> None:
        asyncio.run(self.guard.look())


@pytest.mark.parametrize(("used", "told"), [(74, []), (76, [True]), (300, [True])])
def test_memory_near_the_budget_is_told_as_short(used: int, told: list[bool]) -> None:
    async def main() -> list[bool]:
        process = Process(used)
        process.guard.start()
        await asyncio.sleep(0.05)
        process.guard.stop()
        return process.shortages

    assert asyncio.run(main()) == told


def test_calls_that_hold_memory_are_cut_and_their_memory_is_given_back() -> None:
    process = Process(90, cuts=3, freed=50)
    process.look()
    assert (process.looks, process.trims, process.guard.cut) == (1, 1, 3)


def test_memory_that_is_freed_a_moment_after_a_look_is_given_back_soon() -> None:
    """A flood holds all that there is; then its clients leave, and nobody is left to hang up on."""

    async def main() -> float:
        process = Process(90)
        process.guard.start()
        async with asyncio.timeout(10):
            while not process.trims:
                await asyncio.sleep(0.01)
        process.freed = 50 * MIB
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(10):
            while process.shortages[-1]:
                await asyncio.sleep(0.01)
        process.guard.stop()
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(main()) < 3.0, "seconds pass between two looks at freed memory"


@pytest.mark.parametrize(("used", "trims"), [(80, range(1, 2)), (95, range(2, 7))])
def test_slow_look_at_freed_memory_is_begun_again_after_a_pause_that_is_short_near_the_budget(
    used: int, trims: range
) -> None:
    async def main() -> int:
        process = Process(used, cuts=1)
        process.slow_s = 0.05
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < 1.0:
            await process.guard.look()
            await asyncio.sleep(0.005)
        return process.trims

    assert asyncio.run(main()) in trims


def test_clients_that_are_cut_all_the_time_do_not_keep_the_allocator_locked() -> None:
    """Each look cuts somebody; others wait for the allocator while pages are given back."""

    async def main() -> None:
        process = Process(10_000, cuts=1, freed=20)
        began = asyncio.get_running_loop().time()
        for _number in range(50):
            await process.guard.look()
            await asyncio.sleep(0.001)
        lasted_s = asyncio.get_running_loop().time() - began
        assert process.guard.cut == 50
        assert 1 <= process.trims <= 1 + lasted_s / 0.2

    asyncio.run(main())


def test_guard_looks_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        process = Process(90)
        process.guard.start()
        async with asyncio.timeout(10):
            while process.looks < 3:
                await asyncio.sleep(0.002)
        process.used = 0
        looks = process.looks
        await asyncio.sleep(0.05)
        assert process.looks <= looks + 1, "nothing is cut while memory is below its high mark"
        assert process.shortages == [True, False]
        process.guard.stop()
        process.used = BUDGET
        looks = process.looks
        await asyncio.sleep(0.05)
        assert process.looks == looks

    monkeypatch.setattr(memory, "BOOKIE_MEMORY_INTERVAL_S", 0.005)
    asyncio.run(main())


def test_memory_of_this_process_is_known() -> None:
    """In a process of its own: of a large one the kernel may take as much away meanwhile."""
    program = """
from bookie_server.service.guard.memory import anonymous_bytes, trim
before = anonymous_bytes()
held = bytearray(b"x" * (64 << 20))
print(anonymous_bytes() - before)
del held
trim()
print(anonymous_bytes() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    held, given_back = map(int, done.stdout.split())
    assert held > 48 * MIB > given_back


@pytest.mark.parametrize(
    ("left_mib", "again_s"), [(-10, 0.025), (1, 0.025), (240, 0.1), (600, 0.25), (10_000, 0.25)]
)
def test_guard_looks_again_before_half_of_what_is_left_can_be_taken(
    left_mib: int, again_s: float
) -> None:
    assert memory.look_again_s(left_mib * MIB) == pytest.approx(again_s)


def test_guard_of_an_idle_bookie_looks_a_few_times_a_second() -> None:
    """Forty times a second were over 1 % of a core, for each bookie that did nothing."""
    looks = count()

    async def main() -> None:
        process = Process(10)
        guard = MemoryGuard(
            1000 * MIB,
            process.relieve,
            process.shortages.append,
            calls=lambda: 1,
            used=lambda: next(looks),
        )
        guard.start()
        await asyncio.sleep(0.6)
        guard.stop()

    asyncio.run(main())
    assert 1 <= next(looks) <= 4


@pytest.mark.parametrize(("calls", "looks_in_10_s"), [(0, 20), (5, 20), (6, 107), (1_000, 107)])
def test_guard_rests_only_while_open_calls_cannot_take_half_of_what_is_left(
    calls: int, looks_in_10_s: int
) -> None:
    looks = count()

    async def main() -> None:
        def used() -> int:
            next(looks)
            return 0

        async def relieve() -> int:
            return 0

        guard = MemoryGuard(
            300 * MIB, relieve, lambda _is_short: None, calls=lambda: calls, used=used
        )
        guard.start()
        await asyncio.sleep(10.0)
        guard.stop()

    run_in_virtual_time(main())
    assert next(looks) == pytest.approx(looks_in_10_s, abs=3)


def test_call_and_message_end_the_rest_of_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood that begins in a rest is seen before it has half of what is left."""
    monkeypatch.setattr(memory, "BOOKIE_MEMORY_INTERVAL_S_MAX", 0.01)
    monkeypatch.setattr(memory, "BOOKIE_MEMORY_REST_S", 3600.0)

    async def main() -> None:
        process = Process(10)
        connections = Connections()
        connections.on_sign = process.guard.sign

        async def is_told(shortages: list[bool]) -> None:
            async with asyncio.timeout(10):
                while process.shortages != shortages:
                    await asyncio.sleep(0.01)

        process.guard.start()
        await asyncio.sleep(0.1)
        process.used = 90 * MIB
        with connections.call("peer"):
            await is_told([True])
            process.used = 10 * MIB
            await is_told([True, False])
            await asyncio.sleep(0.1)
            process.used = 90 * MIB
            connections.given("peer", 1 * MIB)
            await is_told([True, False, True])
        assert connections.calls == 0
        process.guard.stop()

    asyncio.run(main())


def test_guard_that_was_woken_often_looks_no_more_often_than_before() -> None:
    """A rest that a client ends gives way to the next look, and does not go on beside it."""
    looks = count()

    async def main() -> tuple[int, int]:
        def used() -> int:
            return next(looks) * 0

        async def relieve() -> int:
            return 0

        guard = MemoryGuard(
            1_000 * MIB, relieve, lambda _is_short: None, calls=lambda: 0, used=used
        )
        guard.start()
        found = []
        for wakes in (0, 60):
            for _wake in range(wakes):
                await asyncio.sleep(1.3)
                assert guard._is_resting
                guard.sign()
            await asyncio.sleep(3.0)
            before = next(looks)
            await asyncio.sleep(10.0)
            found.append(next(looks) - before)
        guard.stop()
        return found[0], found[1]

    idle, woken = run_in_virtual_time(main())
    assert woken <= 1.5 * idle, "it would be twice as often after each rest"


@pytest.mark.parametrize(("memory_s", "per_second"), [(0.5, 4), (0.146, 8)])
def test_looks_of_all_parts_of_an_idle_bookie_are_taken_together(
    memory_s: float, per_second: int
) -> None:
    """Each wakes the process, which costs more than the look."""
    turns: set[float] = set()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def every(delay_s: float) -> None:
            turns.add(loop.time())
            call_on_beat(delay_s, lambda: every(delay_s))

        for number, delay_s in enumerate((0.25, 0.25, memory_s)):
            loop.call_later(0.02 * number, every, delay_s)
        await asyncio.sleep(10.0)

    run_in_virtual_time(main())
    assert len(turns) <= 10 * per_second + 3, "and the first of each"


def test_delay_shorter_than_a_beat_is_kept() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        began, called = loop.time(), list[float]()
        for delay_s in (0.01, 0.12, 0.3):
            call_on_beat(delay_s, lambda: called.append(loop.time() - began))
        await asyncio.sleep(1.0)
        return called

    first, second, third = run_in_virtual_time(main())
    assert first <= 0.011 and second <= 0.121 and 0.05 < third <= 0.301


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("no thread")])
def test_guard_that_cannot_ask_the_kernel_once_looks_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A bookie that has no descriptor left for a moment must not lose its guard for good, nor one
    that can have no other thread."""
    monkeypatch.setattr(memory, "BOOKIE_MEMORY_INTERVAL_S", 0.001)

    async def main() -> None:
        process, broken = Process(90, cuts=1), iter([True, False, True, False])

        def used() -> int:
            if isinstance(error, OSError) and next(broken, False):
                raise error
            return process.used

        async def relieve() -> int:
            if next(broken, False):
                raise error
            return await process.relieve()

        guard = MemoryGuard(BUDGET, relieve, lambda _is_short: None, calls=lambda: 0, used=used)
        guard.start()
        async with asyncio.timeout(10):
            while not process.looks:
                await asyncio.sleep(0.001)
        guard.stop()

    asyncio.run(main())


def test_clients_that_ask_all_the_time_do_not_put_the_look_off() -> None:
    """Only the first of them ends a rest: a flood would never be seen."""
    looks = count()

    async def main() -> tuple[int, int]:
        def used() -> int:
            return next(looks) * 0

        async def relieve() -> int:
            return 0

        guard = MemoryGuard(
            1_000 * MIB, relieve, lambda _is_short: None, calls=lambda: 0, used=used
        )
        guard.start()
        await asyncio.sleep(3.0)
        assert guard._is_resting
        before = next(looks)
        for _message in range(300):
            guard.sign()
            await asyncio.sleep(0.01)
        guard.stop()
        return before, next(looks)

    before, after = run_in_virtual_time(main())
    assert after - before >= 3 / BOOKIE_MEMORY_INTERVAL_S_MAX
