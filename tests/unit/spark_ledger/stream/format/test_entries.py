"""Entries: every type round-trips, sizes are kept, and hostile bytes are refused."""

from __future__ import annotations

import datetime
import decimal
import random
import struct
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import CorruptionError, EntryTooLargeError
from spark_ledger.limits import KIB, MIB
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.stream.format import entries as entries_module
from spark_ledger.stream.format.entries import (
    HEADER,
    EntryDecoder,
    EntryEncoder,
    in_pieces,
    read_header,
)
from spark_ledger.stream.model import Compression

UTC = datetime.UTC
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, None, False]),
    "byte": (pa.int8(), [-128, None, 127]),
    "short": (pa.int16(), [1, None, 2]),
    "integer": (pa.int32(), [1, None, 2]),
    "long": (pa.int64(), [1 << 62, None, -1]),
    "float": (pa.float32(), [0.5, None, float("inf")]),
    "double": (pa.float64(), [0.1, None, -0.0]),
    "decimal": (pa.decimal128(38, 18), [decimal.Decimal("1.5"), None, decimal.Decimal("-2")]),
    "text": (pa.string(), ["", None, "żółw"]),
    "bytes": (pa.binary(), [b"", None, b"\x00\xff"]),
    "date": (pa.date32(), [datetime.date(2024, 1, 1), None, datetime.date(1, 1, 1)]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [
            datetime.datetime(2024, 1, 1, tzinfo=UTC),
            None,
            datetime.datetime(1970, 1, 1, tzinfo=UTC),
        ],
    ),
    "timestamp_ntz": (pa.timestamp("us"), [datetime.datetime(2024, 1, 1), None, None]),
    "interval": (pa.duration("us"), [datetime.timedelta(days=-3, microseconds=1), None, None]),
    "time": (pa.time64("ns"), [datetime.time(1, 2, 3), None, None]),
    "void": (pa.null(), [None, None, None]),
    "array": (
        pa.list_(pa.field("element", pa.list_(pa.field("element", pa.string())))),
        [[["a", None], None], None, []],
    ),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], None, []]),
    "struct": (
        pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))]),
        [{"x": 1, "y": {"z": "q"}}, None, {"x": None, "y": None}],
    ),
    "empty_struct": (pa.struct([]), [{}, None, {}]),
    "variant": (
        pa.struct(
            [
                pa.field("value", pa.binary(), nullable=False),
                pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
            ]
        ),
        [{"value": b"v", "metadata": b"m"}, None, {"value": b"", "metadata": b""}],
    ),
}
ALL = pa.record_batch({name: pa.array(values, type_) for name, (type_, values) in COLUMNS.items()})


def encoder(
    schema: pa.Schema,
    compression: Compression = Compression.LZ4,
    *,
    entry_bytes: int = MIB,
    version: int = 3,
) -> EntryEncoder:
    return EntryEncoder(schema, version, compression=compression, entry_bytes=entry_bytes)


def encode_all(
    batches: list[pa.RecordBatch], compression: Compression, entry_bytes: int
) -> list[tuple[bytes, int]]:
    made = encoder(batches[0].schema, compression, entry_bytes=entry_bytes)
    entries = [entry for batch in batches for entry in made.add(batch)]
    return [(entry.payload, entry.rows) for entry in (*entries, *made.flush())]


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("column", [*COLUMNS, "all"])
def test_every_type_round_trips(column: str, compression: Compression) -> None:
    batch = ALL if column == "all" else ALL.select([column])
    for rows in (batch, batch.slice(1, 1), batch.slice(1, 2)):
        ((payload, count),) = encode_all([rows], compression, MIB)
        assert count == rows.num_rows
        result = EntryDecoder(batch.schema).decode(payload, "e")
        assert result.equals(rows)
        assert result.schema.equals(batch.schema)
        assert read_header(payload, "e")[:2] == (3, rows.num_rows)


