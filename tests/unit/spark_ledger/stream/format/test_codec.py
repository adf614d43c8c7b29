"""Metadata nodes: round trips, and refusal of everything that is not exactly right."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.stream.format import codec, schema_text
from spark_ledger.stream.format.codec import SegmentListPointer
from spark_ledger.stream.format.schema_text import decode_schema, encode_schema
from spark_ledger.stream.model import Commit, Compression, Head, SinkRecord, StreamConfig
from spark_ledger.types import Dlsn, LedgerId, Quorums
from tests.unit.spark_ledger.stream.test_model import segment

CONFIG = StreamConfig(
    name="flights",
    stream_id="abc",
    schemas=(
        pa.schema([pa.field("a", pa.int64(), nullable=False)]),
        pa.schema([pa.field("a", pa.int64(), nullable=False)]).append(pa.field("b", pa.string())),
    ),
    quorums=Quorums(5, 3, 2),
    compression=Compression.ZSTD,
    created_ms=12,
    segment_roll_age_s=0.5,
)
HEAD = Head("abc", 4, 9, 100, 2000, 77, Dlsn(2, 1, 3), 1)
COMMIT = Commit(
    3, 77, 5, (segment(5, (2, 3), 0), segment(6, (1,), 8)), "sink/ü", 8, "run", 90, 1800
)
SINK = SinkRecord("sink/ü", 8, 3, "run")


def test_everything_round_trips() -> None:
    assert codec.decode_config(codec.encode_config(CONFIG), "p") == CONFIG
    assert codec.decode_head(codec.encode_head(HEAD), "p") == HEAD
    assert codec.decode_sink(codec.encode_sink(SINK), "p") == SINK
    assert codec.decode_commit(codec.encode_commit(COMMIT), 3, "p") == (COMMIT, None)


def test_a_long_segment_list_is_kept_apart() -> None:
    pointer = SegmentListPointer(LedgerId(4), 2)
    node = codec.encode_commit(COMMIT, pointer)
    commit, found = codec.decode_commit(node, 3, "p")
    assert found == pointer
    assert commit.segments == ()
    data = codec.encode_segment_list(COMMIT.segments)
    assert codec.decode_segment_list(data, 5, "p") == COMMIT.segments


def changed(data: bytes, **changes: object) -> bytes:
    return json.dumps({**json.loads(data), **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        changed(codec.encode_head(HEAD), surprise=1),
        changed(codec.encode_head(HEAD), v=2),
        changed(codec.encode_head(HEAD), next_commit="4"),
        changed(codec.encode_head(HEAD), next_commit=-1),
        changed(codec.encode_head(HEAD), earliest=[99, 0, 0]),
        changed(codec.encode_head(HEAD), earliest=[1, 0]),
        changed(codec.encode_head(HEAD), earliest_commit=5),
        json.dumps({"v": 1}).encode(),
    ],
)
def test_a_damaged_head_names_its_node(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="streams/x/head"):
        codec.decode_head(data, "streams/x/head")


@pytest.mark.parametrize(
    "changes",
    [
        {"schemas": []},
        {"schemas": ["!!"]},
        {"schemas": ["AAAA"]},
        {"ack_quorum": 9},
        {"compression": "gzip"},
        {"entry_bytes": 0},
    ],
)
def test_a_damaged_config_names_its_node(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptionError, match="node p") as caught:
        codec.decode_config(changed(codec.encode_config(CONFIG), **changes), "p")
    assert str(caught.value).count("node p") == 1


@pytest.mark.parametrize(
    "item",
    [
        {"ledger": 1, "first": 5, "last": 4, "rows": 1, "bytes": 1, "schema": 0},
        {"ledger": 1, "first": 0, "last": 10**15, "rows": 1, "bytes": 1, "schema": 0},
        {"ledger": -1, "first": 0, "last": 0, "rows": 1, "bytes": 1, "schema": 0},
        {"ledger": 1, "first": 0, "last": 0, "rows": 0, "bytes": 1, "schema": 0},
        {"ledger": 1, "first": 0, "last": 0, "rows": 1, "bytes": 1, "schema": -1},
        {"ledger": 1, "first": 0, "last": 0, "rows": 1, "bytes": 1, "schema": 0, "x": 1},
    ],
)
def test_a_commit_with_an_impossible_segment_is_damaged(item: dict[str, object]) -> None:
    data = changed(codec.encode_commit(COMMIT), segments=[item])
    with pytest.raises(CorruptionError, match="node p"):
        codec.decode_commit(data, 3, "p")
    with pytest.raises(CorruptionError, match="p"):
        codec.decode_segment_list(json.dumps([item]).encode(), 0, "p")


def test_a_commit_has_a_list_or_a_pointer_to_one() -> None:
    data = changed(codec.encode_commit(COMMIT), list_ledger=3, list_entries=1)
    with pytest.raises(CorruptionError, match="both"):
        codec.decode_commit(data, 3, "p")


# -- the format, field by field --------------------------------------------------------------------

EVERYTHING = replace(CONFIG, entry_bytes=4096, segment_roll_bytes=8192, deleted=True)


def test_bytes_of_stream_nodes_are_unchanged() -> None:
    """What is stored stays readable: these names and values do not change."""
    schemas = [base64.b64encode(schema.serialize()).decode() for schema in CONFIG.schemas]
    assert json.loads(codec.encode_config(EVERYTHING)) == {
        "v": 2,
        "name": "flights",
        "stream_id": "abc",
        "ensemble_size": 5,
        "write_quorum": 3,
        "ack_quorum": 2,
        "compression": "zstd",
        "entry_bytes": 4096,
        "segment_roll_bytes": 8192,
        "segment_roll_age_s": 0.5,
        "created_ms": 12,
        "deleted": True,
        "schemas": schemas,
    }
    assert codec.decode_config(codec.encode_config(EVERYTHING), "p") == EVERYTHING
    assert json.loads(codec.encode_head(HEAD)) == {
        "v": 1,
        "stream_id": "abc",
        "next_commit": 4,
        "next_segment": 9,
        "rows": 100,
        "bytes": 2000,
        "time_ms": 77,
        "earliest": [2, 1, 3],
        "earliest_commit": 1,
    }
    assert json.loads(codec.encode_sink(SINK)) == {
        "v": 1,
        "sink": "sink/ü",
        "transaction": 8,
        "commit": 3,
        "run": "run",
    }


def test_bytes_of_commit_nodes_are_unchanged() -> None:
    whole = {
        "time_ms": 77,
        "first_segment": 5,
        "sink": "sink/ü",
        "transaction": 8,
        "run": "run",
        "rows_before": 90,
        "bytes_before": 1800,
    }
    first, second = COMMIT.segments
    items = [
        {
            "ledger": first.ledger_id,
            "first": 0,
            "last": 1,
            "rows": 5,
            "bytes": first.size_bytes,
            "schema": first.schema_version,
            "entry_rows": [2, 3],
        },
        {
            "ledger": second.ledger_id,
            "first": 8,
            "last": 8,
            "rows": 1,
            "bytes": second.size_bytes,
            "schema": second.schema_version,
        },
    ]
    assert json.loads(codec.encode_commit(COMMIT)) == {**whole, "segments": items}
    pointer = SegmentListPointer(LedgerId(0), 1)
    apart = {**whole, "list_ledger": 0, "list_entries": 1}
    assert json.loads(codec.encode_commit(COMMIT, pointer)) == apart
    assert codec.decode_commit(json.dumps(apart).encode(), 3, "p")[1] == pointer
    assert json.loads(codec.encode_segment_list(COMMIT.segments)) == items


def test_a_commit_has_defaults_for_what_is_left_out() -> None:
    least = Commit(0, 0, 0, (), "s", -5)
    assert json.loads(codec.encode_commit(least)) == {
        "time_ms": 0,
        "first_segment": 0,
        "sink": "s",
        "transaction": -5,
    }
    assert codec.decode_commit(codec.encode_commit(least), 0, "p") == (least, None)


@pytest.mark.parametrize("field", ["next_commit", "next_segment", "rows", "bytes"])
def test_a_head_has_no_negative_number(field: str) -> None:
    least = Head("abc")
    assert codec.decode_head(codec.encode_head(least), "p") == least
    with pytest.raises(CorruptionError, match="node p: negative number"):
        codec.decode_head(changed(codec.encode_head(least), **{field: -1}), "p")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"earliest": [-1, 0, 0]}, "negative"),
        ({"earliest": [0, -1, 0]}, "negative"),
        ({"earliest": [0, 0, -1]}, "negative"),
        ({"earliest_commit": -1}, "negative"),
        ({"earliest_commit": 5}, "above the next"),
        ({"time_resets": [2, 2]}, "bad list of commits"),
        ({"time_resets": [4]}, "bad list of commits"),
        ({"time_resets": [-1]}, "bad list of commits"),
        ({"earliest": [9, 0, 1]}, "above the end"),
    ],
)
def test_a_truncation_point_lies_in_the_stream(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CorruptionError, match=message):
        codec.decode_head(changed(codec.encode_head(HEAD), **changes), "p")


def test_everything_may_be_truncated() -> None:
    head = replace(HEAD, earliest=Dlsn(9, 0, 0), earliest_commit=4)
    assert codec.decode_head(codec.encode_head(head), "p") == head


@pytest.mark.parametrize(
    "changes", [{"commit": -1}, {"commit": "3"}, {"transaction": None}, {"x": 1}, {"v": 0}]
)
def test_a_damaged_sink_names_its_node(changes: dict[str, object]) -> None:
    first = SINK._replace(commit=0)
    assert codec.decode_sink(codec.encode_sink(first), "p") == first
    with pytest.raises(CorruptionError, match="node p"):
        codec.decode_sink(changed(codec.encode_sink(SINK), **changes), "p")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_segment": -1}, "negative segment"),
        ({"segments": [], "list_ledger": -1, "list_entries": 1}, "bad list pointer"),
        ({"segments": [], "list_ledger": 3, "list_entries": 0}, "bad list pointer"),
        ({"segments": [], "list_ledger": 3}, "bad list pointer"),
        ({"v": 3}, "version 3"),
        ({"v": 2}, "version 2 and 0 lists of schema versions"),
        ({"versions": [[2, 1]]}, "version 1 and 1 lists"),
        ({"v": 2, "versions": [[1, 1]]}, "schema versions do not fit"),
        ({"v": 2, "versions": [[3, 1]]}, "schema versions do not fit"),
        ({"v": 2, "versions": [[2, 1], [0, 2]]}, "schema versions do not fit"),
        ({"v": 2, "versions": [[3, 1], [-1, 1]]}, "schema versions do not fit"),
        ({"v": 2, "versions": [[2, -1]]}, "schema versions do not fit"),
        ({"x": 1}, "x"),
        ({"sink": 1}, "sink"),
        ({"segments": None}, "segments"),
    ],
)
def test_a_damaged_commit_names_its_node(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CorruptionError, match=f"node p: .*{message}"):
        codec.decode_commit(changed(codec.encode_commit(COMMIT), **changes), 3, "p")


def test_segments_are_numbered_from_the_first() -> None:
    data = codec.encode_commit(replace(COMMIT, first_segment=50))
    commit, _ = codec.decode_commit(data, 7, "p")
    assert commit.number == 7
    assert [part.number for part in commit.segments] == [50, 51]
    with pytest.raises(CorruptionError, match="segment 51: "):
        items = json.loads(data)["segments"]
        items[1]["rows"] = 0
        codec.decode_commit(changed(data, segments=items), 7, "p")


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'[{"ledger":1}]'])
def test_a_damaged_segment_list_names_its_commit(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="segment list of p"):
        codec.decode_segment_list(data, 0, "p")


def test_text_that_is_not_utf_8_is_damage() -> None:
    with pytest.raises(CorruptionError, match=r"node p: .*utf-8"):
        codec.decode_sink(codec.encode_sink(SINK).replace(b"run", b"r\xffn"), "p")
    with pytest.raises(CorruptionError, match=r"segment list of p: .*utf-8"):
        codec.decode_segment_list(b'[{"\xff":1}]', 0, "p")


def test_a_wide_schema_leaves_room_for_many_versions() -> None:
    names = [f"measurement_{number:04d}" for number in range(1000)]
    schema = pa.schema([(name, pa.float64()) for name in names])
    versions = tuple(schema.append(pa.field(f"more{n}", pa.int64())) for n in range(20))
    config = replace(CONFIG, schemas=versions)
    assert codec.decode_config(codec.encode_config(config), "p") == config
    text = encode_schema(schema)
    assert len(text) < len(schema.serialize()) / 4
    for damaged in (text[:-8], text.removeprefix("zlib:"), "zlib:" + text[20:]):
        with pytest.raises(CorruptionError, match="node p: damaged Arrow schema"):
            decode_schema(damaged, "p")


def test_a_schema_that_unpacks_to_more_than_a_reader_takes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = pa.schema([(f"measurement_{number:04d}", pa.float64()) for number in range(100)])
    size, text = len(schema.serialize()), encode_schema(schema)
    monkeypatch.setattr(schema_text, "_SCHEMA_BYTES_MAX", size + 1)
    assert decode_schema(text, "p") == schema
    monkeypatch.setattr(schema_text, "_SCHEMA_BYTES_MAX", size - 1)
    with pytest.raises(CorruptionError, match=r"node p: .*cut off, or too large"):
        decode_schema(text, "p")


def test_a_schema_that_is_too_wide_for_the_metadata_is_refused() -> None:
    fields = [(hashlib.sha256(b"%d" % n).hexdigest(), pa.int64()) for n in range(8000)]
    config = replace(CONFIG, schemas=(pa.schema(fields),))
    with pytest.raises(ConfigurationError, match=r"'flights': its 1 schema .* 8000 columns"):
        codec.encode_config(config)


def test_a_schema_with_a_stray_character_is_refused() -> None:
    text = encode_schema(CONFIG.schemas[0])
    assert decode_schema(text, "p") == CONFIG.schemas[0]
    with pytest.raises(CorruptionError, match="node p"):
        decode_schema(f"{text[:8]}!{text[8:]}", "p")


def test_a_schema_that_is_cut_or_damaged_anywhere_is_refused_or_read() -> None:
    raw = CONFIG.schemas[1].serialize().to_pybytes()
    refused = set()
    for place in range(len(raw)):
        flipped = bytearray(raw)
        flipped[place] ^= 0xFF
        for data in (raw[:place], bytes(flipped)):
            try:
                assert isinstance(decode_schema(base64.b64encode(data).decode(), "p"), pa.Schema)
            except CorruptionError as error:
                assert "node p: damaged Arrow schema" in str(error)
                refused.add(type(error.__cause__))
    assert len(refused) > 1
