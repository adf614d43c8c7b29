"""Bookies that failed in an ensemble and were replaced: who may be chosen again (rule P10)."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ledger.limits.client import ADD_TIMEOUT_S
from spark_ledger.protocol.member import EnsembleMember
from spark_ledger.types import BookieId


class Replaced:
    """What is remembered of members that left. Each new member begins afresh at its index, so bad
    bookies that take each other's place would never stay away, and always be waited for."""

    __slots__ = ("_outwaited", "_stands_at", "_stands_since", "_until", "wait_s")

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        """How long a member is waited for that stores nothing (rule P11)."""
        self._until: dict[BookieId, float] = {}
        """Those that stay away, each with the time until which."""
        self._stands_at: int | None = None
        """What was confirmed when members were last replaced, if entries waited then."""
        self._stands_since = 0.0
        """When the first of them were replaced since that was confirmed."""
        self._outwaited: frozenset[BookieId] = frozenset()
        """Those that had all of that time, and left since then."""

    def add(
        self, left: Sequence[EnsembleMember], last_confirmed: int, last_pushed: int, now: float
    ) -> float:
        """Members left, because others take their places. Since when those owe something: since
        anything was confirmed, as far as is known, so that they are waited for no longer than those
        before. Each has the time of one that is silent to itself (rule P11)."""
        until = self._until | {member.bookie_id: member.return_at for member in left}
        self._until = {bookie_id: at for bookie_id, at in until.items() if at > now}
        stands_at = last_confirmed if last_confirmed < last_pushed else None
        if stands_at is None or stands_at != self._stands_at:
            self._stands_at, self._stands_since, self._outwaited = stands_at, now, frozenset()
        self._outwaited |= {member.bookie_id for member in left if member.outwaited}
        return max(self._stands_since, now - max(self.wait_s - ADD_TIMEOUT_S, 0.0))

    def staying_away(self, now: float) -> frozenset[BookieId]:
        """Who is not to be chosen now, while the ledger goes on without it."""
        return frozenset(bookie_id for bookie_id, at in self._until.items() if at > now)

    def outwaited(self, confirmed_end: int) -> frozenset[BookieId]:
        """Who is not to be chosen before something is confirmed."""
        return self._outwaited if confirmed_end == self._stands_at else frozenset()
