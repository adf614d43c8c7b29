"""The clock by which the keeper drops rows: it cannot jump ahead. Pure (rule K7)."""

from __future__ import annotations

from spark_ledger.limits.keeper import CLOCK_CATCH_UP, CLOCK_SLACK_MS


class SteadyClock:
    """The wall clock, but no faster than ``CLOCK_CATCH_UP`` times the monotonic one.

    ``saved_ms`` is the time that the keeper before has written down, None if there was none.
    """

    def __init__(self, wall_ms: int, now_s: float, saved_ms: int | None = None) -> None:
        self._time_ms = wall_ms if saved_ms is None else min(wall_ms, saved_ms)
        self._now_s = now_s
        self.behind_ms = max(0, wall_ms - self._time_ms)
        """By how much the wall clock is ahead of this one."""

    @property
    def has_jumped(self) -> bool:
        """Whether the wall clock is ahead by more than an unhurried keeper explains."""
        return self.behind_ms > CLOCK_SLACK_MS

    def read(self, wall_ms: int, now_s: float) -> int:
        """The time now, in ms since 1970."""
        passed_ms = int(max(0.0, now_s - self._now_s) * 1000 * CLOCK_CATCH_UP)
        self._now_s = max(self._now_s, now_s)
        # A wall clock that was set back is followed at once: that drops nothing.
        self._time_ms = min(wall_ms, self._time_ms + passed_ms)
        self.behind_ms = max(0, wall_ms - self._time_ms)
        return self._time_ms
