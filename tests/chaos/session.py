"""Session: what the roles of one client process share, and the signals that steer it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kazoo.client import KazooClient

from spark_ledger.aio import StreamClient
from spark_ledger.config import ClientConfig
from spark_ledger.errors import ConflictError, LedgerError, RetryableError
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore
from spark_ledger.transport.grpc_aio import GrpcTransport
from tests.chaos.recorder import Recorder

LEDGER_TAG = {"purpose": "chaos"}
CONFIG = ClientConfig(
    add_timeout_s=2.0, read_timeout_s=2.0, metadata_timeout_s=4.0, session_timeout_s=3.0
)
"""Short enough that many faults fit into a minute."""

LIST_INTERVAL_S = 0.5


@dataclass(eq=False)
class Session:
    """A connected client, its name, its seeded choices, and what it knows of others' ledgers."""

    name: str
    client: StreamClient
    recorder: Recorder
    rng: random.Random
    appends_per_s: float
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    recover_all: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody wants every open ledger recovered now: a writer is paused."""
    others: list[int] = field(default_factory=list)
    """Ledgers of all writers, ascending."""
    closed: set[int] = field(default_factory=set)

    async def pause(self, seconds: float) -> bool:
        """Wait, or until it is time to stop. True: go on."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return True
        return False

    async def keep_list(self) -> None:
        """Role: know which ledgers there are."""
        seen: dict[int, bool] = {}
        while await self.pause(LIST_INTERVAL_S):
            try:
                for ledger_id in await self.client.list_ledgers():
                    if ledger_id not in seen:
                        metadata = await self.client.ledger_metadata(ledger_id)
                        seen[ledger_id] = metadata.custom_metadata == LEDGER_TAG
            except LedgerError:
                continue  # ZooKeeper is away, or the ledger was deleted: look again
            self.others = sorted(ledger_id for ledger_id, ours in seen.items() if ours)

    def expire_session(self) -> None:
        """Have ZooKeeper end our session, as it does after a silence; blocks."""
        store = self.client.store
        assert isinstance(store, ZooKeeperStore)
        thief = KazooClient(store.address.hosts, client_id=store._session.client.client_id)
        try:
            thief.start(timeout=5)
        finally:
            thief.stop()
            thief.close()


@asynccontextmanager
async def connected(uri: str, bookies: dict[str, str]) -> AsyncIterator[StreamClient]:
    """A client whose connections to bookies go where ``bookies`` says; waits for ZooKeeper."""
    client = await _connect(uri, bookies)
    try:
        yield client
    finally:
        await client.close()


async def _connect(uri: str, bookies: dict[str, str]) -> StreamClient:
    while True:
        try:
            store = await open_store(uri, session_timeout_s=CONFIG.session_timeout_s)
        except RetryableError:
            continue
        try:
            return await StreamClient.over(store, GrpcTransport(bookies.get), CONFIG)
        except (RetryableError, ConflictError):
            await store.close()
