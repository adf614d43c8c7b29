"""The bytes of pages of manifests, and of the root node. Pure.

A page is one entry of a ledger (rule T6):

    4 bytes   CRC-32 of all that follows, big-endian
    a line    JSON: format version, stream id, level, number of the first commit, count, body size,
              and above leaves the ledgers that these have left
    the rest  compressed with Zstandard; level 0: commit nodes as they were, joined by newlines
              (JSON holds none); above: a JSON list of pointers to the pages below

Streams of before had such a page of level 0, a *summary*, in the node of each bucket of commits;
there an empty row stands for a commit that was left out because its node is large.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.stream.manifest.tree import ManifestRoot, PagePointer
from spark_ledger.types import LedgerId

FORMAT_VERSION: Final = 1
ROOT_TRIMMED_VERSION: Final = 2
"""Of a root whose first pages were dropped (rule T18)."""

_BODY_BYTES_MAX: Final = 256 * MIB
"""What a reader decompresses at most, whatever the header says."""

_LEVELS_MAX: Final = 16
_CODEC: Final = "zstd"


class _Header(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    v: int
    stream_id: str
    level: int = 0
    first: int
    count: int
    bytes: int
    former: tuple[int, ...] = ()
    """Of a page above leaves: the ledgers in which these were before they moved into its own."""


class _RootNode(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    v: int
    stream_id: str
    leaf: int
    fan_out: int
    levels: tuple[tuple[PagePointer, ...], ...]
    first: int = 0
    dropped: int = 0
    freed: int = 0


# -- pages -----------------------------------------------------------------------------------------


def encode_leaf(stream_id: str, first: int, nodes: Sequence[bytes]) -> bytes:
    """The page that repeats the nodes of commits ``first`` and following."""
    assert all(nodes) and all(b"\n" not in node for node in nodes), "a node is a line"
    return _encode(stream_id, 0, first, len(nodes), b"\n".join(nodes))


def encode_index(
    stream_id: str,
    level: int,
    first: int,
    pointers: Sequence[PagePointer],
    former: Sequence[LedgerId] = (),
) -> bytes:
    """The page of a level above 0 that names pages, the first of which begins with a commit."""
    assert level > 0, "leaves hold commits"
    body = msgspec.json.encode(pointers)
    return _encode(stream_id, level, first, len(pointers), body, tuple(former))


def _encode(
    stream_id: str,
    level: int,
    first: int,
    count: int,
    body: bytes,
    former: tuple[LedgerId, ...] = (),
) -> bytes:
    assert count > 0 and first >= 0, (first, count)
    header = _Header(
        v=FORMAT_VERSION,
        stream_id=stream_id,
        level=level,
        first=first,
        count=count,
        bytes=len(body),
        former=former,
    )
    compressed: bytes = pa.compress(body, codec=_CODEC, asbytes=True)
    data = msgspec.json.encode(header) + b"\n" + compressed
    assert len(data) + 4 <= ENTRY_PAYLOAD_BYTES_MAX, "nodes are small, and so are pointers"
    return zlib.crc32(data).to_bytes(4, "big") + data


def decode_leaf(data: bytes, stream_id: str, first: int, where: str) -> tuple[bytes, ...]:
    """The nodes of commits ``first`` and following.

    Raises CorruptionError if these bytes are no leaf of that stream with that first commit.
    """
    header, body = _decode(data, stream_id, 0, first, where)
    nodes = tuple(body.split(b"\n"))
    if len(nodes) != header.count:
        raise CorruptionError(f"{where}: {len(nodes)} commits, but says {header.count}")
    return nodes


def leaf_count(data: bytes, stream_id: str, first: int, where: str) -> int:
    """How many commits a leaf holds, whose checksum is right; nothing is decompressed.

    Raises CorruptionError as ``decode_leaf``.
    """
    return _header(data, stream_id, 0, first, where)[0].count


def decode_index(
    data: bytes, stream_id: str, level: int, first: int, where: str
) -> tuple[PagePointer, ...]:
    """The pointers of a page of a level above 0. Raises CorruptionError as ``decode_leaf``."""
    header, body = _decode(data, stream_id, level, first, where)
    try:
        pointers = msgspec.json.decode(body, type=tuple[PagePointer, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"{where}: {error}") from error
    if len(pointers) != header.count or not _are_in_order(pointers):
        raise CorruptionError(f"{where}: {len(pointers)} pages, not {header.count} in order")
    return pointers


def former_ledgers(data: bytes, stream_id: str, first: int, where: str) -> tuple[LedgerId, ...]:
    """The ledgers in which the leaves below a page of level 1 were before they moved into its own.
    Raises CorruptionError as ``decode_leaf``."""
    found = _header(data, stream_id, 1, first, where)[0].former
    if min(found, default=0) < 0:
        raise CorruptionError(f"{where}: former ledgers {found}")
    return tuple(LedgerId(each) for each in found)


def _header(
    data: bytes, stream_id: str, level: int, first: int, where: str
) -> tuple[_Header, bytes]:
    """The header, and what follows it as it is stored."""
    if len(data) < 4 or zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
        raise CorruptionError(f"{where}: its checksum is wrong")
    line, _, compressed = data[4:].partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"{where}: {error}") from error
    found = (header.v, header.stream_id, header.level, header.first)
    if found != (FORMAT_VERSION, stream_id, level, first):
        raise CorruptionError(
            f"{where}: version, stream id, level and first commit are {found}; expected "
            f"{(FORMAT_VERSION, stream_id, level, first)}"
        )
    if not 0 <= header.bytes <= _BODY_BYTES_MAX:
        raise CorruptionError(f"{where}: a body of {header.bytes} bytes")
    return header, compressed


def _decode(
    data: bytes, stream_id: str, level: int, first: int, where: str
) -> tuple[_Header, bytes]:
    header, compressed = _header(data, stream_id, level, first, where)
    try:
        body: bytes = pa.decompress(
            compressed, decompressed_size=header.bytes, codec=_CODEC, asbytes=True
        )
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CorruptionError(f"{where}: {error}") from error
    if len(body) != header.bytes:
        raise CorruptionError(f"{where}: {len(body)} bytes, but says {header.bytes}")
    return header, body


# -- the root --------------------------------------------------------------------------------------


def encode_root(root: ManifestRoot) -> bytes:
    """The ``manifests`` node."""
    return msgspec.json.encode(
        _RootNode(
            v=ROOT_TRIMMED_VERSION if root.dropped else FORMAT_VERSION,
            stream_id=root.stream_id,
            leaf=root.leaf_commits,
            fan_out=root.fan_out,
            levels=root.levels,
            first=root.first,
            dropped=root.dropped,
            freed=root.freed,
        )
    )


def decode_root(data: bytes, path: str) -> ManifestRoot:
    """The root in a node. Raises CorruptionError that names the node."""
    try:
        node = msgspec.json.decode(data, type=_RootNode)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"metadata node {path}: {error}") from error
    if not FORMAT_VERSION <= node.v <= ROOT_TRIMMED_VERSION:
        raise CorruptionError(
            f"metadata node {path}: format version {node.v}, but this program knows only "
            f"{ROOT_TRIMMED_VERSION}; use a newer one"
        )
    root = ManifestRoot(
        *(node.stream_id, node.levels, node.leaf, node.fan_out),
        *(node.first, node.dropped, node.freed),
    )
    if not 0 <= root.first <= root.dropped or (root.dropped > 0) != (node.v > FORMAT_VERSION):
        raise CorruptionError(
            f"metadata node {path}: its first page begins with commit {root.first}, and those "
            f"below {root.dropped} were dropped"
        )
    if root.leaf_commits < 1 or root.fan_out < 2 or len(root.levels) > _LEVELS_MAX:
        raise CorruptionError(f"metadata node {path}: a tree of impossible sizes")
    if not 0 <= root.freed <= root.sealed:
        raise CorruptionError(
            f"metadata node {path}: {root.freed} of {root.sealed} sealed commits are merged"
        )
    if not _are_in_order([page.pointer for page in root.pages()]):
        raise CorruptionError(f"metadata node {path}: its pages are not in order")
    return root


def _are_in_order(pointers: Sequence[PagePointer]) -> bool:
    """Whether the pointers may be those of consecutive pages."""
    segment = rows = size_bytes = 0
    for pointer in pointers:
        if min(pointer.ledger_id, pointer.entry_id) < 0 or (
            pointer.first_segment < segment
            or pointer.rows_before < rows
            or pointer.bytes_before < size_bytes
        ):
            return False
        segment, rows = pointer.first_segment, pointer.rows_before
        size_bytes = pointer.bytes_before
    return True
