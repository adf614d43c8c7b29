"""Ledgers that are being given back: nothing that this bookie has of them is vouched for (G9)."""

from __future__ import annotations

from collections.abc import Collection

from spark_ledger.bookie_api import Refusal
from spark_ledger.types import BookieStatus, LedgerId


class GivingBack:
    """Changed by one thread, that of the garbage collection; asked by any."""

    def __init__(self) -> None:
        self._ledger_ids: frozenset[LedgerId] = frozenset()  # replaced, and never changed

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._ledger_ids

    def begin(self, ledger_ids: Collection[LedgerId]) -> None:
        """From now on nobody counts on these."""
        self._ledger_ids |= frozenset(ledger_ids)

    def end(self, ledger_ids: Collection[LedgerId]) -> None:
        """What is held of these now, if anything is, can be counted on again."""
        self._ledger_ids -= frozenset(ledger_ids)

    def refuse(self, ledger_id: LedgerId) -> Refusal | None:
        """The refusal of an add of such a ledger: once it is deleted, a copy can be made anew."""
        if ledger_id not in self._ledger_ids:
            return None
        message = f"ledger {ledger_id}: its closed copy here is being deleted; ask again later"
        return Refusal(BookieStatus.TOO_MANY_REQUESTS, message)
