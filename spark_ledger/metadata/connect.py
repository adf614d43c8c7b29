"""open_store: from a metadata URI to a connected store."""

from __future__ import annotations

from spark_ledger.limits import METADATA_TIMEOUT_S
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.uri import parse_uri

SESSION_TIMEOUT_S = 10.0
"""A client silent for this long loses its ephemeral nodes. The server bounds it to 2-20 ticks."""


async def open_store(
    uri: str,
    *,
    session_timeout_s: float = SESSION_TIMEOUT_S,
    connect_timeout_s: float = METADATA_TIMEOUT_S,
    operation_timeout_s: float = METADATA_TIMEOUT_S,
) -> MetadataStore:
    """Connect to the store that ``uri`` names, ``zk://host1:2181,host2:2181/ledgers``.

    Credentials go before the hosts, ``zk://user:password@host...``; they are never printed.
    Raises ConfigurationError for a malformed URI, MetadataUnavailableError, UnauthorizedError.
    """
    address = parse_uri(uri)
    # kazoo is loaded here and not above: importing spark_ledger shall not cost it.
    from spark_ledger.metadata.zookeeper.store import ZooKeeperStore

    return await ZooKeeperStore.connect(
        address,
        session_timeout_s=session_timeout_s,
        connect_timeout_s=connect_timeout_s,
        operation_timeout_s=operation_timeout_s,
    )
