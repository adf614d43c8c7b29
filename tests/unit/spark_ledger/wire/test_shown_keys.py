"""What is shown instead of an access key."""

from __future__ import annotations

from spark_ledger.wire.frame import access_key_hash, derive_keys
from spark_ledger.wire.shown_keys import copy_key, hash_as_key, is_copy_key, shown_hash

SECRET = b"s" * 24


def test_copy_key_is_told_from_an_access_key() -> None:
    assert is_copy_key(copy_key(SECRET)) and len(copy_key(SECRET)) == 32
    assert not is_copy_key(derive_keys(b"", 1, b"i")[0]) and not is_copy_key(b"")
    assert not is_copy_key(hash_as_key(access_key_hash(b"key"))), "with which nobody may store"


def test_hash_that_is_shown_stands_for_its_key() -> None:
    key, _ = derive_keys(b"", 1, b"i")
    assert shown_hash(hash_as_key(access_key_hash(key))) == access_key_hash(key) == shown_hash(key)
    assert hash_as_key(b"") == b"" and shown_hash(b"") == b""
