"""Bookies that failed in an ensemble and were replaced: who may be chosen again (rule P10)."""

from __future__ import annotations

from collections.abc import Iterable

from spark_ledger.protocol.member import EnsembleMember
from spark_ledger.types import BookieId


class Replaced:
    """What is remembered of members that left. Each new member begins afresh at its index, so two
    bad bookies that take each other's place would never stay away from anything."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[BookieId, float] = {}
        """Those that stay away, each with the time until which."""

    def add(self, left: Iterable[EnsembleMember], now: float) -> None:
        """Members left, because others take their places."""
        until = self._until | {member.bookie_id: member.return_at for member in left}
        self._until = {bookie_id: at for bookie_id, at in until.items() if at > now}

    def staying_away(self, now: float) -> frozenset[BookieId]:
        """Who is not to be chosen now, while the ledger goes on without it."""
        return frozenset(bookie_id for bookie_id, at in self._until.items() if at > now)
