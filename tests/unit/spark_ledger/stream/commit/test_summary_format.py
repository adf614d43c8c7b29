"""The bytes of a bucket's summary: whole or refused, bounded, and only of the stream asked for."""

from __future__ import annotations

import random
import zlib

import msgspec
import pyarrow as pa
import pytest

from spark_ledger.errors import CorruptionError
from spark_ledger.stream.commit.summary_format import (
    SUMMARY_BYTES_MAX,
    decode_summary,
    encode_summary,
)

ID = "5" * 32
NODES = (b'{"a":1}', b"", b'{"a":2,"b":"c"}', b"")
PATH = "streams/s/commits/0000001"


def crafted(rows: bytes, **fields: object) -> bytes:
    """A summary with a right checksum around a header of one's own."""
    header = {"v": 1, "stream_id": ID, "first": 1000, "count": 2, "bytes": len(rows)} | fields
    compressed = pa.compress(rows, codec="zstd", asbytes=True)
    body = msgspec.json.encode(header) + b"\n" + compressed
    return zlib.crc32(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("nodes", [NODES, (b"x",), (b"",), (b"", b""), (b"x" * 300,) * 1000])
def test_nodes_come_back(nodes: tuple[bytes, ...]) -> None:
    assert decode_summary(encode_summary(ID, 1000, nodes), ID, 1000, PATH) == nodes


def test_helper_crafts_the_bytes_that_encode_summary_makes() -> None:
    data = crafted(b"a\nb")
    assert data == encode_summary(ID, 1000, [b"a", b"b"])


def test_every_damaged_byte_and_every_torn_end_is_noticed() -> None:
    data = encode_summary(ID, 1000, NODES)
    for place in range(len(data)):
        torn = data[:place]
        with pytest.raises(CorruptionError, match=PATH):
            decode_summary(torn, ID, 1000, PATH)
        for bit in (1, 128):
            damaged = bytearray(data)
            damaged[place] ^= bit
            with pytest.raises(CorruptionError, match=PATH):
                decode_summary(bytes(damaged), ID, 1000, PATH)


@pytest.mark.parametrize(("stream_id", "first"), [("6" * 32, 1000), (ID, 0), (ID, 2000)])
def test_summary_of_another_stream_or_bucket_is_refused(stream_id: str, first: int) -> None:
    data = encode_summary(ID, 1000, NODES)
    with pytest.raises(CorruptionError, match="expected version 1"):
        decode_summary(data, stream_id, first, PATH)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"v": 2}, "version 2"),
        ({"count": 3}, "2 commits"),
        ({"count": 1}, "2 commits"),
        ({"bytes": 2}, "summary"),
        ({"bytes": 4}, "summary"),
        ({"bytes": -1}, "-1 bytes"),
        ({"bytes": 1 << 40}, "bytes"),
        ({"count": "2"}, "header"),
        ({"more": 1}, "header"),
    ],
)
def test_contradicting_header_with_right_checksum_is_refused(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(CorruptionError, match=message):
        decode_summary(crafted(b"a\nb", **fields), ID, 1000, PATH)


def test_a_header_that_is_not_utf_8_is_refused() -> None:
    body = b'{"stream_id":"\xff"}\n'
    with pytest.raises(CorruptionError, match="header"):
        decode_summary(zlib.crc32(body).to_bytes(4, "big") + body, ID, 1000, PATH)


def test_summary_that_is_not_zstandard_is_refused() -> None:
    header = {"v": 1, "stream_id": ID, "first": 1000, "count": 2, "bytes": 3}
    body = msgspec.json.encode(header) + b"\nrubbish"
    with pytest.raises(CorruptionError, match="damaged summary"):
        decode_summary(zlib.crc32(body).to_bytes(4, "big") + body, ID, 1000, PATH)


def test_the_largest_nodes_are_left_out_of_a_summary_that_would_be_too_large() -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    nodes = [rng.randbytes(rng.choice([50, 100, 4000])).hex().encode() for _ in range(1000)]
    data = encode_summary(ID, 0, nodes)
    assert SUMMARY_BYTES_MAX // 8 < len(data) <= SUMMARY_BYTES_MAX, f"seed {seed}"
    found = decode_summary(data, ID, 0, PATH)
    assert len(found) == len(nodes)
    for node, kept in zip(nodes, found, strict=True):
        assert kept == (b"" if len(node) > 1000 else node), f"seed {seed}"
