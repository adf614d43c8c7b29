"""The metadata store on ZooKeeper: kazoo in its own threads, bridged to one asyncio loop.

Every method runs on the loop that called ``connect``. Needs ZooKeeper 3.5 or later.

A lost connection, by kind of operation:

* a read is sent again until ``operation_timeout_s`` is over
* ``create``, ``put`` and ``delete`` look at the node once the session is back. They report success
  if the node is as they wanted it (an ephemeral node must also belong to this session), send again
  if it is untouched, and raise OutcomeUnknownError if neither can be told. Two clients that write
  *equal* bytes over the same version may thus both succeed; who must know that it was alone puts
  something unique into the data
* a transaction raises OutcomeUnknownError: only its caller knows what to look at
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import make_digest_acl

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerClosedError,
    LedgerError,
    MetadataUnavailableError,
    NotFoundError,
    UnauthorizedError,
)
from spark_ledger.limits import METADATA_TIMEOUT_S
from spark_ledger.metadata.base import Operation, Put, Watch
from spark_ledger.metadata.callbacks import Subscription
from spark_ledger.metadata.cluster import CLUSTER_PATH
from spark_ledger.metadata.paths import check_operations, check_path, check_size, parent_of
from spark_ledger.metadata.uri import ZooKeeperAddress
from spark_ledger.metadata.zookeeper.errors import LOST, translated, unknown
from spark_ledger.metadata.zookeeper.hosts import hosts_for_kazoo
from spark_ledger.metadata.zookeeper.identity import StoreIdentity
from spark_ledger.metadata.zookeeper.transactions import check_results, send_transaction
from spark_ledger.metadata.zookeeper.watches import WatchTable
from spark_ledger.types import Versioned

REQUESTS_IN_FLIGHT_MAX = 256
"""Requests of one ``delete_tree`` sent ahead of their answers."""

RESTART_DELAY_S = 0.5
"""Pause before kazoo is started anew after its thread has died."""

_CONNECTION_RETRY = {
    "max_tries": -1,
    "delay": 0.05,
    "backoff": 2,
    "max_delay": 0.5,
    "max_jitter": 0.2,
}
_UNDECIDED = object()

logger = logging.getLogger(__name__)

# kazoo reports every reconnect attempt; the errors raised here say it once.
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.ERROR)

Send = Callable[[], Any]
"""Starts one request and returns kazoo's result object."""

Decide = Callable[[float], Awaitable[Any]]
"""Given the deadline: the result of a write whose reply was lost, or ``_UNDECIDED`` to repeat."""


