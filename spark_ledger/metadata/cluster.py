"""The cluster node: which cluster this is, made once, and in which format its metadata are."""

from __future__ import annotations

import uuid
from typing import Final

import msgspec

from spark_ledger.errors import ConflictError, NotFoundError, OutcomeUnknownError
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.codec import ClusterNode
from spark_ledger.metadata.json_nodes import decode_node, encode_node
from spark_ledger.types import PlacementPolicy, Versioned

CLUSTER_PATH: Final = "cluster"


class _Identity(msgspec.Struct, frozen=True):
    """What a cluster's node says in every format."""

    cluster_id: str


def cluster_identity(data: bytes) -> bytes:
    """What tells this cluster's node from another cluster's. Its policy changes, and its format.

    A node that names no cluster is only the same as itself.
    """
    try:
        return msgspec.json.decode(data, type=_Identity).cluster_id.encode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return data


async def read_cluster(store: MetadataStore) -> str:
    """The cluster id. Raises as ``read_cluster_node`` does."""
    return (await read_cluster_node(store)).value.cluster_id


async def read_cluster_node(store: MetadataStore) -> Versioned[ClusterNode]:
    """Which cluster this is, and where it wants copies.

    Raises NotFoundError if there is no cluster under this root, ConfigurationError if its metadata
    have a later format, CorruptionError if the node is damaged.
    """
    try:
        node = await store.get(CLUSTER_PATH)
    except NotFoundError as error:
        raise NotFoundError(
            "there is no cluster under this metadata root: check the root path of the metadata "
            "URI, or start the first bookie"
        ) from error
    return Versioned(decode_node(ClusterNode, CLUSTER_PATH, node.value), node.version)


async def ensure_cluster(store: MetadataStore) -> str:
    """The cluster id; made now if this is a new root. Safe when several do it at once."""
    return (await ensure_cluster_node(store)).cluster_id


async def set_placement(store: MetadataStore, policy: PlacementPolicy) -> None:
    """Have all clients of a cluster choose bookies by this policy, from their next look on.

    Raises what ``read_cluster_node`` and the store raise, ConflictError if somebody else is at it.
    """
    node = await read_cluster_node(store)
    await store.put(CLUSTER_PATH, encode_node(node.value.with_policy(policy)), node.version)


async def ensure_cluster_node(store: MetadataStore) -> ClusterNode:
    """The cluster's node; made now if this is a new root."""
    for attempt in range(METADATA_ATTEMPTS):
        try:
            return (await read_cluster_node(store)).value
        except NotFoundError:
            pass
        data = encode_node(ClusterNode(cluster_id=str(uuid.uuid4())))
        try:
            await store.create(CLUSTER_PATH, data)
        except ConflictError:
            continue  # another client was first: read its id
        except OutcomeUnknownError:
            if attempt == METADATA_ATTEMPTS - 1:
                raise
    return (await read_cluster_node(store)).value
