"""What bookies and operators tell each other about garbage collection, one node each per bookie.

| node | contents |
|---|---|
| collection/<bookie> | format_version, mark (random), how the last pass went; by the bookie |
| collection-orders/<bookie> | format_version, token (random), what the bookie shall do in a pass |
| | that it begins now; by an operator |
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.bookies import check_bookie_id
from spark_ledger.types import BookieId, Versioned

COLLECTION_PATH: Final = "collection"
ORDERS_PATH: Final = "collection-orders"

FORMAT_VERSION: Final = 1

_Count = Annotated[int, Meta(ge=0)]


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format_version: int = FORMAT_VERSION


class PassReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a pass went. Numbers with a total in their name count since the process started."""

    time_ms: _Count = 0
    """When it ended, by the bookie's clock: for people."""
    duration_s: float = 0.0
    held: _Count = 0
    candidates: _Count = 0
    """Ledgers that the metadata did not name at the first look."""
    deleted: _Count = 0
    freed_bytes: _Count = 0
    deleted_total: _Count = 0
    freed_bytes_total: _Count = 0
    passes_total: _Count = 0
    aborted: str = ""
    """Why the pass ended early; empty if it did not."""
    dry_run: bool = False
    order: str = ""
    """The order that it followed; empty for a pass of its own."""
    reclaimable_bytes: _Count = 0
    """Bytes of deleted ledgers that logs still hold."""


class CollectionNode(_Node, frozen=True, kw_only=True):
    """What a bookie says of its garbage collection."""

    mark: str
    report: PassReport | None = None


class CollectionOrder(_Node, frozen=True, kw_only=True):
    """What an operator wants of a bookie."""

    token: str
    dry_run: bool = False
    share_max: Annotated[float, Meta(gt=0, le=1)] | None = None
    """How much of what it holds may go in this pass; None: as it is configured."""
    accept_restored: bool = False
    """The metadata are right although they went back: what they do not name may go."""


N = TypeVar("N", bound=_Node)


def collection_path(bookie_id: BookieId) -> str:
    """The node in which a bookie reports."""
    return f"{COLLECTION_PATH}/{check_bookie_id(bookie_id)}"


def order_path(bookie_id: BookieId) -> str:
    """The node in which a bookie finds what it shall do."""
    return f"{ORDERS_PATH}/{check_bookie_id(bookie_id)}"


def encode(node: _Node) -> bytes:
    """JSON bytes of a node."""
    return msgspec.json.encode(node)


async def read_collection(
    store: MetadataStore, bookie_id: BookieId
) -> Versioned[CollectionNode] | None:
    """What a bookie says, no older than this call; None before its first pass.

    Raises CorruptionError, ConfigurationError if the node has a later format, and what the store
    raises.
    """
    return await _read(store, collection_path(bookie_id), CollectionNode)


async def read_order(
    store: MetadataStore, bookie_id: BookieId
) -> Versioned[CollectionOrder] | None:
    """What a bookie shall do, no older than this call. Raises as ``read_collection``."""
    return await _read(store, order_path(bookie_id), CollectionOrder)


async def write_order(store: MetadataStore, bookie_id: BookieId, order: CollectionOrder) -> None:
    """Have a bookie follow this order; one that it has not seen yet is forgotten.

    Raises OutcomeUnknownError, ConflictError if no attempt brought a reply or was the newest.
    """
    path, data = order_path(bookie_id), encode(order)
    for attempt in range(METADATA_ATTEMPTS):
        try:
            try:
                node = await store.get_latest(path)
            except NotFoundError:
                await store.create(path, data)
            else:
                await store.put(path, data, node.version)
        except (ConflictError, OutcomeUnknownError):
            if attempt == METADATA_ATTEMPTS - 1:
                raise
        else:
            return


async def _read(store: MetadataStore, path: str, kind: type[N]) -> Versioned[N] | None:
    try:
        node = await store.get_latest(path)
    except NotFoundError:
        return None
    try:
        found = msgspec.json.decode(node.value, type=kind, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"metadata node {path!r} is damaged: {error}") from error
    if found.format_version > FORMAT_VERSION:
        raise ConfigurationError(
            f"metadata node {path!r} has format version {found.format_version}, this program knows "
            f"up to {FORMAT_VERSION}: upgrade spark-ledger here"
        )
    return Versioned(found, node.version)
