"""Recoveries that somebody began and did not end, of ledgers whose owner lives. Pure (rule K3).

The writer of such a ledger is fenced, so it takes no entry any more, and whoever follows it waits
for its end. Its owner may not know of it, or not care: it writes to another ledger by now.
"""

from __future__ import annotations

from collections.abc import Collection

from spark_ledger.keeper.gone import GoneOwners
from spark_ledger.limits.keeper import LIVING_READ_PASSES
from spark_ledger.types import LedgerId, LedgerMetadata, LedgerState


class HalfwayRecoveries:
    """Which ledgers of living owners are read in a pass, and for how long each was seen halfway."""

    def __init__(self, count: GoneOwners) -> None:
        """``count`` adds up the time between looks, by the text of a ledger's id."""
        self._count = count
        self._ledgers: set[LedgerId] = set()

    def is_due(self, ledger_id: LedgerId, passes: int) -> bool:
        """Whether to read a ledger in the pass behind so many. One that was halfway is read in
        each, all others in turn: a recovery does not tell the keeper that it begins."""
        is_its_turn = (ledger_id - passes) % LIVING_READ_PASSES == 0
        return is_its_turn or ledger_id in self._ledgers

    def seen_s(self, ledger: LedgerMetadata, now: float) -> float | None:
        """For how long a ledger was seen in recovery; None if it is not."""
        if ledger.state is not LedgerState.IN_RECOVERY:
            return None
        self._ledgers.add(ledger.ledger_id)
        return self._count.gone(str(ledger.ledger_id), now)

    def keep_only(self, listed: Collection[LedgerId]) -> None:
        """Forget those that are not open any more."""
        self._ledgers.intersection_update(listed)
        self._count.keep_only({str(ledger_id) for ledger_id in self._ledgers})
