"""What a bookie may answer about one ledger: access key and fence. Pure."""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple, Protocol

from spark_ledger.types import BookieStatus


class LedgerFacts(Protocol):
    """What the rules look at."""

    @property
    def access_key_hash(self) -> bytes:
        """SHA-256 of the ledger's access key; empty for a ledger without one."""

    @property
    def fenced(self) -> bool:
        """Whether a recovery has taken the ledger from its writer."""


class Refusal(NamedTuple):
    """Why a request is not served."""

    status: BookieStatus
    message: str


def hash_of(access_key: bytes) -> bytes:
    """What is kept of an access key; an empty key means none and has an empty hash."""
    return hashlib.sha256(access_key).digest() if access_key else b""


def refuse_access(
    ledger_id: int, facts: LedgerFacts | None, access_key_hash: bytes
) -> Refusal | None:
    """Refusal of a request that shows the wrong key.

    The first contact with a ledger decides its key, so an unknown ledger (``facts`` is None)
    refuses nobody.
    """
    if facts is None or hmac.compare_digest(facts.access_key_hash, access_key_hash):
        return None
    message = f"ledger {ledger_id}: wrong password, or a password is missing or not expected"
    return Refusal(BookieStatus.UNAUTHORIZED, message)


def refuse_add(ledger_id: int, facts: LedgerFacts | None, *, recovery: bool) -> Refusal | None:
    """Refusal of an add behind the fence; adds of a recovery pass it."""
    if facts is None or not facts.fenced or recovery:
        return None
    message = f"ledger {ledger_id} is fenced: another client has recovered it"
    return Refusal(BookieStatus.FENCED, message)
