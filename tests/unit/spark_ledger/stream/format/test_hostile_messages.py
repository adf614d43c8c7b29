"""Arrow messages that somebody has made by hand: refused with a reason, before Arrow reads them."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from spark_ledger.errors import CorruptionError
from spark_ledger.stream.format import entries
from spark_ledger.stream.format.entries import HEADER_BYTES, EntryDecoder, EntryEncoder
from spark_ledger.stream.model import Compression

COLUMNS: dict[str, pa.DataType] = {"n": pa.int64(), "t": pa.string()}
SCHEMA = pa.schema(COLUMNS)
BATCH = pa.record_batch({"n": [1, None, 3], "t": ["a", "bb", None]}, schema=SCHEMA)
METADATA = HEADER_BYTES + 8
"""Where the flatbuffer of the message begins."""


def payload(compression: Compression, batch: pa.RecordBatch = BATCH) -> bytearray:
    encoder = EntryEncoder(batch.schema, 0, compression=compression, entry_bytes=1 << 20)
    encoder.add(batch)
    (entry,) = encoder.flush()
    return bytearray(entry.payload)


def at_field(data: bytearray, table: int, field: int) -> tuple[int, int]:
    """Where a table's own table says where a field is, and where the field is."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    entry = vtable + 4 + 2 * field
    return entry, table + struct.unpack_from("<H", data, entry)[0]


def pointed(data: bytearray, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def tables(data: bytearray) -> tuple[int, int]:
    """Where the message and its record batch are."""
    message = pointed(data, METADATA)
    return message, pointed(data, at_field(data, message, 2)[1])


def pairs(data: bytearray, field: int) -> list[int]:
    """Where the pairs of a vector of the record batch are."""
    start = pointed(data, at_field(data, tables(data)[1], field)[1])
    (count,) = struct.unpack_from("<I", data, start)
    return [start + 4 + 16 * n for n in range(count)]


def refusal(data: bytearray, batch: pa.RecordBatch = BATCH) -> str:
    with pytest.raises(CorruptionError, match=r"^entry: ") as caught:
        EntryDecoder(batch.schema).decode(bytes(data), "entry")
    return str(caught.value).removeprefix("entry: ")


@pytest.mark.parametrize("compression", list(Compression))
def test_message_without_one_of_its_fields_is_refused(compression: Compression) -> None:
    for field, reason in (
        (1, "not a record batch"),
        (2, "not a record batch"),
        (3, "a body of "),
    ):
        data = payload(compression)
        struct.pack_into("<H", data, at_field(data, tables(data)[0], field)[0], 0)
        assert reason in refusal(data)
    for field, reason in (
        (0, "0 rows, but the header says 3"),
        (1, "damaged Arrow data"),
        (2, "damaged Arrow data"),
    ):
        data = payload(compression)
        struct.pack_into("<H", data, at_field(data, tables(data)[1], field)[0], 0)
        assert reason in refusal(data)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_message_whose_compression_is_another_than_the_header_says_is_refused(
    compression: Compression,
) -> None:
    for code in {0, 1, 2} - {struct.unpack_from(">H", payload(compression), 6)[0]}:
        data = payload(compression)
        struct.pack_into(">H", data, 6, code)
        assert refusal(data) == "compression of the Arrow data differs from the header"
    plain = payload(Compression.NONE)
    struct.pack_into(">H", plain, 6, 1)
    assert refusal(plain) == "compression of the Arrow data differs from the header"


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize(
    ("length", "nulls"), [(-1, 0), (3, -1), (3, 4), (1 << 31, 0), (1 << 62, 1)]
)
def test_array_of_an_impossible_length_is_refused(
    compression: Compression, which: int, length: int, nulls: int
) -> None:
    data = payload(compression)
    struct.pack_into("<qq", data, pairs(data, 1)[which], length, nulls)
    assert f"an array of {length} values with {nulls} nulls" in refusal(data)


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("which", [0, 1, -1])
def test_buffer_that_lies_outside_of_the_message_is_refused(
    compression: Compression, which: int
) -> None:
    body = struct.unpack_from("<q", (d := payload(compression)), at_field(d, tables(d)[0], 3)[1])[0]
    for offset, length in ((-8, 8), (0, -1), (body, 1), (body - 8, 9), (1 << 62, 1), (0, body + 1)):
        data = payload(compression)
        struct.pack_into("<qq", data, pairs(data, 2)[which], offset, length)
        assert "a buffer lies outside of it" in refusal(data)


def test_buffers_count_together_against_what_a_reader_decompresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many that are each small enough are as bad as one that is not."""
    columns = {f"c{n}": pa.array(range(1000), pa.int64()) for n in range(4)}
    batch = pa.record_batch(columns)
    assert batch.nbytes == 32_000
    for compression in Compression:
        data = payload(compression, batch)
        monkeypatch.setattr(entries, "_READ_BYTES_MAX", 32_000)
        assert EntryDecoder(batch.schema).decode(bytes(data), "entry").equals(batch)
        monkeypatch.setattr(entries, "_READ_BYTES_MAX", 31_999)
        assert "decompress to more than 31999 bytes" in refusal(data, batch)