class ZooKeeperStore:
    """One session, renewed by itself after an expiry; implements ``MetadataStore``."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        *,
        session_timeout_s: float,
        operation_timeout_s: float,
    ) -> None:
        """Use ``connect``."""
        self.address = address
        self._identity = StoreIdentity(address, CLUSTER_PATH)
        self._session_id: int | None = None
        self._operation_timeout_s = operation_timeout_s
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        self._session_lost = False
        self._closed = False
        self._lost: list[Subscription] = []
        self._pending: set[asyncio.Future[Any]] = set()
        self._restart: asyncio.Task[None] | None = None
        self._verification: asyncio.Task[None] | None = None
        self._session_timeout_s = session_timeout_s
        self._client = self._new_client()
        self._watches = WatchTable(lambda: self._client, self._absolute)

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

        Raises MetadataUnavailableError that names the hosts, or UnauthorizedError.
        """
        store = cls(
            address, session_timeout_s=session_timeout_s, operation_timeout_s=operation_timeout_s
        )
        try:
            store._client.start_async()
            try:
                async with asyncio.timeout(connect_timeout_s):
                    await store._connected.wait()
                    await store._open_root()
            except TimeoutError as error:
                raise MetadataUnavailableError(
                    f"no ZooKeeper answered at {address.hosts} within {connect_timeout_s:g} s: "
                    f"check that it runs, and the hosts in the metadata URI {address}"
                ) from error
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, path: str) -> Versioned[bytes]:
        data, stat = await self._get(check_path(path), self._deadline())
        self._identity.learn(path, data)
        return Versioned(data, stat.version)

    async def children(self, path: str) -> list[str]:
        target = self._absolute(check_path(path))
        try:
            names = await self._read(path, lambda: self._client.get_children_async(target))
        except NotFoundError:
            return []
        return sorted(names)

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = True
    ) -> None:
        check_path(path)
        check_size(path, len(data))
        target = self._absolute(path)

        def send() -> Any:
            return self._client.create_async(target, data, ephemeral=ephemeral)

        async def decide(deadline: float) -> object:
            try:
                found, stat = await self._get(path, deadline, after_sync=True)
            except NotFoundError:
                return _UNDECIDED
            if ephemeral:
                ours = stat.ephemeralOwner == self._client.client_id[0]
            elif stat.version > 0:
                raise unknown("create", path, "it was created, and changed since")
            else:
                ours = found == data
            if not ours:
                raise ConflictError(f"metadata node {path!r} exists already")
            return None

        try:
            await self._write("create", path, send, decide)
        except NotFoundError:
            if not make_parents or not parent_of(path):
                raise
            with contextlib.suppress(ConflictError):
                await self.create(parent_of(path), b"")
            await self.create(path, data, ephemeral=ephemeral, make_parents=True)

    async def put(self, path: str, data: bytes, version: int) -> int:
        check_operations([Put(path, data, version)])
        target = self._absolute(path)

        def send() -> Any:
            return self._client.set_async(target, data, version)

        async def decide(deadline: float) -> object:
            found, stat = await self._get(path, deadline, after_sync=True)
            if stat.version == version:
                return _UNDECIDED
            if stat.version != version + 1:
                raise unknown("put", path, f"version {version} is now {stat.version}")
            if found != data:
                raise ConflictError(f"metadata node {path!r}: version {version} was changed")
            return None

        await self._write("put", path, send, decide)
        return version + 1

    async def delete(self, path: str, version: int = -1) -> None:
        target = self._absolute(check_path(path))

        def send() -> Any:
            return self._client.delete_async(target, version)

        async def decide(deadline: float) -> object:
            try:
                _, stat = await self._get(path, deadline, after_sync=True)
            except NotFoundError:
                return None  # gone, as was wanted
            if version not in (-1, stat.version):
                raise ConflictError(f"metadata node {path!r}: version {version} was changed")
            return _UNDECIDED

        await self._write("delete", path, send, decide)

    async def delete_tree(self, path: str) -> None:
        check_path(path)
        levels = [[path]]
        while levels[-1]:
            found = await self._each(levels[-1], self.children)
            below = [
                f"{parent}/{name}"
                for parent, names in zip(levels[-1], found, strict=True)
                for name in names
            ]
            levels.append(below)
        for level in reversed(levels):
            await self._each(level, self._delete_if_there)
        # A child that another client created meanwhile kept its parent alive: look again.
        if await self._exists(path):
            await self.delete_tree(path)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)
        if not operations:
            return

        def send() -> Any:
            return send_transaction(self._client, operations, self._absolute)

        results = await self._write("transaction", operations[0].path, send, None)
        check_results(operations, results)

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        return self._watches.add(check_path(path), callback)

    def on_session_lost(self, callback: Callable[[], None]) -> Watch:
        subscription = Subscription(callback, self._lost.remove)
        self._lost.append(subscription)
        return subscription

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.cancel_all()
        for subscription in list(self._lost):
            subscription.cancel()
        self._connected.set()  # who waits for a connection learns that none will come
        for answer in self._pending:
            if not answer.done():
                answer.set_exception(kz.ConnectionClosedError("closed by this client"))
        if self._restart is not None:
            await asyncio.wait([self._restart])
        await asyncio.shield(asyncio.to_thread(_end, self._client))

    def _absolute(self, path: str) -> str:
        return f"{self.address.root}/{path}"

    def _deadline(self) -> float:
        return self._loop.time() + self._operation_timeout_s

    # -- connection state --------------------------------------------------------------------------

    def _new_client(self) -> KazooClient:
        user, password = self.address.user, self.address.password
        client = KazooClient(
            hosts=hosts_for_kazoo(self.address.hosts, self._session_timeout_s),
            timeout=self._session_timeout_s,
            logger=_kazoo_logger,
            auth_data=[("digest", f"{user}:{password}")] if user else None,
            default_acl=[make_digest_acl(user, password, all=True)] if user else None,
            connection_retry=_CONNECTION_RETRY,
        )

        def listen(state: str) -> None:  # in kazoo's thread
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._on_state, client, state)

        client.add_listener(listen)
        return client

    def _on_state(self, client: KazooClient, state: str) -> None:
        if self._closed or client is not self._client:
            return
        if state != KazooState.CONNECTED:
            self._connected.clear()
            self._session_lost = self._session_lost or state == KazooState.LOST
            if self._client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
                # kazoo's thread has ended by itself: an error of its own must not leave us deaf.
                self._restart = self._loop.create_task(self._start_again())
            return
        if not self._session_lost:
            self._go_on()
        elif self._verification is None:
            self._verification = self._loop.create_task(self._verify())
            self._verification.add_done_callback(self._verified)

    def _go_on(self) -> None:
        """Let operations through, and tell who has to look at the store again."""
        known = self._client.client_id
        if known is None:
            return  # the connection broke again; the next one goes on
        self._session_id = known[0]
        self._connected.set()
        self._watches.on_reconnect()
        if self._session_lost:
            self._session_lost = False
            for subscription in list(self._lost):
                subscription.notify()

    async def _verify(self) -> None:
        """A session was lost, and a new one stands: does the same store answer as before?"""
        if not self._identity.is_known:
            return
        target, deadline, found = self._absolute(self._identity.path), self._deadline(), None
        with contextlib.suppress(kz.NoNodeError):
            await self._submit(lambda: self._client.sync_async(target), deadline)
            found, _ = await self._submit(lambda: self._client.get_async(target), deadline)
        self._identity.check(found)

    def _verified(self, task: asyncio.Task[None]) -> None:
        self._verification = None
        error = None if task.cancelled() else task.exception()
        if self._closed or not self._client.connected:
            return  # the next connection verifies anew
        if error is not None:
            logger.warning("cannot verify ZooKeeper at %s yet: %s", self.address.hosts, error)
            self._loop.call_later(
                RESTART_DELAY_S, self._on_state, self._client, KazooState.CONNECTED
            )
            return
        if self._identity.fault is not None:
            logger.error("%s", self._identity.fault)
        self._go_on()

    async def _start_again(self) -> None:
        logger.error("the connection to ZooKeeper ended by an internal error; starting a new one")
        await asyncio.sleep(RESTART_DELAY_S)
        if not self._closed:
            old, self._client = self._client, self._new_client()
            self._client.start_async()
            await asyncio.to_thread(_end, old)

    async def _wait_connected(self, deadline: float) -> bool:
        """Wait for a connection; False if none stands by the deadline, or it has passed."""
        if self._loop.time() >= deadline:
            return False  # a wait for what is there already would never time out
        if not self._closed and not (self._client.connected and self._is_same_session()):
            self._connected.clear()  # kazoo knows before its listener was heard
        try:
            async with asyncio.timeout_at(deadline):
                await self._connected.wait()
        except TimeoutError:
            return False
        return not self._closed and self._identity.fault is None

    def _is_same_session(self) -> bool:
        known = self._client.client_id
        return known is not None and known[0] == self._session_id

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

    async def _get(self, path: str, deadline: float, *, after_sync: bool = False) -> Any:
        target = self._absolute(path)
        if after_sync:  # a server that lags behind must not answer for a write just made
            await self._read(path, lambda: self._client.sync_async(target), deadline)
        return await self._read(path, lambda: self._client.get_async(target), deadline)

    async def _exists(self, path: str) -> bool:
        target = self._absolute(path)
        return await self._read(path, lambda: self._client.exists_async(target)) is not None

    async def _read(self, path: str, send: Send, deadline: float | None = None) -> Any:
        deadline = self._deadline() if deadline is None else deadline
        cause: BaseException | None = None
        while await self._wait_connected(deadline):
            try:
                return await self._submit(send, deadline)
            except LOST as error:
                cause = error
            except kz.KazooException as error:
                raise translated(error, path, "read") from error
        raise self._unavailable("read", path) from cause

    async def _write(self, action: str, path: str, send: Send, decide: Decide | None) -> Any:
        deadline = self._deadline()
        lost: BaseException | None = None
        while await self._wait_connected(deadline):
            try:
                return await self._submit(send, deadline)
            except LOST as error:
                lost = error
            except kz.KazooException as error:
                raise translated(error, path, action) from error
            if decide is None:
                raise unknown(action, path, "the connection to ZooKeeper broke") from lost
            try:
                result = await decide(deadline)
            except (MetadataUnavailableError, LedgerClosedError, ConfigurationError) as error:
                raise unknown(action, path, str(error)) from error
            if result is not _UNDECIDED:
                return result
            lost = None  # looked: nothing has happened
        if lost is not None:
            raise unknown(action, path, "ZooKeeper did not come back in time") from lost
        raise self._unavailable(action, path)

    async def _submit(self, send: Send, deadline: float) -> Any:
        """One request, answered by kazoo's thread. TimeoutError at the deadline."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any) -> None:
            if answer.done():
                return
            if result.exception is not None:
                answer.set_exception(result.exception)
            else:
                answer.set_result(result.value)

        def completed(result: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(settle, result)

        self._pending.add(answer)
        try:
            send().rawlink(completed)
            async with asyncio.timeout_at(deadline):
                return await answer
        finally:
            self._pending.discard(answer)

    async def _each(self, paths: Sequence[str], act: Callable[[str], Awaitable[Any]]) -> list[Any]:
        results: list[Any] = []
        for start in range(0, len(paths), REQUESTS_IN_FLIGHT_MAX):
            chunk = paths[start : start + REQUESTS_IN_FLIGHT_MAX]
            results += await asyncio.gather(*(act(path) for path in chunk))
        return results

    async def _delete_if_there(self, path: str) -> None:
        with contextlib.suppress(NotFoundError, ConflictError):
            await self.delete(path)

    def _unavailable(self, action: str, path: str) -> LedgerError:
        if self._closed:
            return LedgerClosedError("this connection is closed: connect again")
        if self._identity.fault is not None:
            return self._identity.fault
        return MetadataUnavailableError(
            f"metadata {action} of {path!r}: no ZooKeeper answered at {self.address.hosts} "
            f"within {self._operation_timeout_s:g} s; nothing was changed"
        )


def _end(client: KazooClient) -> None:
    """Blocks until the server has taken the end of the session, or is given up."""
    for step in (client.stop, client.close):
        with contextlib.suppress(kz.KazooException, OSError):
            step()
