"""The lock of a ledger that repair is at: who holds it may copy (rule R11). Bookies read it."""

from __future__ import annotations

from typing import Final

from spark_ledger.metadata.json_nodes import Node
from spark_ledger.types import LedgerId

LOCKS_PATH: Final = "repair/locks"


class RepairLock(Node, frozen=True, kw_only=True):
    """Ephemeral: it is gone with its worker."""

    key_hash: bytes
    """SHA-256 of the key that this worker shows with the copies that it makes."""


def lock_path(ledger_id: LedgerId) -> str:
    """Where the lock of a ledger is."""
    return f"{LOCKS_PATH}/{ledger_id}"
