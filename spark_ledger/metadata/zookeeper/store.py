"""The metadata store on ZooKeeper: what each operation means, also when its reply is lost.

Every method runs on the loop that called ``connect``. Needs ZooKeeper 3.5 or later.

A lost connection, by kind of operation:

* a read is sent again until ``operation_timeout_s`` is over
* ``create``, ``put`` and ``delete`` look at the node once the session is back. They report success
  if the node is as they wanted it (an ephemeral node must also belong to this session), send again
  if it is untouched, and raise OutcomeUnknownError if neither can be told. Two clients that write
  *equal* bytes over the same version may thus both succeed; a caller who must know that it was
  alone puts something unique into the data
* a transaction raises OutcomeUnknownError: only its caller knows what to look at
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from kazoo import exceptions as kz

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerClosedError,
    MetadataUnavailableError,
    NotFoundError,
    UnauthorizedError,
)
from spark_ledger.limits.metadata import METADATA_TIMEOUT_S
from spark_ledger.metadata.base import (
    Check,
    Create,
    Delete,
    Operation,
    Put,
    StoreSize,
    Watch,
    check_operations,
    check_path,
    check_size,
    parent_of,
)
from spark_ledger.metadata.cluster import CLUSTER_PATH, cluster_identity
from spark_ledger.metadata.notices import read_notice
from spark_ledger.metadata.uri import ZooKeeperAddress
from spark_ledger.metadata.zookeeper.errors import LOST, translated, unknown
from spark_ledger.metadata.zookeeper.identity import StoreIdentity
from spark_ledger.metadata.zookeeper.kazoo_api import Client, Result, Stat
from spark_ledger.metadata.zookeeper.session import Session
from spark_ledger.metadata.zookeeper.size import ask_size
from spark_ledger.metadata.zookeeper.watches import WatchTable
from spark_ledger.types import Versioned

T = TypeVar("T")

_VERSIONED: Final = ("put", "transaction")
"""Writes that mean a version which their caller has read."""

Look: TypeAlias = Callable[[float], Awaitable[bool]]
"""Given the deadline: did a write happen whose reply was lost? False means that it may be sent
again; neither is OutcomeUnknownError."""


class ZooKeeperStore:
    """Implements ``MetadataStore``. All fields belong to the loop that called ``connect``."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        *,
        session_timeout_s: float,
        operation_timeout_s: float,
    ) -> None:
        """Use ``connect``."""
        self.address = address
        self._identity = StoreIdentity(address, CLUSTER_PATH, cluster_identity)
        self._session = Session(
            address,
            self._identity,
            session_timeout_s=session_timeout_s,
            operation_timeout_s=operation_timeout_s,
            on_connected=lambda: self._watches.on_reconnect(),
        )
        self._watches = WatchTable(self._session)

    @classmethod
    async def connect(
        cls,
        address: ZooKeeperAddress,
        *,
        session_timeout_s: float,
        connect_timeout_s: float = METADATA_TIMEOUT_S,
        operation_timeout_s: float = METADATA_TIMEOUT_S,
    ) -> ZooKeeperStore:
        """Connect, create the root if it is missing, and check that the credentials open it.

        Once the cluster's node was read, each new session must find it as it was. Otherwise every
        operation raises ConfigurationError: another store answers, or the server lost its data.

        Raises MetadataUnavailableError if no server answers in time, UnauthorizedError if the
        credentials do not open the root.
        """
        store = cls(
            address, session_timeout_s=session_timeout_s, operation_timeout_s=operation_timeout_s
        )
        try:
            store._session.start()
            try:
                async with asyncio.timeout(connect_timeout_s):
                    await store._session.wait_first_connection()
                    await store._open_root()
            except TimeoutError as error:
                raise MetadataUnavailableError(
                    f"no ZooKeeper answered at {address.hosts} within {connect_timeout_s:g} s: "
                    f"check that it runs, and the hosts in the metadata URI {address}"
                    f"{read_notice(address.hosts)}"
                ) from error
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, path: str) -> Versioned[bytes]:
        data, stat = await self._get(check_path(path), self._session.deadline())
        self._identity.learn(path, data)
        return Versioned(data, stat.version)

    async def get_latest(self, path: str) -> Versioned[bytes]:
        data, stat = await self._get(check_path(path), self._session.deadline(), after_sync=True)
        self._identity.learn(path, data)
        return Versioned(data, stat.version)

    async def is_own(self, path: str) -> bool:
        _, stat = await self._get(check_path(path), self._session.deadline(), after_sync=True)
        known = self._client.client_id
        if known is None:  # offline again, so nobody can tell
            raise MetadataUnavailableError(f"metadata node {path!r}: the connection broke again")
        return stat.ephemeralOwner == known[0]

    async def children(self, path: str) -> list[str]:
        target = self.address.absolute(check_path(path))
        try:
            names = await self._read(path, lambda: self._client.get_children_async(target))
        except NotFoundError:
            return []
        return sorted(names)

    async def size(self) -> StoreSize:
        """How large the server is, as far as it says."""
        return await asyncio.to_thread(ask_size, self._client)

    async def listing(self, path: str) -> Versioned[list[str]]:
        target = self.address.absolute(check_path(path))
        try:
            names, stat = await self._read(
                path, lambda: self._client.get_children_async(target, include_data=True)
            )
        except NotFoundError:
            return Versioned([], -1)
        return Versioned(sorted(names), stat.cversion)

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = True
    ) -> None:
        check_path(path)
        check_size(path, len(data))
        target = self.address.absolute(path)

        def send() -> Result[str]:
            return self._client.create_async(target, data, ephemeral=ephemeral)

        async def look(deadline: float) -> bool:
            try:
                found, stat = await self._get(path, deadline, after_sync=True)
            except NotFoundError:
                return False
            if ephemeral:
                known = self._client.client_id  # None: offline again, so nobody can tell
                if known is None:
                    raise unknown("create", path, "the connection to ZooKeeper broke")
                ours = stat.ephemeralOwner == known[0]
            elif stat.version > 0:
                raise unknown("create", path, "it was created, and changed since")
            else:
                ours = found == data
            if not ours:
                raise ConflictError(f"metadata node {path!r} exists already")
            return True

        try:
            await self._write("create", path, send, look)
        except NotFoundError:
            if not make_parents or not parent_of(path):
                raise
            with contextlib.suppress(ConflictError):
                await self.create(parent_of(path), b"")
            await self.create(path, data, ephemeral=ephemeral, make_parents=True)

    async def put(self, path: str, data: bytes, version: int) -> int:
        check_operations([Put(path, data, version)])
        target = self.address.absolute(path)

        def send() -> Result[Stat]:
            return self._client.set_async(target, data, version)

        async def look(deadline: float) -> bool:
            found, stat = await self._get(path, deadline, after_sync=True)
            if stat.version == version:
                return False
            if stat.version != version + 1:
                raise unknown("put", path, f"version {version} is now {stat.version}")
            if found != data:
                raise ConflictError(f"metadata node {path!r}: version {version} was changed")
            return True

        await self._write("put", path, send, look)
        return version + 1

    async def delete(self, path: str, version: int = -1) -> None:
        target = self.address.absolute(check_path(path))

        def send() -> Result[bool]:
            return self._client.delete_async(target, version)

        async def look(deadline: float) -> bool:
            try:
                _, stat = await self._get(path, deadline, after_sync=True)
            except NotFoundError:
                return True  # gone, as was wanted
            if version not in (-1, stat.version):
                raise ConflictError(f"metadata node {path!r}: version {version} was changed")
            return False

        await self._write("delete", path, send, look)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)
        if not operations:
            return
        results = await self._write(
            "transaction", operations[0].path, lambda: self._send_transaction(operations), None
        )
        assert results is not None, "a transaction whose reply is lost raises"
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, kz.RolledBackError | kz.RuntimeInconsistency):
                continue  # undone, or not tried, because of another part
            if isinstance(result, Exception):
                raise translated(result, operation.path, "transaction") from result

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        return self._watches.add(check_path(path), callback)

    def on_session_lost(self, callback: Callable[[], None]) -> Watch:
        return self._session.on_lost(callback)

    @property
    def connections(self) -> int:
        return self._session.connections

    @property
    def restored(self) -> str:
        return self._session.restored

    @property
    def restores(self) -> int:
        return self._session.restores

    async def close(self) -> None:
        self._watches.close()
        await self._session.close()

    # -- the root ----------------------------------------------------------------------------------

    async def _open_root(self) -> None:
        """Create the root level by level, then read it: a wrong digest shows only when used."""
        root = self.address.root
        names = root.strip("/").split("/")
        try:
            for depth in range(1, len(names) + 1):
                await self._ensure_level("/" + "/".join(names[:depth]))
            await self._read(root, lambda: self._client.get_async(root))
        except UnauthorizedError as error:
            who = f"user {self.address.user!r}" if self.address.user else "no user"
            raise UnauthorizedError(
                f"ZooKeeper at {self.address.hosts} refuses {root!r} to {who}: check the "
                "credentials in the metadata URI (zk://user:password@host:2181/root)"
            ) from error

    async def _ensure_level(self, level: str) -> None:
        found = await self._read(level, lambda: self._client.exists_async(level))
        if found is None:
            with contextlib.suppress(ConflictError):
                await self._write("create", level, lambda: self._client.create_async(level), None)

    # -- requests ----------------------------------------------------------------------------------

    @property
    def _client(self) -> Client:
        """kazoo's client of now; a request that is sent again must ask for it again."""
        return self._session.client

    async def _get(
        self, path: str, deadline: float, *, after_sync: bool = False
    ) -> tuple[bytes, Stat]:
        target = self.address.absolute(path)
        if after_sync:  # a server that lags behind must not answer for a write just made
            await self._read(path, lambda: self._client.sync_async(target), deadline)
        return await self._read(path, lambda: self._client.get_async(target), deadline)

    async def _read(
        self, path: str, send: Callable[[], Result[T]], deadline: float | None = None
    ) -> T:
        """Send a read until it is answered. ``deadline`` None: that of a new operation."""
        deadline = self._session.deadline() if deadline is None else deadline
        cause: BaseException | None = None
        while await self._session.wait_connected(deadline):
            try:
                return await self._session.submit(send, deadline)
            except LOST as error:
                cause = error
            except kz.KazooException as error:
                raise translated(error, path, "read") from error
        raise self._session.why_unavailable("read", path) from cause

    async def _write(
        self, action: str, path: str, send: Callable[[], Result[T]], look: Look | None
    ) -> T | None:
        """Send a write; its answer, or None if ``look`` found that it has happened.

        Without ``look``, a lost reply raises OutcomeUnknownError at once. So does a put or a
        transaction for which the connection broke: the store may have been restored meanwhile, and
        have given the version again that the caller means.
        """
        connections = self._session.connections
        deadline = self._session.deadline()
        lost: BaseException | None = None
        while await self._session.wait_connected(deadline):
            if self._session.connections != connections and action in _VERSIONED:
                raise unknown(action, path, "the connection to ZooKeeper broke") from lost
            try:
                return await self._session.submit(send, deadline)
            except LOST as error:
                lost = error
            except kz.KazooException as error:
                raise translated(error, path, action) from error
            if look is None:
                raise unknown(action, path, "the connection to ZooKeeper broke") from lost
            try:
                has_happened = await look(deadline)
            except (MetadataUnavailableError, LedgerClosedError, ConfigurationError) as error:
                raise unknown(action, path, str(error)) from error
            if has_happened:
                return None
            lost = None  # looked: nothing has happened
        if lost is not None:
            raise unknown(action, path, "ZooKeeper did not come back in time") from lost
        raise self._session.why_unavailable(action, path)

    def _send_transaction(self, operations: Sequence[Operation]) -> Result[list[object]]:
        request = self._client.transaction()
        for operation in operations:
            target = self.address.absolute(operation.path)
            match operation:
                case Check(_, version):
                    request.check(target, version)
                case Create(_, data):
                    request.create(target, data)
                case Put(_, data, version):
                    request.set_data(target, data, version)
                case Delete(_, version):
                    request.delete(target, version)
        return request.commit_async()
