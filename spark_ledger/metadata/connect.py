"""From a metadata URI to a connected store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spark_ledger.limits.metadata import METADATA_TIMEOUT_S, SESSION_TIMEOUT_S
from spark_ledger.metadata.base import SizedStore
from spark_ledger.metadata.uri import parse_uri


async def open_store(
    uri: str,
    *,
    session_timeout_s: float = SESSION_TIMEOUT_S,
    connect_timeout_s: float = METADATA_TIMEOUT_S,
    operation_timeout_s: float = METADATA_TIMEOUT_S,
) -> SizedStore:
    """Connect to the store that ``uri`` names, ``zk://host1:2181,host2:2181/ledgers``.

    Credentials go before the hosts, ``zk://user:password@host...``; they are never printed.

    Raises ConfigurationError if the URI is malformed, MetadataUnavailableError if no server
    answers in time, UnauthorizedError if the credentials are refused.
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


@asynccontextmanager
async def connected_store(uri: str) -> AsyncIterator[SizedStore]:
    """The store that ``uri`` names, for a while. Raises as ``open_store``."""
    store = await open_store(uri)
    try:
        yield store
    finally:
        await store.close()
