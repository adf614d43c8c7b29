"""Ledger record: what a bookie keeps of a ledger beside its entries, and how it changes. Pure.

A record only grows: a key is learned once, a fence is never taken back, and both ends only move
up. Applying a change or a run a second time therefore changes nothing. Replay depends on this:
it applies the journal from the last checkpoint on, to records that may hold all of it already
(rule S8).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_ledger.types import NO_ENTRY, EntryId, LedgerId

KEY_HASH_BYTES: Final = 32
"""SHA-256 of an access key. The hash of no key is empty."""


class Change(NamedTuple):
    """One journalled change of a record, other than an added run.

    Exactly one thing is set: ``fenced`` is true, or ``access_key_hash`` is not empty, or
    ``last_add_confirmed`` is above NO_ENTRY.
    """

    ledger_id: LedgerId
    fenced: bool = False
    access_key_hash: bytes = b""
    last_add_confirmed: EntryId = NO_ENTRY


class LedgerRecord(NamedTuple):
    """What is kept of a ledger beside its entries. A ledger never heard of has none."""

    access_key_hash: bytes = b""
    """SHA-256 of the ledger's access key; empty for a ledger without one."""

    fenced: bool = False
    """A recovery has taken the ledger from its writer, for ever."""

    last_add_confirmed: EntryId = NO_ENTRY
    """Highest one that a writer told, in an entry or explicitly. A hint: it may lag (rule P5)."""

    last_entry: EntryId = NO_ENTRY
    """Highest entry that was added here; entries below it may be missing."""

    def with_run(self, last_entry: EntryId, last_add_confirmed: EntryId) -> LedgerRecord:
        """The record after a run that ends with ``last_entry``.

        A recovery adds entries below the end, whose frames hold an older last add confirmed. So
        both are a maximum and not what came last.
        """
        assert last_entry >= 0, "a run has at least one entry"
        key_hash, fenced, confirmed, last = self  # no calls: this runs for each add
        if last_add_confirmed > confirmed:
            confirmed = last_add_confirmed
        if last_entry > last:
            last = last_entry
        return LedgerRecord(key_hash, fenced, confirmed, last)

    def with_change(self, change: Change) -> LedgerRecord:
        """The record after a change. Live requests and replay share this function."""
        return LedgerRecord(
            change.access_key_hash or self.access_key_hash,
            change.fenced or self.fenced,
            max(change.last_add_confirmed, self.last_add_confirmed),
            self.last_entry,
        )

    def grew_from(self, before: LedgerRecord | None) -> bool:
        """Whether nothing of ``before`` was taken back; None is a ledger never heard of."""
        if before is None:
            return True
        return (
            before.access_key_hash in (b"", self.access_key_hash)  # learned once
            and self.fenced >= before.fenced
            and self.last_add_confirmed >= before.last_add_confirmed
            and self.last_entry >= before.last_entry
        )
