"""The clock by which the keeper drops rows: it cannot jump ahead. Pure (rule K7)."""

from __future__ import annotations

from spark_ledger.limits.keeper import CLOCK_CATCH_UP, CLOCK_SLACK_MS


class SteadyClock:
    """The wall clock, but no later than one that follows it at most ``CLOCK_CATCH_UP`` times as
    fast as time passes, forwards and backwards.

    ``saved_ms`` is what the keeper before has written down, None if there was none.
    """

    def __init__(self, wall_ms: int, now_s: float, saved_ms: int | None = None) -> None:
        self.reached_ms = wall_ms if saved_ms is None else saved_ms
        """Up to where the wall clock is believed: to be written down for the next keeper."""
        self.latest_ms = self.reached_ms
        """The latest time that was ever believed: what is dated later has a clock that is ahead."""
        self._now_s = now_s
        self.behind_ms = max(0, wall_ms - self.reached_ms)
        """By how much the wall clock is ahead of this one."""

    @property
    def has_jumped(self) -> bool:
        """Whether the wall clock is ahead by more than an unhurried keeper explains."""
        return self.behind_ms > CLOCK_SLACK_MS

    def read(self, wall_ms: int, now_s: float) -> int:
        """The time now, in ms since 1970."""
        passed_ms = int(max(0.0, now_s - self._now_s) * 1000 * CLOCK_CATCH_UP)
        self._now_s = max(self._now_s, now_s)
        if wall_ms >= self.reached_ms:
            self.reached_ms = min(wall_ms, self.reached_ms + passed_ms)
        else:
            # Slowly too: one that was a year behind for a minute must not stop retention for weeks.
            self.reached_ms = max(wall_ms, self.reached_ms - passed_ms)
        self.latest_ms = max(self.latest_ms, self.reached_ms)
        self.behind_ms = max(0, wall_ms - self.reached_ms)
        # A wall clock that was set back is followed at once: that drops nothing.
        return min(wall_ms, self.reached_ms)
