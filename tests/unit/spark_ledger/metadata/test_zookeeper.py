"""The ZooKeeper store over a scripted kazoo: moments that no real server produces on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError

from spark_ledger.errors import MetadataUnavailableError, OutcomeUnknownError
from spark_ledger.metadata.uri import parse_uri
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore

T = TypeVar("T")
OURS = 7
"""The session of the store."""


@dataclass
class Answer(Generic[T]):
    """kazoo's result object, filled already."""

    value: T
    exception: BaseException | None = None

    def rawlink(self, callback: Callable[[Answer[T]], None]) -> None:
        callback(self)


@dataclass
class NodeStat:
    version: int = 0
    ephemeralOwner: int = OURS


class ScriptedKazoo:
    """The reply to ``create`` is lost; the node is there, made by this session."""

    def __init__(self) -> None:
        self.connected = True
        self.breaks_after_get = False

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return (OURS, b"") if self.connected else None

    def create_async(self, path: str, _value: bytes, *, ephemeral: bool) -> Answer[str]:
        assert ephemeral
        return Answer(path, ConnectionLoss())

    def sync_async(self, path: str) -> Answer[str]:
        return Answer(path)

    def get_async(self, path: str) -> Answer[tuple[bytes, NodeStat]]:
        if path.endswith("cluster"):
            return Answer((b"", NodeStat()), NoNodeError())
        self.connected = not self.breaks_after_get
        return Answer((b"", NodeStat()))


def connected_store(kazoo: ScriptedKazoo) -> ZooKeeperStore:
    store = ZooKeeperStore(
        parse_uri("zk://127.0.0.1:1/ledgers"), session_timeout_s=10.0, operation_timeout_s=1.0
    )
    store._session.client = kazoo  # type: ignore[assignment]
    store._session._on_state(store._session.client, "CONNECTED")
    return store


def test_create_ephemeral_after_lost_reply_is_ours() -> None:
    async def main() -> None:
        await connected_store(ScriptedKazoo()).create("e", b"", ephemeral=True)

    asyncio.run(main())


def test_create_ephemeral_after_lost_reply_and_lost_look_is_unknown() -> None:
    """Without a connection kazoo knows no session, so nobody can tell whose the node is."""

    async def main() -> None:
        kazoo = ScriptedKazoo()
        kazoo.breaks_after_get = True
        with pytest.raises(OutcomeUnknownError, match="broke"):
            await connected_store(kazoo).create("e", b"", ephemeral=True)

    asyncio.run(main())


def test_whose_node_it_is_nobody_can_tell_once_the_connection_broke() -> None:
    """A bookie that took its own for that of another process would end."""

    async def main() -> None:
        kazoo = ScriptedKazoo()
        store = connected_store(kazoo)
        assert await store.is_own("e")
        kazoo.breaks_after_get = True
        with pytest.raises(MetadataUnavailableError, match=r"'e'.*broke again"):
            await store.is_own("e")

    asyncio.run(main())
