"""A ZooKeeper session that is renewed after every loss, and the requests that go over it.

kazoo has threads of its own, for the connection and for watches. What they call here
(``Session._hear``, the ``completed`` of a request) does nothing but post to the loop, so every
field belongs to the loop that made the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import make_digest_acl

from spark_ledger.errors import LedgerClosedError, LedgerError, MetadataUnavailableError
from spark_ledger.limits.metadata import (
    ZOOKEEPER_CONNECT_ATTEMPT_S,
    ZOOKEEPER_PROBE_AFTER_S,
    ZOOKEEPER_RECONNECT_DELAY_S,
    ZOOKEEPER_RECONNECT_DELAY_S_MAX,
    ZOOKEEPER_RECONNECT_JITTER,
    ZOOKEEPER_RESTART_DELAY_S,
)
from spark_ledger.metadata.base import Subscription
from spark_ledger.metadata.notices import read_notice
from spark_ledger.metadata.uri import ZooKeeperAddress
from spark_ledger.metadata.zookeeper.handler import PollingHandler
from spark_ledger.metadata.zookeeper.identity import StoreIdentity
from spark_ledger.metadata.zookeeper.kazoo_api import Client, Result
from spark_ledger.metadata.zookeeper.restored import is_older, newest_change
from spark_ledger.tasks import in_thread

T = TypeVar("T")

_CONNECTION_RETRY: Final = {
    "max_tries": -1,
    "delay": ZOOKEEPER_RECONNECT_DELAY_S,
    "backoff": 2,
    "max_delay": ZOOKEEPER_RECONNECT_DELAY_S_MAX,
    "max_jitter": ZOOKEEPER_RECONNECT_JITTER,
}

logger = logging.getLogger(__name__)

# kazoo reports every reconnect attempt; the errors raised here say it once.
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.ERROR)


class Session:
    """The connection of one store.

    A new session after a lost one must find the identity of the store as it was before any request
    goes over it: a server that lost its data must not pass for the one that had them.
    """

    def __init__(
        self,
        address: ZooKeeperAddress,
        identity: StoreIdentity,
        *,
        session_timeout_s: float,
        operation_timeout_s: float,
        on_connected: Callable[[], None],
    ) -> None:
        """``on_connected`` is called, on the loop, each time that requests can be sent again."""
        self.address = address
        self._identity = identity
        self._session_timeout_s = session_timeout_s
        self._operation_timeout_s = operation_timeout_s
        self._on_connected = on_connected
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        """Requests may be sent, or ``_closed``."""
        self._session_id: int | None = None
        """The session that ``_connected`` speaks of."""
        self._session_lost = False
        """The last session was lost, and nobody has been told yet."""
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        """Ends the client of the last connection."""
        self._on_lost: list[Subscription] = []
        # Futures of different types, which the type of a set cannot say.
        self._pending: set[asyncio.Future[Any]] = set()
        """Requests without an answer."""
        self._restarts: set[asyncio.Task[None]] = set()
        self._verification: asyncio.Task[None] | None = None
        self._verify_again: asyncio.TimerHandle | None = None
        self._outage: asyncio.Task[None] | None = None
        """Looks why there is no connection."""
        self.connections = 0
        """How many there were."""
        self.restored = ""
        """What to say if the store went back in time; empty if it did not."""
        self.restores = 0
        """How often it did."""
        self.client = self._new_client()
        """kazoo's client of now; another one after its thread has died."""

    def start(self) -> None:
        """Begin to connect. Returns at once."""
        self.client.start_async()

    async def close(self) -> None:
        """End the session and fail what waits for it. Idempotent.

        A caller that leaves before it is done does not keep the session alive.
        """
        if self._ending is None:
            self._give_up()
            self._ending = self._loop.create_task(self._end_client())
        await asyncio.shield(self._ending)

    def _give_up(self) -> None:
        self._closed = True
        for subscription in list(self._on_lost):
            subscription.cancel()
        self._connected.set()  # who waits for a connection learns that none will come
        for answer in self._pending:
            if not answer.done():
                answer.set_exception(kz.ConnectionClosedError("closed by this client"))
        if self._outage is not None:
            self._outage.cancel()
        if self._verify_again is not None:
            self._verify_again.cancel()

    async def _end_client(self) -> None:
        if self._restarts:
            await asyncio.wait(self._restarts)
        await in_thread(_end, self.client)

    def on_lost(self, callback: Callable[[], None]) -> Subscription:
        """Call back when a session was lost and a new one stands."""
        subscription = Subscription(callback, self._on_lost.remove)
        self._on_lost.append(subscription)
        return subscription

    # -- requests ----------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When an operation that begins now is given up."""
        return self._loop.time() + self._operation_timeout_s

    async def wait_first_connection(self) -> None:
        """Wait until the server has accepted the session, without a limit of time."""
        await self._connected.wait()

    async def wait_connected(self, deadline: float) -> bool:
        """Wait for a connection; False if none stands by the deadline, or it has passed."""
        if self._loop.time() >= deadline:
            return False  # a wait for what is there already would never time out
        if not self._closed and not (self.client.connected and self._is_same_session()):
            self._connected.clear()  # kazoo knows before its listener was heard
        try:
            async with asyncio.timeout_at(deadline):
                await self._connected.wait()
        except TimeoutError:
            return False
        return not self._closed and self._identity.fault is None

    async def submit(self, send: Callable[[], Result[T]], deadline: float) -> T:
        """Send one request and wait for its answer.

        Raises kazoo's exceptions, and TimeoutError if there is no answer by the deadline.
        """
        answer: asyncio.Future[T] = self._loop.create_future()

        def settle(result: Result[T]) -> None:
            if answer.done():
                return
            if result.exception is not None:
                answer.set_exception(result.exception)
            else:
                answer.set_result(result.value)

        def completed(result: Result[T]) -> None:  # in kazoo's thread
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(settle, result)

        self._pending.add(answer)
        try:
            send().rawlink(completed)
            async with asyncio.timeout_at(deadline):
                return await answer
        finally:
            self._pending.discard(answer)

    def why_unavailable(self, action: str, path: str) -> LedgerError:
        """The error of an operation for which ``wait_connected`` gave up."""
        if self._closed:
            return LedgerClosedError("this connection is closed: connect again")
        if self._identity.fault is not None:
            return self._identity.fault
        return MetadataUnavailableError(
            f"metadata {action} of {path!r}: no ZooKeeper answered at {self.address.hosts} "
            f"within {self._operation_timeout_s:g} s; nothing was changed"
            f"{read_notice(self.address.hosts)}"
        )

    # -- the state of the connection ---------------------------------------------------------------

    def _new_client(self, *, listens: bool = True) -> Client:
        user, password = self.address.user, self.address.password
        client: Client = KazooClient(
            hosts=hosts_for_kazoo(self.address.hosts, self._session_timeout_s),
            timeout=self._session_timeout_s,
            logger=_kazoo_logger,
            auth_data=[("digest", f"{user}:{password}")] if user else None,
            default_acl=[make_digest_acl(user, password, all=True)] if user else None,
            connection_retry=_CONNECTION_RETRY,
            handler=PollingHandler(),
        )
        if listens:
            client.add_listener(lambda state: self._hear(client, state))
        return client

    def _hear(self, client: Client, state: str) -> None:
        """In kazoo's thread: the state of its connection has changed."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._on_state, client, state)

    def _on_state(self, client: Client, state: str) -> None:
        if self._closed or client is not self.client:
            return
        if state != KazooState.CONNECTED:
            self._connected.clear()
            self._session_lost = self._session_lost or state == KazooState.LOST
            if client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
                # kazoo's thread has ended by an error of its own; without another one no event
                # would ever come again.
                logger.error("the connection to ZooKeeper ended by an internal error: a new one")
                self._restart_soon()
            elif self._outage is None:
                self._look_into_outage()
            return
        if not self._session_lost:
            self._resume()
        elif self._verification is None:
            if self._verify_again is not None:
                self._verify_again.cancel()  # a new connection has come before
            self._verification = self._loop.create_task(self._verify())
            self._verification.add_done_callback(self._verified)

    def _resume(self) -> None:
        """Let requests through, and tell who has to look at the store again."""
        known = self.client.client_id
        if known is None:
            return  # the connection broke again; the next one resumes
        self._session_id = known[0]
        self.connections += 1
        self._connected.set()
        self._on_connected()
        if self._session_lost:
            self._session_lost = False
            for subscription in list(self._on_lost):
                subscription.notify()

    async def _verify(self) -> None:
        """A session was lost, and a new one stands: does the same store answer as before?"""
        if not self._identity.is_known:
            return
        target, deadline = self.address.absolute(self._identity.path), self.deadline()
        found: bytes | None = None
        with contextlib.suppress(kz.NoNodeError):
            await self.submit(lambda: self.client.sync_async(target), deadline)
            found, _ = await self.submit(lambda: self.client.get_async(target), deadline)
        self._identity.check(found)

    def _verified(self, task: asyncio.Task[None]) -> None:
        self._verification = None
        error = None if task.cancelled() else task.exception()
        if self._closed or not self.client.connected:
            return  # the next connection verifies anew
        if error is not None:
            logger.warning("cannot verify ZooKeeper at %s yet: %s", self.address.hosts, error)
            self._verify_again = self._loop.call_later(
                ZOOKEEPER_RESTART_DELAY_S, self._on_state, self.client, KazooState.CONNECTED
            )
            return
        if self._identity.fault is not None:
            logger.error("%s", self._identity.fault)
        self._resume()

    def _look_into_outage(self) -> None:
        self._outage = self._loop.create_task(self._explain_outage(self.client))
        self._outage.add_done_callback(self._outage_ended)

    async def _explain_outage(self, client: Client) -> None:
        """While there is no connection: does the store refuse it because it went back in time?"""
        path = self.address.root
        while True:
            await asyncio.sleep(ZOOKEEPER_PROBE_AFTER_S)
            if self._closed or client is not self.client or client.connected:
                return
            probe = self._new_client(listens=False)
            newest = await asyncio.to_thread(newest_change, probe, path)
            if self._closed or client is not self.client or client.connected:
                return
            if newest is not None and newest < client.last_zxid:
                self.restored = is_older(self.address)
                self.restores += 1
                logger.error("%s", self.restored)
                self._session_lost = True
                self._restart_soon()
                return

    def _outage_ended(self, task: asyncio.Task[None]) -> None:
        self._outage = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("nobody looks why ZooKeeper does not answer", exc_info=error)
        elif not (self._closed or self.client.connected or self._restarts):
            self._look_into_outage()  # it was connected for a moment

    def _restart_soon(self) -> None:
        restart = self._loop.create_task(self._restart(self.client))
        self._restarts.add(restart)
        restart.add_done_callback(self._restarts.discard)

    async def _restart(self, old: Client) -> None:
        """Go on with a client that has seen nothing; its session is another one."""
        await asyncio.sleep(ZOOKEEPER_RESTART_DELAY_S)
        if not self._closed and self.client is old:  # there may be two reasons to replace it
            self.client = self._new_client()
            self.client.start_async()
            await in_thread(_end, old)

    def _is_same_session(self) -> bool:
        known = self.client.client_id
        return known is not None and known[0] == self._session_id


def hosts_for_kazoo(hosts: str, session_timeout_s: float) -> str:
    """The hosts, several times each, so that one attempt to connect is short.

    kazoo waits for the answer to its first message for the session timeout divided by the number
    of hosts, and that cannot be set in another way.
    """
    names = hosts.split(",")
    times = round(session_timeout_s / ZOOKEEPER_CONNECT_ATTEMPT_S / len(names))
    return ",".join(names * max(1, times))


def _end(client: Client) -> None:
    """Blocks until the server has taken the end of the session, or is given up."""
    for step in (client.stop, client.close):
        with contextlib.suppress(kz.KazooException, OSError):
            step()
