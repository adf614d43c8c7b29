"""What repair may read in a second, in sum and from each bookie, however long it was idle."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.repair.throttle import Throttles
from spark_ledger.tasks import Throttle
from spark_ledger.types import BookieId
from tests.unit.virtual_time import run_in_virtual_time

NEAR, FAR = BookieId("b0"), BookieId("b1")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_bytes_pass_at_the_rate_in_the_order_of_the_calls() -> None:
    clock = Clock()
    throttle = Throttle(100.0, clock)
    clock.now += 1.0
    assert [throttle.reserve(50) for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]
    assert throttle.wait_s == 1.0


@pytest.mark.parametrize("idle_s", [1.0, 60.0, 86_400.0])
def test_idle_time_is_worth_a_second_at_most(idle_s: float) -> None:
    clock = Clock()
    throttle = Throttle(100.0, clock)
    clock.now += idle_s
    assert throttle.reserve(100) == 0.0
    assert throttle.reserve(100) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("own_rate", "source_rate", "took_s", "for_source_s"),
    [(1e9, 50.0, 2.0, 2.0), (100.0, 50.0, 2.0, 1.0), (25.0, 50.0, 4.0, 0.0)],
)
def test_copy_waits_for_the_slower_of_worker_and_source(
    own_rate: float, source_rate: float, took_s: float, for_source_s: float
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        throttles, began = Throttles(own_rate, source_rate), loop.time()
        await throttles.take(NEAR, 100)
        assert loop.time() - began == pytest.approx(took_s)
        assert throttles.source_waited_s == pytest.approx(for_source_s, abs=1e-6)

    run_in_virtual_time(test())


def test_source_with_the_least_to_wait_for_comes_first() -> None:
    async def test() -> None:
        throttles = Throttles(1e9, 50.0)
        assert throttles.least_loaded([NEAR, FAR]) == [NEAR, FAR]
        waiting = asyncio.ensure_future(throttles.take(NEAR, 100))
        await asyncio.sleep(0)
        assert throttles.least_loaded([NEAR, FAR]) == [FAR, NEAR]
        await waiting

    run_in_virtual_time(test())
