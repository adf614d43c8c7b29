"""Metadata nodes: round trips, and refusal of everything that is not exactly right."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_ledger.errors import CorruptionError
from spark_ledger.stream import codec
from spark_ledger.stream.codec import SegmentListPointer
from spark_ledger.stream.model import Commit, Compression, Head, SinkRecord, StreamConfig
from spark_ledger.types import Dlsn, LedgerId, Quorums
from tests.unit.spark_ledger.stream.test_model import segment

CONFIG = StreamConfig(
    name="flights",
    stream_id="abc",
    schemas=(
        pa.schema([pa.field("a", pa.int64(), nullable=False)]),
        pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())]),
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
    with pytest.raises(CorruptionError, match="node p"):
        codec.decode_config(changed(codec.encode_config(CONFIG), **changes), "p")


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
