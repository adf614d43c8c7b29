"""What became of the flushes so far: how many, how long they took, and why the last one failed."""

from __future__ import annotations

from typing import NamedTuple


class FlushFailure(NamedTuple):
    """Why the last flush of a directory failed; ``no_space``: its disk or its index is full."""

    message: str
    no_space: bool


class FlushStats(NamedTuple):
    """How the flushes went so far. ``failures`` are of the last one, by directory."""

    flushes: int = 0
    flush_time_s: float = 0.0
    last_flush_s: float = 0.0
    failures: tuple[FlushFailure | None, ...] = ()
    other_failure: str | None = None

    def after(
        self,
        elapsed_s: float,
        failures: tuple[FlushFailure | None, ...],
        other_failure: str | None,
    ) -> FlushStats:
        """The same with one more flush."""
        total_s = self.flush_time_s + elapsed_s
        return FlushStats(self.flushes + 1, total_s, elapsed_s, failures, other_failure)
