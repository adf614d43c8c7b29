"""What a bookie keeps of a ledger beside its entries. Pure."""

from __future__ import annotations

from typing import NamedTuple

from spark_ledger.types import NO_ENTRY, EntryId


class LedgerRecord(NamedTuple):
    """What is kept of a ledger beside its entries."""

    access_key_hash: bytes = b""
    fenced: bool = False
    last_add_confirmed: EntryId = NO_ENTRY
    last_entry: EntryId = NO_ENTRY

    def with_run(self, last_entry: EntryId, last_add_confirmed: EntryId) -> LedgerRecord:
        """The state after a run: both ends only grow."""
        return LedgerRecord(
            self.access_key_hash,
            self.fenced,
            max(last_add_confirmed, self.last_add_confirmed),
            max(last_entry, self.last_entry),
        )
