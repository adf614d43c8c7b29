"""The keeper's clock cannot jump ahead, in one keeper or from one to the next (rule K7)."""

from __future__ import annotations

from spark_ledger.keeper.clock import SteadyClock

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def test_clock_that_runs_evenly_is_believed() -> None:
    clock = SteadyClock(1000, 5.0)
    assert clock.read(1000, 5.0) == 1000
    assert clock.read(61_000, 65.0) == 61_000
    assert not clock.has_jumped and clock.behind_ms == 0


def test_clock_that_jumps_is_followed_at_ten_times_its_pace() -> None:
    clock = SteadyClock(0, 0.0)
    assert clock.read(YEAR_MS, 60.0) == 600_000
    assert clock.has_jumped
    assert clock.read(YEAR_MS + 60_000, 120.0) == 1_200_000
    assert clock.read(130_000, 130.0) == 130_000  # it was set right
    assert not clock.has_jumped


def test_clock_that_is_set_back_is_followed_at_once() -> None:
    clock = SteadyClock(YEAR_MS, 0.0)
    assert clock.read(5, 10.0) == 5
    assert clock.read(YEAR_MS, 20.0) == 100_005


def test_next_keeper_goes_on_where_the_last_one_was() -> None:
    clock = SteadyClock(YEAR_MS, 0.0, saved_ms=7)
    assert clock.has_jumped
    assert clock.read(YEAR_MS, 1.0) == 10_007
    assert SteadyClock(5, 0.0, saved_ms=YEAR_MS).read(5, 0.0) == 5


def test_monotonic_clock_that_stands_still_adds_nothing() -> None:
    clock = SteadyClock(0, 100.0)
    assert clock.read(YEAR_MS, 50.0) == 0
    assert clock.read(YEAR_MS, 100.0) == 0
