"""Values that name their writer: unique and self-describing, and any damage to them shows."""

from __future__ import annotations

import zlib

FIELDS = 5
_CRC_DIGITS = 8


def value(process: str, target: str, counter: int, size: int = 0) -> str:
    """``<process>/<target>/<counter>/<length>/<crc32>``, padded with dots to ``size`` characters.

    ``target`` is the ledger or the sink. ``length`` is that of the whole value, so a cut or
    grown value does not verify; the checksum covers everything before it and the padding.
    """
    assert "/" not in process and "/" not in target, "the slash separates fields"
    head = f"{process}/{target}/{counter}"
    fixed = len(head) + 2 + _CRC_DIGITS
    length = size
    while length < fixed + len(str(length)):  # the length counts its own digits
        length = fixed + len(str(length))
    start = f"{head}/{length}/"
    padding = "." * (length - len(start) - _CRC_DIGITS)
    return f"{start}{zlib.crc32((start + padding).encode()):08x}{padding}"


def verify(text: str) -> bool:
    """Whether ``text`` is a value as ``value`` made it, undamaged."""
    parts = text.split("/")
    if len(parts) != FIELDS or not text.isascii():
        return False
    if not (parts[2].isdigit() and parts[3].isdigit()):
        return False
    if int(parts[3]) != len(text):
        return False
    checksum, padding = parts[4][:_CRC_DIGITS], parts[4][_CRC_DIGITS:]
    start = text[: len(text) - len(parts[4])]
    return checksum == f"{zlib.crc32((start + padding).encode()):08x}"


def short(text: str) -> str:
    """A value without its padding, for messages."""
    stripped = text.rstrip(".")
    return stripped if len(stripped) <= 60 else stripped[:57] + "..."
