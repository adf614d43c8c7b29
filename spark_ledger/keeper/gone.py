"""For how long owners were seen to be gone, by the keepers' own clocks. Pure (rule K2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_ledger.limits.keeper import GONE_OWNERS_KEPT


class GoneOwners:
    """Adds up the time between two looks that both found an owner gone.

    A look that finds the owner alive, and none for longer than ``step_s_max``, count for nothing: a
    keeper that was paused, or a clock that jumped, must not make an owner gone for a year.
    """

    def __init__(self, step_s_max: float, saved: Mapping[str, float] | None = None) -> None:
        self._step_s_max = step_s_max
        self._seconds = dict(saved or {})
        self._seen_at: dict[str, float] = {}

    def alive(self, owner: str) -> None:
        """It was seen alive: whatever was counted is void."""
        self._seconds.pop(owner, None)
        self._seen_at.pop(owner, None)

    def gone(self, owner: str, now: float) -> float:
        """It was seen gone at ``now``; for how long so far."""
        before = self._seen_at.get(owner, now)
        step_s = now - before
        if not 0.0 <= step_s <= self._step_s_max:
            step_s = 0.0
        self._seen_at[owner] = now
        self._seconds[owner] = self._seconds.get(owner, 0.0) + step_s
        return self._seconds[owner]

    def keep_only(self, owners: Collection[str]) -> None:
        """Forget all others: none of their ledgers is left."""
        for owner in self._seconds.keys() - set(owners):
            self.alive(owner)

    def saved(self) -> dict[str, float]:
        """What the next keeper may go on from: those that are gone longest."""
        longest = sorted(self._seconds.items(), key=lambda item: (-item[1], item[0]))
        return {owner: round(seconds, 1) for owner, seconds in longest[:GONE_OWNERS_KEPT]}
