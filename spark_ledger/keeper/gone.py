"""For how long owners were seen to be gone, by the keepers' own clocks. Pure (rule K2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_ledger.limits.keeper import GONE_OWNERS_KEPT


class GoneOwners:
    """Adds up the time of work between two looks that both found an owner gone.

    A look that finds the owner alive counts for nothing, and so does a time longer than
    ``step_s_max`` without a sign of work: a keeper that was paused, or a clock that jumped, must
    not make an owner gone for a year.
    """

    def __init__(self, step_s_max: float, saved: Mapping[str, float] | None = None) -> None:
        self._step_s_max = step_s_max
        self._seconds = dict(saved or {})
        self._seen_at: dict[str, float] = {}
        """When owners were seen gone last, in ``_worked_s``."""
        self._worked_s = 0.0
        self._now: float | None = None

    def at_work(self, now: float) -> float:
        """A sign of work, whatever it is about; for how long there was work so far.

        However many owners there are, and however long it takes to look at all of them, each has
        its time: were it one look at it after the other, long passes would count for nothing.
        """
        step_s = now - (now if self._now is None else self._now)
        if not 0.0 <= step_s <= self._step_s_max:
            step_s = 0.0
        self._now = now
        self._worked_s += step_s
        return self._worked_s

    def alive(self, owner: str) -> None:
        """It was seen alive: whatever was counted is void."""
        self._seconds.pop(owner, None)
        self._seen_at.pop(owner, None)

    def gone(self, owner: str, now: float) -> float:
        """It was seen gone at ``now``; for how long so far."""
        worked_s = self.at_work(now)
        step_s = worked_s - self._seen_at.get(owner, worked_s)
        self._seen_at[owner] = worked_s
        self._seconds[owner] = self._seconds.get(owner, 0.0) + step_s
        return self._seconds[owner]

    def still_gone(self, owner: str, now: float) -> float | None:
        """As ``gone``, of one that is in no list since this keeper saw it gone; None of others."""
        return self.gone(owner, now) if owner in self._seen_at else None

    def keep_only(self, owners: Collection[str]) -> None:
        """Forget all others: none of their ledgers is left."""
        for owner in self._seconds.keys() - set(owners):
            self.alive(owner)

    def saved(self) -> dict[str, float]:
        """What the next keeper may go on from: those that are gone longest."""
        longest = sorted(self._seconds.items(), key=lambda item: (-item[1], item[0]))
        return {owner: round(seconds, 1) for owner, seconds in longest[:GONE_OWNERS_KEPT]}