@pytest.mark.parametrize("compression", list(Compression))
def test_text_that_is_not_utf_8_comes_back_as_it_was(compression: Compression) -> None:
    """Spark's strings may hold any bytes; the rows beside them must stay readable."""
    raw = pa.array([b"ok", b"\xff\x80", None, b"caf\xe9"])
    text = raw.view(pa.string())
    offsets = pa.array([0, 1, 2, 3, 4], pa.int32())
    batch = pa.record_batch(
        {
            "n": pa.array([1, 2, 3, 4]),
            "t": text,
            "items": pa.ListArray.from_arrays(offsets, text),
            "pairs": pa.MapArray.from_arrays(  # type: ignore[call-overload]  # offsets of 32 bits
                offsets, pa.array(["a", "b", "c", "d"]), text
            ),
            "struct": pa.StructArray.from_arrays([text], names=["t"]),
        }
    )
    ((payload, _),) = encode_all([batch.slice(1)], compression, MIB)
    result = EntryDecoder(batch.schema).decode(payload, "e")
    assert result.schema.equals(batch.schema)
    assert result.column("n").to_pylist() == [2, 3, 4]
    items, pairs, structs = (result.column(name) for name in ("items", "pairs", "struct"))
    assert isinstance(items, pa.ListArray)
    assert isinstance(pairs, pa.MapArray)
    assert isinstance(structs, pa.StructArray)
    for column in (result.column("t"), items.flatten(), pairs.items, structs.field(0)):
        assert column.view(pa.binary()).to_pylist() == raw.to_pylist()[1:]


@pytest.mark.parametrize("compression", list(Compression))
def test_random_batches_come_back_in_order_in_entries_of_the_size_wanted(
    compression: Compression,
) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    batches = []
    columns: dict[str, pa.DataType] = {"n": pa.int64(), "t": pa.string()}
    for _ in range(30):
        rows = rng.choice([0, 1, 3, 100, 3000])
        texts = ["x" * rng.choice([0, 10, 300]) for _ in range(rows)]
        batches.append(
            pa.record_batch(
                {"n": pa.array(range(rows), pa.int64()), "t": texts},
                schema=pa.schema(columns),
            )
        )
    entries = encode_all(batches, compression, 32 * KIB)
    decoded = [EntryDecoder(batches[0].schema).decode(payload, "e") for payload, _ in entries]
    assert pa.Table.from_batches(decoded).equals(pa.Table.from_batches(batches)), f"seed {seed}"
    for batch in decoded[:-1]:
        assert 15 * KIB <= batch.nbytes <= 65 * KIB, f"seed {seed}: {batch.nbytes}"


def test_many_small_batches_are_glued_into_one_entry() -> None:
    made = encoder(pa.schema([("a", pa.int64())]))
    for n in range(1000):
        assert made.add(pa.record_batch({"a": [n]})) == []
    ((payload, rows, _),) = made.flush()
    assert rows == 1000
    assert EntryDecoder(made.schema).decode(payload, "e").column(0).to_pylist() == list(range(1000))
    assert made.flush() == []


def test_rows_of_uneven_size_are_cut_until_they_fit() -> None:
    texts = ["x"] * 1000 + ["y" * (3 * MIB)] + ["x"] * 1000 + ["z" * (9 * MIB)] * 3
    batch = pa.record_batch({"t": texts})
    entries = encode_all([batch], Compression.NONE, MIB)
    assert max(len(payload) for payload, _ in entries) <= ENTRY_PAYLOAD_BYTES_MAX
    decoded = [EntryDecoder(batch.schema).decode(payload, "e") for payload, _ in entries]
    assert pa.Table.from_batches(decoded).column("t").to_pylist() == texts


def test_a_row_that_does_not_fit_is_named_with_its_size() -> None:
    size = ENTRY_PAYLOAD_BYTES_MAX
    made = encoder(pa.schema([("b", pa.binary())]), Compression.NONE)
    made.add(pa.record_batch({"b": [b"x"] * 5}))
    with pytest.raises(EntryTooLargeError, match=r"row 7 .*16777[0-9]{3} bytes"):
        made.add(pa.record_batch({"b": [b"x", b"x", b"y" * size, b"x"]}))


