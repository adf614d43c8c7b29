"""Whether an add is a copy that repair may make without the ledger's password. Pure (rule R11)."""

from __future__ import annotations

import hmac
from typing import NamedTuple

from spark_ledger.bookie_api import Refusal
from spark_ledger.types import BookieStatus, EntryId, LedgerId, LedgerMetadata


class CopyGrant(NamedTuple):
    """What the metadata say of a ledger that is being copied."""

    holder: bytes
    """Hash of the key of who holds the ledger's repair lock; empty: nobody does."""
    access_key_hash: bytes
    """What the bookie keeps with its record: the ledger's own, never the holder's."""
    final_end: EntryId
    """The last entry that no writer and no recovery can change any more (rule R2)."""
    is_closed: bool = False


def grant_of(ledger: LedgerMetadata, holder: bytes) -> CopyGrant:
    """What may be copied by the holder of a ledger's lock."""
    end = ledger.last_entry_id if ledger.is_closed else ledger.last_fragment.first_entry - 1
    return CopyGrant(holder, ledger.access_key_hash, EntryId(end), ledger.is_closed)


def refuse_copy(
    grant: CopyGrant, ledger_id: LedgerId, key_hash: bytes, last_entry: EntryId
) -> Refusal | None:
    """The refusal of a copy: by who does not hold the lock, or of entries that are not final.

    A recovery counts who holds an entry of the last fragment (rules P13 to P15). A copy never adds
    to them, whoever sends it.
    """
    if not grant.holder or not hmac.compare_digest(grant.holder, key_hash):
        message = f"ledger {ledger_id}: who sends this copy does not hold its repair lock"
        return Refusal(BookieStatus.UNAUTHORIZED, message)
    if last_entry > grant.final_end:
        message = (
            f"ledger {ledger_id}: entries above {grant.final_end} are not final, and not copied"
        )
        return Refusal(BookieStatus.UNAUTHORIZED, message)
    return None
