"""Variants as values: Spark stores one as two byte strings, which say nothing to a reader. Pure.

The encoding is that of Parquet's variant: a dictionary of names (``metadata``), and a value whose
first byte has its kind in the two low bits and the rest of its header in the six others.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from uuid import UUID

if TYPE_CHECKING:
    import pyarrow

_SHORT_TEXT, _OBJECT, _ARRAY = 1, 2, 3
_WORDS: Final = {0: None, 1: True, 2: False}
_NUMBERS: Final = {3: "<b", 4: "<h", 5: "<i", 6: "<q", 7: "<d", 14: "<f"}
_DECIMAL_BYTES: Final = {8: 4, 9: 8, 10: 16}
_DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _BINARY, _TEXT, _UUID = 11, 12, 13, 15, 16, 20
_BROKEN: Final = (IndexError, KeyError, ValueError, OverflowError, RecursionError, struct.error)


def is_variant(type_: pyarrow.DataType) -> bool:
    """Whether Spark keeps a variant in such a column."""
    import pyarrow as pa

    if not pa.types.is_struct(type_) or {child.name for child in type_} != {"value", "metadata"}:
        return False
    return (type_.field("metadata").metadata or {}).get(b"variant") == b"true"


def variant_of(stored: object) -> object:
    """A variant as a value; as it is stored if it is damaged, or of a kind that came later."""
    if not isinstance(stored, dict):
        return stored
    try:
        return variant_value(stored["value"], _names(stored["metadata"]))
    except _BROKEN:
        return stored


def variant_value(value: bytes, names: list[str]) -> object:
    """The value at the beginning of some bytes."""
    kind, header = value[0] & 3, value[0] >> 2
    if kind == _SHORT_TEXT:
        return value[1 : 1 + header].decode()
    if kind == _OBJECT:
        offset_size, id_size = (header & 3) + 1, (header >> 2 & 3) + 1
        count, at = _count(value, is_large=bool(header >> 4 & 1))
        ids = _numbers(value, at, id_size, count)
        at += id_size * count
        offsets = _numbers(value, at, offset_size, count)
        at += offset_size * (count + 1)
        return {
            names[each]: variant_value(value[at + offset :], names)
            for each, offset in zip(ids, offsets, strict=True)
        }
    if kind == _ARRAY:
        offset_size = (header & 3) + 1
        count, at = _count(value, is_large=bool(header >> 2 & 1))
        offsets = _numbers(value, at, offset_size, count)
        at += offset_size * (count + 1)
        return [variant_value(value[at + offset :], names) for offset in offsets]
    return _primitive(header, value[1:])


def _primitive(kind: int, data: bytes) -> object:
    if kind in _WORDS:
        return _WORDS[kind]
    if kind in _NUMBERS:
        return struct.unpack_from(_NUMBERS[kind], data)[0]
    if kind in _DECIMAL_BYTES:
        digits = int.from_bytes(data[1 : 1 + _DECIMAL_BYTES[kind]], "little", signed=True)
        return Decimal(digits).scaleb(-data[0])
    if kind == _DATE:
        return date(1970, 1, 1) + timedelta(days=struct.unpack_from("<i", data)[0])
    if kind in (_TIMESTAMP, _TIMESTAMP_NTZ):
        zone = UTC if kind == _TIMESTAMP else None
        return datetime(1970, 1, 1, tzinfo=zone) + timedelta(
            microseconds=struct.unpack_from("<q", data)[0]
        )
    if kind in (_BINARY, _TEXT):
        size = int.from_bytes(data[:4], "little")
        content = data[4 : 4 + size]
        return content.decode() if kind == _TEXT else content
    if kind == _UUID:
        return UUID(bytes=data[:16])
    raise ValueError(f"variants of kind {kind} are not known")


def _names(metadata: bytes) -> list[str]:
    """The dictionary of names."""
    size = (metadata[0] >> 6) + 1
    (count,) = _numbers(metadata, 1, size, 1)
    offsets = _numbers(metadata, 1 + size, size, count + 1)
    names = metadata[1 + size * (count + 2) :]
    return [names[first:end].decode() for first, end in pairwise(offsets)]


def _count(value: bytes, *, is_large: bool) -> tuple[int, int]:
    """How many elements follow, and where."""
    return (int.from_bytes(value[1:5], "little"), 5) if is_large else (value[1], 2)


def _numbers(data: bytes, at: int, size: int, count: int) -> list[int]:
    if at + size * count > len(data):
        raise ValueError("it ends too early")
    return [
        int.from_bytes(data[at + size * n : at + size * (n + 1)], "little") for n in range(count)
    ]
