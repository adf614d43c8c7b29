"""Journal bodies of changes to a ledger other than added entries: fence, access key, LAC. Pure.

record               body (big endian)
FENCE                ledger id (8)
ACCESS_KEY           ledger id (8), SHA-256 of the access key (32)
LAST_ADD_CONFIRMED   ledger id (8), last add confirmed (8)
"""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c_value

from bookie_server.core.ledger_record import KEY_HASH_BYTES, Change
from bookie_server.storage.blocks import Block
from bookie_server.storage.records import RecordType
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId

_FENCE = struct.Struct(">q")
_ACCESS_KEY = struct.Struct(">q32s")
_LAST_ADD_CONFIRMED = struct.Struct(">qq")


def encode_change(change: Change) -> tuple[RecordType, Block]:
    """The type and the body of the record that journals a change."""
    if change.fenced:
        return RecordType.FENCE, fence_body(change.ledger_id)
    if change.access_key_hash:
        body = access_key_body(change.ledger_id, change.access_key_hash)
        return RecordType.ACCESS_KEY, body
    assert change.last_add_confirmed > NO_ENTRY, "a change sets something"
    body = last_add_confirmed_body(change.ledger_id, change.last_add_confirmed)
    return RecordType.LAST_ADD_CONFIRMED, body


def fence_body(ledger_id: LedgerId) -> Block:
    """Body of a FENCE record."""
    return _block(_FENCE.pack(ledger_id))


def access_key_body(ledger_id: LedgerId, access_key_hash: bytes) -> Block:
    """Body of an ACCESS_KEY record."""
    assert len(access_key_hash) == KEY_HASH_BYTES, "the SHA-256 of a key that is not empty"
    return _block(_ACCESS_KEY.pack(ledger_id, access_key_hash))


def last_add_confirmed_body(ledger_id: LedgerId, last_add_confirmed: EntryId) -> Block:
    """Body of a LAST_ADD_CONFIRMED record."""
    return _block(_LAST_ADD_CONFIRMED.pack(ledger_id, last_add_confirmed))


def decode_change(record_type: int, body: bytes) -> Change | None:
    """The change in a body of one of the three types, or None when it has a wrong length."""
    if record_type == RecordType.FENCE and len(body) == _FENCE.size:
        return Change(LedgerId(_FENCE.unpack(body)[0]), fenced=True)
    if record_type == RecordType.ACCESS_KEY and len(body) == _ACCESS_KEY.size:
        ledger_id, key_hash = _ACCESS_KEY.unpack(body)
        return Change(LedgerId(ledger_id), access_key_hash=key_hash)
    if record_type == RecordType.LAST_ADD_CONFIRMED and len(body) == _LAST_ADD_CONFIRMED.size:
        ledger_id, last_add_confirmed = _LAST_ADD_CONFIRMED.unpack(body)
        return Change(LedgerId(ledger_id), last_add_confirmed=EntryId(last_add_confirmed))
    return None


def _block(body: bytes) -> Block:
    return Block((body,), len(body), int(crc32c_value(body)))
