"""What all metadata nodes in JSON share: a format version, strict decoding, read and write."""

from __future__ import annotations

import contextlib
import logging
from typing import Annotated, ClassVar, Final, TypeVar

import msgspec
from msgspec import Meta

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    NotFoundError,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.types import Versioned

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
"""To be raised when a program that knows only the older format must not touch the data."""

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node; each kind is a subclass."""

    format_version: int = FORMAT_VERSION
    newest_format: ClassVar[int] = FORMAT_VERSION
    """The newest format of this kind of node that this program knows."""


class _AnyVersion(msgspec.Struct, frozen=True):
    format_version: int


N = TypeVar("N", bound=Node)


def encode_node(node: Node) -> bytes:
    """JSON bytes of a node."""
    return msgspec.json.encode(node)


def decode_node(kind: type[N], path: str, data: bytes) -> N:
    """A node of this kind; ``path`` is for the error message.

    Raises CorruptionError if it does not decode, ConfigurationError if it has a later format.
    """
    try:
        found = msgspec.json.decode(data, type=_AnyVersion).format_version
        if found > kind.newest_format:
            raise ConfigurationError(
                f"metadata node {path!r} has format version {found}, this program knows up to "
                f"{kind.newest_format}: upgrade spark-ledger here"
            )
        node = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"metadata node {path!r} is damaged: {error}") from error
    if node.format_version < 1:
        raise CorruptionError(f"metadata node {path!r} is damaged: format version {found}")
    return node


async def read_node(store: MetadataStore, kind: type[N], path: str) -> Versioned[N] | None:
    """A node as it is now, or None if there is none. Raises as ``decode_node`` does."""
    try:
        node = await store.get_latest(path)
    except NotFoundError:
        return None
    return Versioned(decode_node(kind, path, node.value), node.version)


async def read_or_renew(store: MetadataStore, empty: N, path: str) -> Versioned[N] | None:
    """As ``read_node``; but a damaged node is written anew, as ``empty``.

    For nodes without which work is only done once more: one that is damaged would keep everybody
    from that work for ever. Raises ConfigurationError if it has a later format.
    """
    while True:
        try:
            node = await store.get_latest(path)
        except NotFoundError:
            return None
        try:
            return Versioned(decode_node(type(empty), path, node.value), node.version)
        except CorruptionError as error:
            logger.warning("%s; it is written anew", error)
        with contextlib.suppress(ConflictError, NotFoundError):  # somebody else has: read that
            await store.put(path, encode_node(empty), node.version)


async def write_node(
    store: MetadataStore, path: str, node: Node, before: Versioned[N] | None
) -> None:
    """Write a node over the one that was read. Raises ConflictError if it has changed."""
    if before is None:
        await store.create(path, encode_node(node))
    else:
        await store.put(path, encode_node(node), before.version)
