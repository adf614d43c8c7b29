"""How a keeper deletes ledgers in the tests of packs: those that their writers have closed."""

from __future__ import annotations

from dataclasses import replace

from spark_ledger.types import EntryId, LedgerId, LedgerMetadata, LedgerState, Versioned
from tests.unit.spark_ledger.stream.world import Deletions


class ClosedDeletions(Deletions):
    """Of ledgers that are closed, or not."""

    async def read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        found = await super().read(ledger_id)
        if found is None or not self.ledgers.ledgers[ledger_id].closed:
            return found
        closed = replace(found.value, state=LedgerState.CLOSED, last_entry_id=EntryId(0), length=1)
        return Versioned(closed, 0)
