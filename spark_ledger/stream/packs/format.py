"""The ``packs`` node of a stream, and the index in a pack's last entry. Strict, versioned, pure."""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.stream.format.codec import Node, decode_node
from spark_ledger.stream.packs.model import Pack, PackIndex, Packs, check_order
from spark_ledger.types import LedgerId

FORMAT_VERSION: Final = 1

_INDEX_BYTES_MAX: Final = 16 * MIB
"""What a reader decompresses at most, whatever the entry says."""


class _PackItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    first: int
    end: int
    first_segment: int
    end_segment: int
    ledger: int
    entries: int
    rows: int
    bytes: int
    freed: bool = False


class _PacksNode(Node, frozen=True, kw_only=True):
    packs: tuple[_PackItem, ...]
    made: int = 0
    waiting: tuple[tuple[int, int], ...] = ()


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    stream_id: str
    first_segment: int
    entry_rows: tuple[int, ...]
    versions: tuple[int, ...]
    segment_rows: tuple[int, ...]


def encode_packs(packs: Packs) -> bytes:
    """The ``packs`` node."""
    items = tuple(_PackItem(*pack) for pack in packs.packs)
    return msgspec.json.encode(_PacksNode(packs=items, made=packs.made, waiting=packs.waiting))


def decode_packs(data: bytes, path: str) -> Packs:
    """The packs in a node. Raises CorruptionError that names the node."""
    node = decode_node(data, _PacksNode, path)
    packs = tuple(
        Pack(
            item.first,
            item.end,
            item.first_segment,
            item.end_segment,
            LedgerId(item.ledger),
            item.entries,
            item.rows,
            item.bytes,
            item.freed,
        )
        for item in node.packs
    )
    reason = check_order(packs)
    waiting = tuple((LedgerId(ledger_id), number) for ledger_id, number in node.waiting)
    left = {pack.ledger_id for pack in packs if not pack.is_freed}
    if any(ledger not in left or not 0 < number <= node.made for ledger, number in waiting):
        reason = reason or f"of {node.made} packs these wait to be freed: {waiting}"
    if reason is not None:
        raise CorruptionError(f"metadata node {path}: {reason}")
    return Packs(packs, node.made, waiting)


def encode_index(index: PackIndex, stream_id: str, first_segment: int) -> bytes:
    """The payload of a pack's last entry."""
    node = _Index(
        FORMAT_VERSION,
        stream_id,
        first_segment,
        index.entry_rows,
        index.versions,
        index.segment_rows,
    )
    return zlib.compress(msgspec.json.encode(node))


def decode_index(data: bytes, pack: Pack, stream_id: str, where: str) -> PackIndex:
    """The index of a pack. Raises CorruptionError if it is damaged, or another pack's."""
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(data, _INDEX_BYTES_MAX)
        node = msgspec.json.decode(text, type=_Index)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(
            f"{where}: the index of the pack in ledger {pack.ledger_id} is damaged: {error}"
        ) from error
    if (node.v, node.stream_id, node.first_segment) != (
        FORMAT_VERSION,
        stream_id,
        pack.first_segment,
    ):
        raise CorruptionError(
            f"{where}: ledger {pack.ledger_id} has the index of another pack, or of a newer format"
        )
    index = PackIndex(node.entry_rows, node.versions, node.segment_rows)
    index.check(pack, where)
    return index