def test_the_largest_row_that_fits_is_stored() -> None:
    schema = pa.schema([("b", pa.binary())])
    batch = pa.record_batch({"b": [b"y" * (ENTRY_PAYLOAD_BYTES_MAX - KIB)]})
    ((payload, _),) = encode_all([batch], Compression.NONE, MIB)
    assert len(payload) <= ENTRY_PAYLOAD_BYTES_MAX
    assert EntryDecoder(schema).decode(payload, "e").equals(batch)


def test_a_row_that_compresses_well_may_be_larger_than_an_entry() -> None:
    batch = pa.record_batch({"b": [b"y" * (2 * ENTRY_PAYLOAD_BYTES_MAX)]})
    ((payload, _),) = encode_all([batch], Compression.ZSTD, MIB)
    assert EntryDecoder(batch.schema).decode(payload, "e").equals(batch)


@pytest.mark.parametrize("columns", [1, 300])
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_row_is_refused_exactly_where_nobody_could_read_it_again(
    compression: Compression, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow writes a few bytes for each column that no size of a batch counts."""
    schema = pa.schema([(f"c{n}", pa.string()) for n in range(columns)])
    largest = 40_000
    monkeypatch.setattr(entries_module, "_READ_BYTES_MAX", largest)  # as programs of before
    found = set()
    for size in range(largest - 80 * columns, largest + 20, 1 if columns == 1 else 97):
        # Arrow writes more of what is cut out of the middle of a batch.
        texts = [["z" * 50] * 3] * (columns - 1)
        batch = pa.record_batch([["x", "y" * size, "z"], *texts], schema=schema).slice(1, 1)
        monkeypatch.setattr(entries_module, "DECODED_BYTES_MAX", 1 << 30)
        ((payload, _),) = encode_all([batch], compression, MIB)
        try:
            EntryDecoder(schema).decode(payload, "e")
        except CorruptionError as error:
            assert "decompress to more than 40000 bytes" in str(error)
            is_readable = False
        else:
            is_readable = True
        monkeypatch.setattr(entries_module, "DECODED_BYTES_MAX", largest)
        with nullcontext() if is_readable else pytest.raises(EntryTooLargeError, match="row 0 "):
            assert encode_all([batch], compression, MIB)[0][0] == payload
        found.add(is_readable)
    assert found == {True, False}


@pytest.mark.parametrize("above", [1, 15, 40_000, MIB, MIB + 1])
def test_row_a_little_above_the_limit_is_read_as_writers_of_before_let_it_through(
    above: int,
) -> None:
    """They took the size of the batch, which is less than what Arrow writes."""
    batch = pa.record_batch({"b": [b"ab" * 5000]})
    ((payload, _),) = encode_all([batch], Compression.LZ4, MIB)
    at = payload.rindex(struct.pack("<q", 10_000))
    offsets_bytes = 8
    claim = struct.pack("<q", entries_module.DECODED_BYTES_MAX + above - offsets_bytes)
    # Arrow is asked, and finds that the entry holds less.
    reason = "damaged Arrow data" if above <= MIB else "decompress to more"
    with pytest.raises(CorruptionError, match=reason):
        EntryDecoder(batch.schema).decode(payload[:at] + claim + payload[at + 8 :], "e")


@pytest.mark.parametrize("compression", list(Compression))
def test_no_entry_is_larger_than_a_ledger_takes(
    compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its header, whatever the row needs: then it is refused by its number."""
    monkeypatch.setattr(entries_module, "ENTRY_PAYLOAD_BYTES_MAX", 4096)
    rng, refused, largest = random.Random(5), 0, 0
    for size in range(3400, 4200, 8):
        made = encoder(pa.schema([("b", pa.binary())]), compression)
        try:
            made.add(pa.record_batch({"b": [rng.randbytes(size)]}))
            (entry,) = made.flush()
        except EntryTooLargeError:
            refused += 1
        else:
            largest = max(largest, len(entry.payload))
    assert refused and 4096 - 8 <= largest <= 4096


def test_pieces_are_slices_that_add_up() -> None:
    batch = pa.record_batch({"n": pa.array(range(100_000), pa.int64())})
    pieces = list(in_pieces(batch, 64 * KIB))
    assert len(pieces) == 13
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([batch]))
    assert list(in_pieces(batch.slice(0, 0))) == []


