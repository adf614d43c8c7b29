"""What bookies and operators tell each other about garbage collection, one node each per bookie.

| node | contents |
|---|---|
| collection/<bookie> | format_version, mark (random), how the last pass went; by the bookie |
| collection-orders/<bookie> | format_version, token (random), what the bookie shall do in a pass |
| | that it begins now; by an operator |
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from spark_ledger.errors import ConflictError, NotFoundError, OutcomeUnknownError
from spark_ledger.metadata.base import MetadataStore, again
from spark_ledger.metadata.bookies import check_bookie_id
from spark_ledger.metadata.json_nodes import Count, Node, encode_node, read_node
from spark_ledger.types import BookieId, Versioned

COLLECTION_PATH: Final = "collection"
ORDERS_PATH: Final = "collection-orders"


class PassReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a pass went. Numbers with a total in their name count since the process started."""

    time_ms: Count = 0
    """When it ended, by the bookie's clock: for people."""
    duration_s: float = 0.0
    held: Count = 0
    candidates: Count = 0
    """Ledgers that the metadata did not name at the first look."""
    kept: Count = 0
    """Copies that the metadata, which were restored, name elsewhere, as far as they were read."""
    deleted: Count = 0
    freed_bytes: Count = 0
    deleted_total: Count = 0
    freed_bytes_total: Count = 0
    passes_total: Count = 0
    aborted: str = ""
    """Why the pass ended early; empty if it did not."""
    dry_run: bool = False
    order: str = ""
    """The order that it followed; empty for a pass of its own."""
    reclaimable_bytes: Count = 0
    """Bytes of deleted ledgers that logs still hold."""


class CollectionNode(Node, frozen=True, kw_only=True):
    """What a bookie says of its garbage collection."""

    mark: str
    report: PassReport | None = None


class CollectionOrder(Node, frozen=True, kw_only=True):
    """What an operator wants of a bookie."""

    token: str
    dry_run: bool = False
    share_max: Annotated[float, Meta(gt=0, le=1)] | None = None
    """How much of what it holds may go in this pass; None: as it is configured."""
    accept_restored: bool = False
    """The metadata are right although they went back: what they do not name may go."""
    give_back: bool = False
    """Also copies that restored metadata name elsewhere may go."""


def collection_path(bookie_id: BookieId) -> str:
    """The node in which a bookie reports."""
    return f"{COLLECTION_PATH}/{check_bookie_id(bookie_id)}"


def order_path(bookie_id: BookieId) -> str:
    """The node in which a bookie finds what it shall do."""
    return f"{ORDERS_PATH}/{check_bookie_id(bookie_id)}"


async def read_collection(
    store: MetadataStore, bookie_id: BookieId
) -> Versioned[CollectionNode] | None:
    """What a bookie says, no older than this call; None before its first pass.

    Raises CorruptionError, ConfigurationError if the node has a later format, and what the store
    raises.
    """
    return await read_node(store, CollectionNode, collection_path(bookie_id))


async def read_order(
    store: MetadataStore, bookie_id: BookieId
) -> Versioned[CollectionOrder] | None:
    """What a bookie shall do, no older than this call. Raises as ``read_collection``."""
    return await read_node(store, CollectionOrder, order_path(bookie_id))


async def write_order(store: MetadataStore, bookie_id: BookieId, order: CollectionOrder) -> None:
    """Have a bookie follow this order; one that it has not seen yet is forgotten.

    Raises OutcomeUnknownError, ConflictError if no attempt brought a reply or was the newest.
    """
    path, data = order_path(bookie_id), encode_node(order)

    async def write() -> None:
        try:
            node = await store.get_latest(path)
        except NotFoundError:
            await store.create(path, data)
        else:
            await store.put(path, data, node.version)

    await again(write, ConflictError, OutcomeUnknownError)
