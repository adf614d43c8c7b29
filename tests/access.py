"""Asks a bookie whether an access key opens a ledger, without changing anything."""

from __future__ import annotations

from bookie_server.bookie import Bookie
from bookie_server.core.ledger_state import hash_of, refuse_access
from spark_ledger.errors import CorruptionError
from spark_ledger.types import BookieStatus, LedgerId


def key_status(bookie: Bookie, ledger_id: int, access_key: bytes) -> BookieStatus:
    """OK, or UNAUTHORIZED when the ledger is known with another key; IO_ERROR if unreadable."""
    try:
        record = bookie._storage.state(LedgerId(ledger_id))
    except (OSError, CorruptionError):
        return BookieStatus.IO_ERROR
    refusal = refuse_access(ledger_id, record, hash_of(access_key))
    return BookieStatus.OK if refusal is None else refusal.status
