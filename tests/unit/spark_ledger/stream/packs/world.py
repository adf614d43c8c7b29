"""What tests of packs share: a keeper that deletes closed ledgers, a handle that has looked."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.stream import Stream
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


def looked_before(stream: Stream) -> None:
    """It has asked for the packs a moment ago, and there were none."""
    packs = stream._reader.packs
    packs.known, packs._looked_s = Packs(), asyncio.get_running_loop().time()
