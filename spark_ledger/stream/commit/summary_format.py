"""A bucket's summary: its first commits in one compressed metadata node. Pure.

To read a thousand commits one by one takes most of a second; their summary takes one read. It only
repeats commit nodes, byte for byte, and those stay (rule T6): a summary that is missing, damaged,
short or of another stream costs time and nothing else.

    4 bytes   CRC-32 of all that follows, big-endian
    a line    JSON: format version, stream id, number of the first commit, count, size of the rows
    the rest  the commit nodes, joined by newlines (JSON holds none), compressed with Zstandard

An empty row stands for a commit that was left out because its node is large.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB, MIB

FORMAT_VERSION = 1
SUMMARY_BYTES_MAX = 256 * KIB
"""As for a ledger's metadata: a quarter of what ZooKeeper takes in one request. A thousand commits
of small micro-batches need a tenth of it."""

_ROWS_BYTES_MAX = 256 * MIB
"""What a reader decompresses at most, whatever the header says."""

_CODEC: Final = "zstd"


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    v: int
    stream_id: str
    first: int
    count: int
    bytes: int


def encode_summary(stream_id: str, first_commit: int, nodes: Sequence[bytes]) -> bytes:
    """The summary of commits ``first_commit`` and following, whose nodes are given.

    An empty node stands for a commit that is left out. If the result would be too large, the
    largest nodes are left out as well.
    """
    assert nodes and first_commit >= 0, (first_commit, len(nodes))
    assert all(b"\n" not in node for node in nodes), "a row is a line"
    longest = max(len(node) for node in nodes)
    while True:
        data = _encode(stream_id, first_commit, nodes)
        if len(data) <= SUMMARY_BYTES_MAX:
            return data
        longest //= 2
        nodes = [node if len(node) <= longest else b"" for node in nodes]


def _encode(stream_id: str, first_commit: int, nodes: Sequence[bytes]) -> bytes:
    rows = b"\n".join(nodes)
    header = _Header(
        v=FORMAT_VERSION,
        stream_id=stream_id,
        first=first_commit,
        count=len(nodes),
        bytes=len(rows),
    )
    compressed: bytes = pa.compress(rows, codec=_CODEC, asbytes=True)
    body = msgspec.json.encode(header) + b"\n" + compressed
    return zlib.crc32(body).to_bytes(4, "big") + body


def decode_summary(data: bytes, stream_id: str, first_commit: int, path: str) -> tuple[bytes, ...]:
    """The nodes of commits ``first_commit`` and following; those left out are empty.

    Raises CorruptionError if these bytes are not a summary of that stream's commits.
    """
    body = data[4:]
    if len(data) < 4 or zlib.crc32(body).to_bytes(4, "big") != data[:4]:
        raise CorruptionError(f"metadata node {path}: damaged summary: its checksum is wrong")
    line, _, compressed = body.partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"metadata node {path}: header of its summary: {error}") from error
    if (header.v, header.stream_id, header.first) != (FORMAT_VERSION, stream_id, first_commit):
        raise CorruptionError(
            f"metadata node {path}: a summary of version {header.v}, of stream id "
            f"{header.stream_id!r} from commit {header.first} on; expected version "
            f"{FORMAT_VERSION}, {stream_id!r}, {first_commit}"
        )
    return _rows(header, compressed, path)


def _rows(header: _Header, compressed: bytes, path: str) -> tuple[bytes, ...]:
    if not 0 <= header.bytes <= _ROWS_BYTES_MAX:
        raise CorruptionError(f"metadata node {path}: a summary of {header.bytes} bytes")
    try:
        rows = pa.decompress(compressed, decompressed_size=header.bytes, codec=_CODEC, asbytes=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CorruptionError(f"metadata node {path}: damaged summary: {error}") from error
    nodes = tuple(rows.split(b"\n"))
    if len(rows) != header.bytes or len(nodes) != header.count:
        raise CorruptionError(
            f"metadata node {path}: its summary has {len(nodes)} commits in {len(rows)} bytes, but "
            f"says {header.count} in {header.bytes}"
        )
    return nodes
