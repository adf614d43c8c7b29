"""What repair may read in a second, however long it had nothing to do before."""

from __future__ import annotations

import pytest

from spark_ledger.repair.throttle import Throttle


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
