"""The ``holds`` node of a stream: JSON, strict and versioned. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.stream.format.codec import Node, decode_node
from spark_ledger.stream.retention.rules import Hold
from spark_ledger.types import Dlsn


class _HoldItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    commit: int
    position: tuple[int, int, int]
    bytes_before: int
    made_ms: int
    expires_ms: int
    bytes_max: int | None = None


class _HoldsNode(Node, frozen=True, kw_only=True):
    holds: tuple[_HoldItem, ...]


def encode_holds(holds: Sequence[Hold]) -> bytes:
    """The ``holds`` node."""
    items = tuple(
        _HoldItem(
            name=hold.name,
            commit=hold.commit,
            position=(hold.position.segment, hold.position.entry, hold.position.slot),
            bytes_before=hold.bytes_before,
            made_ms=hold.made_ms,
            expires_ms=hold.expires_ms,
            bytes_max=hold.size_bytes_max,
        )
        for hold in sorted(holds, key=lambda hold: hold.name)
    )
    return msgspec.json.encode(_HoldsNode(holds=items))


def decode_holds(data: bytes, path: str) -> tuple[Hold, ...]:
    """The holds in a node, by name. Raises CorruptionError that names the node."""
    node = decode_node(data, _HoldsNode, path)
    holds: list[Hold] = []
    for item in node.holds:
        if min(item.commit, item.bytes_before, *item.position) < 0:
            raise CorruptionError(f"metadata node {path}: hold {item.name!r}: negative number")
        position = Dlsn(*item.position)
        try:
            holds.append(
                Hold(
                    item.name,
                    item.commit,
                    position,
                    item.bytes_before,
                    item.made_ms,
                    item.expires_ms,
                    item.bytes_max,
                )
            )
        except ConfigurationError as error:
            raise CorruptionError(f"metadata node {path}: {error}") from error
    if len({hold.name for hold in holds}) != len(holds):
        raise CorruptionError(f"metadata node {path}: two holds of one name")
    return tuple(holds)
