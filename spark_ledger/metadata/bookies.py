"""Bookies in the metadata store: ephemeral registrations and identity cookies.

``bookies/writable/<id>`` and ``bookies/readonly/<id>`` are ephemeral and hold a ``BookieInfo``;
``bookies/cookies/<id>`` stays, so its children are all bookies that ever belonged to the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from spark_ledger.errors import (
    BookieReplacedError,
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerClosedError,
    LedgerError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.limits.metadata import (
    METADATA_ATTEMPTS,
    REGISTER_RETRY_DELAY_S,
    REGISTRATION_MARGIN_S,
    REGISTRATION_POLL_S,
    SESSION_TIMEOUT_S,
)
from spark_ledger.metadata.base import MetadataStore, Watch, again
from spark_ledger.metadata.cluster import read_cluster_node
from spark_ledger.metadata.codec import decode_bookie, encode_bookie
from spark_ledger.tasks import cancel, wait_at_most
from spark_ledger.types import BookieId, BookieInfo, BookieState, PlacementPolicy, Versioned

BookieIds = list[BookieId]
"""Inside of a class that has a method ``list``."""

BOOKIES_PATH: Final = "bookies"
COOKIES_PATH: Final = f"{BOOKIES_PATH}/cookies"

_BOOKIE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

logger = logging.getLogger(__name__)


def check_bookie_id(bookie_id: str) -> BookieId:
    """The id itself, if it may name a node. Raises ConfigurationError if it may not."""
    if not _BOOKIE_ID.fullmatch(bookie_id):
        raise ConfigurationError(
            f"bookie id {bookie_id!r}: use 1 to 128 letters, digits and . _ : - "
            "(starting with a letter or digit)"
        )
    return BookieId(bookie_id)


def _path(state: BookieState, bookie_id: BookieId) -> str:
    return f"{BOOKIES_PATH}/{state.value}/{check_bookie_id(bookie_id)}"


def _log_replaced(reason: str) -> None:
    logger.error("%s", reason)


async def _nothing() -> None:
    pass


class BookieRegistry:
    """Registrations and cookies. A bookie registers itself with it; everyone else only reads."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        on_replaced: Callable[[str], None] = _log_replaced,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        at_contact: Callable[[], Awaitable[None]] = _nothing,
        once_made: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """``on_replaced`` is called, with a sentence, once another process is registered as the
        bookie that this registry had registered. ``at_contact`` is done before the bookie is
        registered, and after each reconnect, and ``once_made`` when its node was made; what they
        raise counts as raised by that."""
        self._store = store
        self._at_contact = at_contact
        self._once_made = once_made
        self._contact = 0
        """The connection that it was done on, as the store counts."""
        self._on_replaced = on_replaced
        self._vacant_in_s = session_timeout_s + REGISTRATION_MARGIN_S
        self._info: BookieInfo | None = None
        self._session = 0
        """Counts lost sessions."""
        self._lost_at, self._lost_on = -math.inf, 0
        """When one was lost that may be registered still, or when a later connection was first
        seen: a metadata store that was restarted counts all timeouts anew. ``_lost_on`` is the
        number of the connection."""
        self._published_in = -1
        """The session that the node was made in, as ``_session`` counted."""
        self._published_at = ""
        """The path of the node."""
        self._published_on = 0
        """The connection that it was last seen on as the only one."""
        self._withdrawn: BookieInfo | None = None
        """What was registered last, while a node of it may be there although it was withdrawn."""
        self._lock = asyncio.Lock()
        self._watches: list[Watch] = []
        self._look_again = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- registration of this process --------------------------------------------------------------

    @property
    def registered(self) -> bool:
        """False before ``register``, after ``deregister`` and while a lost session is renewed."""
        return self._published_in == self._session

    async def wait_until_vacant(self, bookie_id: BookieId) -> None:
        """Wait until no other session is registered as this bookie.

        The session of a process that was killed ends by itself, a while later. Nobody can tell
        before that whether its process lives, so its node is never deleted (rule S12).

        Raises BookieReplacedError if it is still there after the session timeout and a margin, and
        what the metadata store raises. Each reconnect begins that time anew, as a metadata store
        that was restarted does with the timeouts of its sessions.
        """
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        watch = self.watch_one(bookie_id, changed.set)
        deadline, connection = loop.time() + self._vacant_in_s, self._store.connections
        try:
            while path := await self._taken(bookie_id):
                if connection != self._store.connections:
                    connection = self._store.connections
                    deadline = loop.time() + self._vacant_in_s
                left = deadline - loop.time()
                if left <= 0:
                    raise BookieReplacedError(
                        f"another process is registered as bookie {bookie_id!r}, and has not gone "
                        f"within {self._vacant_in_s:g} s (metadata node {path!r}): two processes "
                        "cannot be one bookie; stop the other one, or leave this one stopped"
                    )
                logger.info(
                    "an earlier session is registered as bookie %s: waiting until it ends "
                    "(%.0f s more at most)",
                    bookie_id,
                    left,
                )
                await wait_at_most(changed, min(left, REGISTRATION_POLL_S))
                changed.clear()
        finally:
            watch.cancel()

    async def register(self, info: BookieInfo) -> None:
        """Announce this bookie, and keep it announced over lost sessions until ``deregister``.

        Call it again with changed information to update it; while the state changes, a reader may
        see the bookie in both states.

        Raises BookieReplacedError if another session is registered as this bookie (see
        ``wait_until_vacant``), MetadataUnavailableError, OutcomeUnknownError (calling again is
        safe), UnauthorizedError if the credentials do not allow it.
        """
        check_bookie_id(info.bookie_id)
        assert self._info is None or self._info.bookie_id == info.bookie_id, "one bookie each"
        self._info = info
        if not self._watches:
            self._watches = [
                self._store.on_session_lost(self._on_session_lost),
                self.watch_one(info.bookie_id, self._look_again.set),
            ]
        await self._publish()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    async def deregister(self) -> None:
        """Withdraw the registration. Idempotent; one that failed or was left goes on where it was.

        Raises MetadataUnavailableError, OutcomeUnknownError if no attempt brought a reply.
        """
        for watch in self._watches:
            watch.cancel()
        self._watches = []
        if self._task is not None:
            await cancel(self._task)
            self._task = None
        async with self._lock:
            self._withdrawn, self._info = self._info or self._withdrawn, None
            self._published_in = -1
            if self._withdrawn is not None:
                for state in BookieState:
                    await self._remove_own(_path(state, self._withdrawn.bookie_id))
                self._withdrawn = None

    async def _publish(self) -> None:
        async with self._lock:
            info = self._info
            if info is None:
                return
            # Read before anything is sent: a session that is lost on the way counts as lost.
            session, connection = self._session, self._store.connections
            path, data = _path(info.state, info.bookie_id), encode_bookie(info)
            await self._make_contact()
            if not (self.registered and await self._update(path, data)):
                await self._create(info.bookie_id, path, data)
                # Once more: who took it out between the look and the node saw none (rule R10).
                await self._once_made()
            # Removed last, so that a bookie that changes its state is always in one of the two.
            for state in BookieState:
                if state is not info.state:
                    await self._remove_own(_path(state, info.bookie_id))
            self._published_in, self._published_at = session, path
            self._published_on = connection
            if self.registered:
                self._lost_at = -math.inf  # no session of before was in the way

    async def _make_contact(self) -> None:
        connection = self._store.connections
        if self._contact != connection:
            await self._at_contact()
            self._contact = connection

    async def _update(self, path: str, data: bytes) -> bool:
        """Set our own node; False if there is none, because the bookie changes its state."""
        for _ in range(METADATA_ATTEMPTS):
            try:
                node = await self._store.get(path)
                if not await self._store.is_own(path):
                    return False
                if node.value != data:
                    await self._store.put(path, data, node.version)
            except NotFoundError:
                return False
            except (ConflictError, OutcomeUnknownError):
                continue
            return True
        return False

    async def _create(self, bookie_id: BookieId, path: str, data: bytes) -> None:
        """Create the node, unless another session has one.

        A node of this session is an earlier attempt of ours, whose reply was lost.
        """
        for attempt in range(METADATA_ATTEMPTS):
            await self._check_vacant(bookie_id)
            try:
                await self._store.create(path, data, ephemeral=True)
            except ConflictError:
                if await self._update(path, data):
                    return
            except OutcomeUnknownError:
                if attempt == METADATA_ATTEMPTS - 1:
                    raise
            else:
                return
        raise ConflictError(f"metadata node {path!r} comes and goes: trying again later")

    async def _check_vacant(self, bookie_id: BookieId) -> None:
        """Raises BookieReplacedError if another session is registered as this bookie."""
        path = await self._taken(bookie_id)
        if path:
            raise BookieReplacedError(
                f"another process is registered as bookie {bookie_id!r} (metadata node {path!r}): "
                "two processes cannot be one bookie"
            )

    async def _taken(self, bookie_id: BookieId) -> str:
        """The node by which another session is registered as this bookie, or ""."""
        for state in BookieState:
            path = _path(state, bookie_id)
            with contextlib.suppress(NotFoundError):
                if not await self._store.is_own(path):
                    return path
        return ""

    async def _remove_own(self, path: str) -> None:
        """Delete a node of this session; one of another session is not ours to delete."""
        with contextlib.suppress(NotFoundError):
            if await self._store.is_own(path):
                await again(lambda: self._store.delete(path), OutcomeUnknownError)

    def _on_session_lost(self) -> None:
        self._session += 1
        self._lost_at, self._lost_on = asyncio.get_running_loop().time(), self._store.connections
        self._look_again.set()

    async def _keep(self) -> None:
        """Stay registered: after a lost session, and if somebody deletes the node."""
        while True:
            await self._look_again.wait()
            self._look_again.clear()
            try:
                await self._register_again()
            except BookieReplacedError as error:
                if not self._may_be_an_earlier_session():
                    self._on_replaced(str(error))
                    return
                await self._pause(error)
            except (RetryableError, OutcomeUnknownError, ConflictError) as error:
                await self._pause(error)
            except LedgerClosedError:
                return  # with the store, which nobody opens again
            except LedgerError as error:
                # Its operator has to mend that, as where a ZooKeeper answers that lost its data.
                # Then it must not need each bookie of the cluster to be started anew.
                await self._pause(error, REGISTRATION_POLL_S)

    async def _register_again(self) -> None:
        info = self._info
        if info is None:
            return
        if self.registered:
            async with self._lock:
                connection = self._store.connections
                await self._make_contact()
                await self._check_vacant(info.bookie_id)
                with contextlib.suppress(NotFoundError):
                    await self._store.is_own(self._published_at)
                    self._published_on = connection
                    return
                self._published_in = -1
            logger.warning("the registration was deleted: registering again")
        await self._publish()
        logger.info("registered again")

    def _may_be_an_earlier_session(self) -> bool:
        """Whether the other session may be one that ends by itself: a session of ours was lost, or
        the connection is a new one, and the store was restored from a backup in which the process
        before this one is still registered (rule S12)."""
        now, connection = asyncio.get_running_loop().time(), self._store.connections
        if self._lost_at == -math.inf and connection == self._published_on:
            return False
        self._published_in = -1
        if self._lost_on != connection:
            self._lost_at, self._lost_on = now, connection
        return now - self._lost_at < self._vacant_in_s

    async def _pause(self, error: LedgerError, pause_s: float = REGISTER_RETRY_DELAY_S) -> None:
        logger.warning("cannot register again yet: %s", error)
        await asyncio.sleep(pause_s)
        self._look_again.set()

    # -- what is registered ------------------------------------------------------------------------

    async def list(self) -> list[BookieInfo]:
        """Registered bookies by id. One that is just changing its state counts as read-only."""
        found: dict[BookieId, BookieInfo] = {}
        for state in (BookieState.WRITABLE, BookieState.READ_ONLY):
            names = await self._store.children(f"{BOOKIES_PATH}/{state.value}")
            infos = await asyncio.gather(*(self.read_listed(state, name) for name in names))
            found.update((info.bookie_id, info) for info in infos if info is not None)
        return [found[bookie_id] for bookie_id in sorted(found)]

    async def get(self, bookie_id: BookieId) -> BookieInfo | None:
        """One registered bookie, or None."""
        for state in (BookieState.READ_ONLY, BookieState.WRITABLE):
            info = await self._read(state, bookie_id)
            if info is not None:
                return info
        return None

    def watch_one(self, bookie_id: BookieId, callback: Callable[[], None]) -> Watch:
        """Call back after this bookie came, went or changed its state, or may have."""
        return _Watches(
            [self._store.watch(_path(state, bookie_id), callback) for state in BookieState]
        )

    def watch(self, callback: Callable[[], None]) -> Watch:
        """Call back after a bookie came, went or changed its state, or may have."""
        return _Watches(
            [self._store.watch(f"{BOOKIES_PATH}/{state.value}", callback) for state in BookieState]
        )

    async def _read(self, state: BookieState, bookie_id: BookieId) -> BookieInfo | None:
        path = _path(state, bookie_id)
        try:
            node = await self._store.get(path)
        except NotFoundError:
            return None
        # The path decides about the state; the data inside may be older.
        return replace(decode_bookie(path, bookie_id, node.value), state=state)

    async def placement(self, before: PlacementPolicy) -> PlacementPolicy:
        """The cluster's placement policy; ``before`` if there is none that can be read."""
        try:
            return (await read_cluster_node(self._store)).value.policy
        except NotFoundError:
            return before
        except (CorruptionError, ConfigurationError) as error:
            logger.warning("the placement policy stays as it was: %s", error)
            return before

    async def names(self, state: BookieState) -> Versioned[BookieIds]:
        """Who is registered in one state, with the number of changes; see ``store.listing``."""
        found = await self._store.listing(f"{BOOKIES_PATH}/{state.value}")
        return Versioned([BookieId(name) for name in found.value], found.version)

    async def read_listed(self, state: BookieState, name: str) -> BookieInfo | None:
        """One registration; None if it is gone, or cannot be read."""
        try:
            return await self._read(state, BookieId(name))
        except (CorruptionError, ConfigurationError) as error:
            # One bad registration must not hide the other bookies from everybody.
            logger.warning("leaving out a bookie: %s", error)
            return None

    # -- cookies -----------------------------------------------------------------------------------

    async def create_cookie(self, bookie_id: BookieId, data: bytes) -> None:
        """Make a bookie part of the cluster. Raises ConflictError if the id is taken.

        ``data`` must be unique to this bookie (it holds a random incarnation): after a lost reply
        it tells whether the cookie that is found is the caller's.
        """
        path = f"{COOKIES_PATH}/{check_bookie_id(bookie_id)}"
        try:
            await self._store.create(path, data)
        except (ConflictError, OutcomeUnknownError) as error:
            try:
                found = await self._store.get(path)
            except NotFoundError:
                raise error from None
            if found.value != data:
                raise ConflictError(f"bookie id {bookie_id!r} is taken in this cluster") from error

    async def list_cookies(self) -> BookieIds:
        """Every bookie that belongs to the cluster, running or not, by id."""
        return [BookieId(name) for name in await self._store.children(COOKIES_PATH)]


class _Watches:
    """Several watches as one."""

    def __init__(self, watches: list[Watch]) -> None:
        self._watches = watches

    def cancel(self) -> None:
        for watch in self._watches:
            watch.cancel()
