"""Entries of the workload: a value that names its writer, and filler that shows any damage."""

from __future__ import annotations

import zlib

from tests.history.values import value

SIZES = (60, 200, 1_000, 4_000, 1_000, 200, 16_000, 60)
LARGE_SIZE, LARGE_EVERY = 700_000, 251
"""One entry in so many fills a whole message."""


def size_of(counter: int) -> int:
    """Size in bytes of the entry with this counter."""
    return LARGE_SIZE if counter % LARGE_EVERY == LARGE_EVERY - 1 else SIZES[counter % len(SIZES)]


def payload_of(text: str) -> bytes:
    """The bytes of an entry that holds this value; the same value gives the same bytes."""
    head = text.encode() + b"\n"
    counter = int(text.split("/")[2])
    missing = size_of(counter) - len(head)
    if missing <= 0:
        return head
    piece = zlib.crc32(head).to_bytes(4, "big") + head
    return head + (piece * (missing // len(piece) + 1))[:missing]


def value_of(payload: bytes) -> str:
    """The value in an entry. A damaged entry gives a text that does not verify."""
    text = payload.partition(b"\n")[0].decode(errors="replace")
    try:
        if payload_of(text) == payload:
            return text
    except (ValueError, IndexError):
        pass  # not even a value: reported by the caller
    return f"damaged: {text[:60]!r}, {len(payload)} bytes"


def new_value(process: str, ledger_id: int, counter: int) -> str:
    """The value of the next entry."""
    return value(process, f"L{ledger_id}", counter)
