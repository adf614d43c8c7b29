"""Checks the lengths inside an Arrow IPC record batch message before Arrow acts on them. Pure.

Arrow allocates as much memory as a compressed buffer says that it decompresses to, so a few hostile
bytes could ask for any amount. The message (Arrow columnar format, "Encapsulated message format"):
four bytes 0xFFFFFFFF, a little-endian int32 length, a flatbuffer of that length, the body. Of the
flatbuffer only the fields below are read:

    Message      1: header type (3 = RecordBatch)   2: header   3: body length
    RecordBatch  0: rows   1: nodes (length, nulls)   2: buffers (offset, length)   3: compression
    Compression  0: codec (0 LZ4 frame, 1 ZSTD)

A compressed buffer begins with its decompressed length, int64, where -1 means "as it is".
"""

from __future__ import annotations

import struct

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_PAIR = struct.Struct("<qq")
_PREFIX = struct.Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
_CODEC_OF_COMPRESSION = {1: 0, 2: 1}
NODE_ROWS_MAX = 2**31 - 1


class _Table:
    """A flatbuffer table; every access is bounds-checked by ``struct`` or by hand."""

    def __init__(self, data: memoryview, position: int) -> None:
        self.data = data
        self.position = position
        (distance,) = _I32.unpack_from(data, position)
        self._vtable = position - distance
        if self._vtable < 0:
            raise struct.error("vtable before the buffer")
        (self._vtable_bytes,) = _U16.unpack_from(data, self._vtable)

    def field(self, index: int) -> int:
        """The offset of a field in the buffer, or 0 if it is absent."""
        entry = 4 + 2 * index
        if entry + 2 > self._vtable_bytes:
            return 0
        (offset,) = _U16.unpack_from(self.data, self._vtable + entry)
        return self.position + offset if offset else 0

    def table(self, index: int) -> _Table | None:
        """The table a field points to, or None."""
        at = self.field(index)
        return _Table(self.data, at + _U32.unpack_from(self.data, at)[0]) if at else None

    def integer(self, index: int, kind: struct.Struct) -> int:
        """A number; 0 if the field is absent, as the format says."""
        at = self.field(index)
        return int(kind.unpack_from(self.data, at)[0]) if at else 0

    def pairs(self, index: int) -> list[tuple[int, int]]:
        """A vector of two-integer structs."""
        at = self.field(index)
        if not at:
            return []
        start = at + _U32.unpack_from(self.data, at)[0]
        (count,) = _U32.unpack_from(self.data, start)
        begin, end = start + 4, start + 4 + count * _PAIR.size
        if end > len(self.data):
            raise struct.error("vector beyond the buffer")
        return [(a, b) for a, b in _PAIR.iter_unpack(self.data[begin:end])]


def check_record_batch_message(
    message: memoryview, *, rows: int, compression: int, decoded_bytes_max: int
) -> str | None:
    """Why a message must not be given to Arrow, or None if it may.

    ``compression`` is the code of the entry header: 0 none, 1 LZ4 frame, 2 ZSTD.
    """
    try:
        return _check(message, rows, compression, decoded_bytes_max)
    except struct.error as error:
        return f"damaged Arrow message: {error}"


def _check(message: memoryview, rows: int, compression: int, decoded_bytes_max: int) -> str | None:
    marker, metadata_bytes = _PREFIX.unpack_from(message)
    if marker != _CONTINUATION or not 0 < metadata_bytes <= len(message) - _PREFIX.size:
        return "damaged Arrow message: bad prefix"
    metadata = message[_PREFIX.size : _PREFIX.size + metadata_bytes]
    body = message[_PREFIX.size + metadata_bytes :]
    root = _Table(metadata, _U32.unpack_from(metadata)[0])
    batch = root.table(2)
    if root.integer(1, _U8) != _RECORD_BATCH or batch is None:
        return "damaged Arrow message: not a record batch"
    if root.integer(3, _I64) != len(body):
        return f"damaged Arrow message: a body of {len(body)} bytes, not of the size it names"
    if batch.integer(0, _I64) != rows:
        return f"{batch.integer(0, _I64)} rows, but the header says {rows}"
    for length, nulls in batch.pairs(1):
        if not 0 <= nulls <= length <= NODE_ROWS_MAX:
            return f"damaged Arrow message: an array of {length} values with {nulls} nulls"
    codec = batch.table(3)
    if (codec is None) != (compression == 0):
        return "compression of the Arrow data differs from the header"
    if codec is not None and (codec.integer(0, _U8) != _CODEC_OF_COMPRESSION[compression]):
        return "compression of the Arrow data differs from the header"
    return _check_buffers(batch.pairs(2), body, codec is not None, decoded_bytes_max)


def _check_buffers(
    buffers: list[tuple[int, int]], body: memoryview, compressed: bool, decoded_bytes_max: int
) -> str | None:
    total = 0
    for offset, length in buffers:
        if offset < 0 or length < 0 or offset + length > len(body):
            return "damaged Arrow message: a buffer lies outside of it"
        size = length
        if compressed and length > 0:
            if length < _I64.size:
                return "damaged Arrow message: a compressed buffer without its length"
            (size,) = _I64.unpack_from(body, offset)
            if size < -1:
                return f"damaged Arrow message: a buffer of {size} bytes"
            size = length if size == -1 else size
        total += size
        if total > decoded_bytes_max:
            return f"it would decompress to more than {decoded_bytes_max} bytes"
    return None
