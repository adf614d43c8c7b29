"""Ledgers that are on their way out, and that the metadata may let in again (rules G2 and G9).

Nothing that this bookie has of them is vouched for, and nothing of them is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

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

    @contextmanager
    def going(self, ledger_ids: Collection[LedgerId]) -> Iterator[None]:
        """Begin, and end behind what is done meanwhile, well or not. Who is cancelled in the middle
        of it vouches for them no more: the process ends."""
        self.begin(ledger_ids)
        try:
            yield
        except Exception:
            self.end(ledger_ids)
            raise
        self.end(ledger_ids)

    def refuse(self, ledger_id: LedgerId) -> Refusal | None:
        """The refusal of a change of such a ledger: it would be dropped, though it was answered.
        Once what is held is deleted, the same may come again."""
        if ledger_id not in self._ledger_ids:
            return None
        message = f"ledger {ledger_id}: what is held of it is being deleted; ask again later"
        return Refusal(BookieStatus.TOO_MANY_REQUESTS, message)
