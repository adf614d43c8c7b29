"""The frame of a single entry, byte by byte: the reference for the product's faster code."""

from __future__ import annotations

import hmac

from spark_ledger.errors import DigestMismatchError
from spark_ledger.types import Entry, EntryId, LedgerId
from spark_ledger.wire.frame import HEADER, HEADER_BYTES, Digest


def seal(
    digest: Digest,
    ledger_id: int,
    entry_id: int,
    last_add_confirmed: int,
    length: int,
    payload: bytes,
) -> bytes:
    """The frame of an entry."""
    header = HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
    return header + digest.sum(header, payload) + payload


def open_frame(digest: Digest, ledger_id: int, entry_id: int, frame: bytes | memoryview) -> Entry:
    """The entry in a frame. Raises DigestMismatchError unless it is the very entry asked for."""
    payload_start = HEADER_BYTES + digest.size
    if len(frame) < payload_start:
        raise DigestMismatchError(f"ledger {ledger_id} entry {entry_id}: {len(frame)} bytes only")
    header = bytes(frame[:HEADER_BYTES])
    payload = bytes(frame[payload_start:])
    stored = bytes(frame[HEADER_BYTES:payload_start])
    if not hmac.compare_digest(digest.sum(header, payload), stored):
        raise DigestMismatchError(f"ledger {ledger_id} entry {entry_id}: digest does not match")
    found_ledger, found_entry, last_add_confirmed, length = HEADER.unpack(header)
    if found_ledger != ledger_id or found_entry != entry_id:
        raise DigestMismatchError(
            f"ledger {ledger_id} entry {entry_id}: bookie served {found_ledger}/{found_entry}"
        )
    return Entry(
        LedgerId(ledger_id), EntryId(entry_id), payload, EntryId(last_add_confirmed), length
    )
