"""Recoveries that somebody began and did not end, of ledgers whose owner lives. Pure (rule K3).

The writer of such a ledger is fenced, so it takes no entry any more, and whoever follows it waits
for its end. Its owner may not know of it, or not care: it writes to another ledger by now.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from spark_ledger.keeper.gone import GoneOwners
from spark_ledger.limits.keeper import LIVING_READ_S
from spark_ledger.types import LedgerId, LedgerMetadata, LedgerState

_PARTS: Final = 61
"""Ledgers of one process have ids in a row: they are read at as many times."""


class HalfwayRecoveries:
    """Which ledgers of living owners are read in a pass, and for how long each was seen halfway."""

    def __init__(self, count: GoneOwners) -> None:
        """``count`` adds up the time between looks, by the text of a ledger's id."""
        self._count = count
        self._ledgers: set[LedgerId] = set()
        self._due_at: dict[LedgerId, float] = {}

    def at_work(self, now: float) -> None:
        """A sign of work, as ``GoneOwners.at_work``."""
        self._count.at_work(now)

    def is_due(self, ledger_id: LedgerId, now: float) -> bool:
        """Whether to read a ledger. One that was halfway is read in each pass, all others from time
        to time, however long passes take and whatever fails in them: a recovery does not tell the
        keeper that it begins."""
        return ledger_id in self._ledgers or now >= self._due_at.get(ledger_id, now)

    def seen_s(self, ledger: LedgerMetadata, now: float) -> float | None:
        """For how long a ledger, which was read now, was seen in recovery; None if it is not."""
        ledger_id = ledger.ledger_id
        phase_s = ledger_id % _PARTS * LIVING_READ_S / _PARTS  # a new keeper reads all at once
        self._due_at[ledger_id] = now + LIVING_READ_S - (now + phase_s) % LIVING_READ_S
        if ledger.state is not LedgerState.IN_RECOVERY:
            return None
        self._ledgers.add(ledger_id)
        return self._count.gone(str(ledger_id), now)

    def keep_only(self, listed: Collection[LedgerId]) -> None:
        """Forget those that are not open any more."""
        self._ledgers.intersection_update(listed)
        self._due_at = {i: due_at for i, due_at in self._due_at.items() if i in listed}
        self._count.keep_only({str(ledger_id) for ledger_id in self._ledgers})
