"""The cluster node: which cluster this is, made once, and in which format its metadata are."""

from __future__ import annotations

import uuid

from spark_ledger.errors import ConflictError, NotFoundError, OutcomeUnknownError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.codec import ClusterNode, decode_node, encode_node

CLUSTER_PATH = "cluster"
_ATTEMPTS = 3


async def read_cluster(store: MetadataStore) -> str:
    """The cluster id.

    Raises NotFoundError if nothing was set up under this root, ConfigurationError if a later
    format is in use.
    """
    try:
        node = await store.get(CLUSTER_PATH)
    except NotFoundError as error:
        raise NotFoundError(
            "there is no cluster under this metadata root: check the root path of the metadata "
            "URI, or start the first bookie"
        ) from error
    return decode_node(ClusterNode, CLUSTER_PATH, node.value).cluster_id


async def ensure_cluster(store: MetadataStore) -> str:
    """The cluster id; made now if this is a new root. Safe when several do it at once."""
    for attempt in range(_ATTEMPTS):
        try:
            return await read_cluster(store)
        except NotFoundError:
            pass
        data = encode_node(ClusterNode(cluster_id=str(uuid.uuid4())))
        try:
            await store.create(CLUSTER_PATH, data)
        except ConflictError:
            continue  # another was first: its id counts
        except OutcomeUnknownError:
            if attempt == _ATTEMPTS - 1:
                raise
    return await read_cluster(store)