def sample(compression: Compression) -> bytes:
    ((payload, _),) = encode_all([ALL], compression, MIB)
    return payload


@pytest.mark.parametrize(
    "change",
    [
        lambda p: b"",
        lambda p: p[:15],
        lambda p: p[:16],
        lambda p: p[:-1],
        lambda p: p[: len(p) // 2],
        lambda p: p + b"\0" * 8,
        lambda p: b"XXXX" + p[4:],
        lambda p: p[:4] + b"\0\1" + p[6:],
        lambda p: p[:6] + b"\0\7" + p[8:],
        lambda p: p[:6] + b"\0\0" + p[8:],
        lambda p: p[:12] + struct.pack(">I", 0) + p[16:],
        lambda p: p[:12] + struct.pack(">I", 4) + p[16:],
        lambda p: p[:16] + b"\xff\xff\xff\xff\xff\xff\xff\x7f" + p[24:],
        lambda p: p[:16] + b"\xff\xff\xff\xff\xff\xff\xff\xff" + p[24:],
    ],
)
def test_damaged_entry_error_names_the_entry(change: Any) -> None:
    with pytest.raises(CorruptionError, match="entry 5 of ledger 3"):
        EntryDecoder(ALL.schema).decode(change(sample(Compression.LZ4)), "entry 5 of ledger 3")


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_buffer_that_claims_to_be_huge_is_refused_before_it_is_made(
    compression: Compression,
) -> None:
    batch = pa.record_batch({"b": [b"ab" * 5000]})
    ((payload, _),) = encode_all([batch], compression, MIB)
    real = struct.pack("<q", 10000)
    assert payload.count(real) >= 1
    for claim in (1 << 40, (1 << 63) - 1, 300 * MIB, -2):
        at = payload.rindex(real)
        bomb = payload[:at] + struct.pack("<q", claim) + payload[at + 8 :]
        with pytest.raises(CorruptionError, match=r"decompress to more|buffer of -2 bytes"):
            EntryDecoder(batch.schema).decode(bomb, "e")


@pytest.mark.parametrize("compression", list(Compression))
def test_random_damage_gives_an_error_or_sound_rows(compression: Compression) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    payload = sample(compression)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(payload)
        for _ in range(rng.choice([1, 1, 2, 8])):
            damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
        try:
            batch = EntryDecoder(ALL.schema).decode(bytes(damaged), "e")
        except CorruptionError:
            refused += 1
        else:
            assert batch.num_rows == 3, f"seed {seed}"
            assert batch.to_struct_array().nbytes > 0
    assert refused > 100, f"seed {seed}"


def test_an_entry_of_another_schema_is_refused_not_misread() -> None:
    payload = sample(Compression.LZ4)
    with pytest.raises(CorruptionError):
        EntryDecoder(pa.schema([("s", pa.string()), ("t", pa.string())])).decode(payload, "e")


def test_the_header_is_sixteen_bytes_so_that_arrow_stays_aligned() -> None:
    assert HEADER.size == 16


@pytest.mark.parametrize("large", [0, 3, 6, 10, 29])
def test_row_that_does_not_fit_is_named_by_its_number_in_all_that_was_added(
    large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it comes in the first batch or a later one, in a slice or in a half of one."""
    monkeypatch.setattr(entries_module, "ENTRY_PAYLOAD_BYTES_MAX", 4096)
    schema = pa.schema({"t": pa.string()})
    made = EntryEncoder(schema, 0, compression=Compression.NONE, entry_bytes=1024)
    values = ["x" * (8000 if n == large else 200) for n in range(30)]
    with pytest.raises(EntryTooLargeError, match=f"row {large} "):
        for start in range(0, 30, 4):
            made.add(pa.record_batch({"t": values[start : start + 4]}, schema=schema))
        made.flush()
