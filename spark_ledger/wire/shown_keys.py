"""What may be shown to a bookie instead of a ledger's access key: by who copies, and by who asks.

Repair does not know the access key of a ledger with a password (rule R11). To store a copy it shows
the key of its lock, which the metadata vouch for. To read it shows the access key's hash, which
the metadata hold: a read needs no key at all, and the hash says which incarnation is meant.
"""

from __future__ import annotations

from typing import Final

from spark_ledger.wire.frame import access_key_hash

_COPY: Final = b"sl-copy:"
_HASH: Final = b"sl-hash:"

COPY_SECRET_BYTES: Final = 24
"""With the eight bytes before it, a copy key is as long as an access key."""


def copy_key(secret: bytes) -> bytes:
    """The key of one lock of repair."""
    assert len(secret) == COPY_SECRET_BYTES, "what nobody guesses"
    return _COPY + secret


def is_copy_key(shown: bytes) -> bool:
    """Whether this is the key of a lock. An access key looks so by chance once in 2^64."""
    return shown.startswith(_COPY)


def hash_as_key(key_hash: bytes) -> bytes:
    """What a reader shows that knows only the hash of the access key."""
    return _HASH + key_hash if key_hash else b""


def shown_hash(shown: bytes) -> bytes:
    """The hash that a reader has shown, by itself or as its key."""
    return shown.removeprefix(_HASH) if shown.startswith(_HASH) else access_key_hash(shown)
