"""For crash tests: whether a bookie accepts an access key for a ledger; changes nothing."""

from __future__ import annotations

from bookie_server.bookie import Bookie
from bookie_server.core.transitions import KnownLedger, on_fence
from spark_ledger.bookie_api import Refusal
from spark_ledger.errors import CorruptionError
from spark_ledger.types import BookieStatus, LedgerId
from spark_ledger.wire.frame import access_key_hash


def key_status(bookie: Bookie, ledger_id: int, access_key: bytes) -> BookieStatus:
    """OK, or UNAUTHORIZED when the ledger is known with another key; IO_ERROR if unreadable."""
    try:
        record = bookie._storage.ledger_record(LedgerId(ledger_id))
    except (OSError, CorruptionError):
        return BookieStatus.IO_ERROR
    key_hash = access_key_hash(access_key)
    decision = on_fence(record, LedgerId(ledger_id), key_hash, in_metadata=KnownLedger(key_hash))
    return decision.status if isinstance(decision, Refusal) else BookieStatus.OK
