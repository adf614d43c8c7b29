"""Who may add, who may fence."""

from __future__ import annotations

import hashlib

import pytest

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.core.ledger_state import hash_of, refuse_access, refuse_add
from spark_ledger.types import BookieStatus
from spark_ledger.wire.frame import access_key_hash


def test_the_hash_is_the_one_in_the_metadata() -> None:
    assert hash_of(b"") == b"" == access_key_hash(b"")
    assert hash_of(b"key") == hashlib.sha256(b"key").digest() == access_key_hash(b"key")


@pytest.mark.parametrize(
    ("known", "shown", "allowed"),
    [
        (None, b"", True),
        (None, b"key", True),
        (b"", b"", True),
        (b"key", b"key", True),
        (b"key", b"", False),
        (b"key", b"other", False),
        (b"", b"key", False),
    ],
)
def test_access(known: bytes | None, shown: bytes, allowed: bool) -> None:
    facts = None if known is None else LedgerRecord(access_key_hash=hash_of(known))
    refusal = refuse_access(7, facts, hash_of(shown))
    assert (refusal is None) == allowed
    if refusal is not None:
        assert refusal.status is BookieStatus.UNAUTHORIZED and "ledger 7" in refusal.message


@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize("fenced", [None, False, True])
def test_the_fence(fenced: bool | None, recovery: bool) -> None:
    facts = None if fenced is None else LedgerRecord(fenced=fenced)
    refusal = refuse_add(7, facts, recovery=recovery)
    assert (refusal is not None) == (fenced is True and not recovery)
    if refusal is not None:
        assert refusal.status is BookieStatus.FENCED and "ledger 7" in refusal.message


@pytest.mark.parametrize("place", [0, 3, 15, 16, 31])
def test_a_key_is_compared_to_its_last_byte(place: int) -> None:
    right = hash_of(b"key")
    wrong = bytes(byte ^ (1 if at == place else 0) for at, byte in enumerate(right))
    assert refuse_access(7, LedgerRecord(access_key_hash=right), right) is None
    for shown in (wrong, right[:place], right + b"\0"):
        refusal = refuse_access(7, LedgerRecord(access_key_hash=right), shown)
        assert refusal is not None and refusal.status is BookieStatus.UNAUTHORIZED
