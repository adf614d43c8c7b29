"""Parsers of stream entries: the header, and the Arrow message behind it."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa

from spark_ledger.errors import CorruptionError
from spark_ledger.stream.format.entries import EntryDecoder, EntryEncoder, read_header
from spark_ledger.stream.format.ipc_message import check_record_batch_message
from spark_ledger.stream.model import Compression
from tests.fuzz.target import Target

_FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("name", pa.string()),
    pa.field("price", pa.decimal128(10, 2)),
    pa.field("tags", pa.list_(pa.string())),
    pa.field("place", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
    pa.field("counts", pa.map_(pa.string(), pa.int32())),
    pa.field("day", pa.date32()),
]
SCHEMA = pa.schema(_FIELDS)
ROWS = 9
_WHERE = "ledger 1 entry 2"


def _batch() -> pa.RecordBatch:
    rows = [
        {
            "id": number,
            "name": None if number % 4 == 0 else f"row {number} \u20ac",
            "price": decimal.Decimal(number) / 4,
            "tags": [f"t{tag}" for tag in range(number % 3)],
            "place": {"x": number / 2, "y": None},
            "counts": [("a", number), ("b", 2)],
            "day": datetime.date(2026, 1, 1 + number),
        }
        for number in range(ROWS)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def entries() -> list[bytes]:
    """The same rows with every compression."""
    payloads = []
    for compression in Compression:
        encoder = EntryEncoder(SCHEMA, 0, compression=compression, entry_bytes=64 * 1024)
        payloads += [entry.payload for entry in (*encoder.add(_batch()), *encoder.flush())]
    return payloads


def _use(payload: bytes) -> object:
    """Decode, and touch every value: what is accepted has to be usable."""
    batch = EntryDecoder(SCHEMA).decode(payload, _WHERE)
    batch.take(pa.array(range(batch.num_rows)))
    return batch


def _judge(_data: bytes, value: object) -> str:
    same_rows = value.num_rows <= 1_000_000  # type: ignore[attr-defined]
    return "" if same_rows else "an entry of more rows than it has bytes"


def stream_targets() -> list[Target]:
    """All targets of this file."""
    payloads = entries()

    def check(data: bytes) -> object:
        reason = check_record_batch_message(
            memoryview(data), rows=ROWS, compression=1, decoded_bytes_max=1 << 20
        )
        return True if reason is None else None

    lz4 = next(payload[16:] for payload in payloads if payload[7] == 1)
    return [
        Target(
            "entry header", payloads, lambda d: read_header(d, _WHERE), (CorruptionError,), 20_000
        ),
        Target("Arrow message", [lz4], check, (), 30_000),
        Target("stream entry", payloads, _use, (CorruptionError,), 12_000, _judge),
    ]
