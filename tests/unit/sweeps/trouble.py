"""One thing goes wrong at the n-th call that a client makes: to the metadata store or to a bookie.

A sweep runs an operation once for each call that it makes and each kind of trouble. What each kind
does to the call is in ``TroubledStore`` and ``TroubledTransport``. Time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, Final, TypeVar

from spark_ledger.bookie_api import BookieApi
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.config import ClientConfig
from spark_ledger.errors import LedgerError, MetadataUnavailableError, OutcomeUnknownError
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, BookieStatus, Versioned
from tests.unit.spark_ledger.client.world import World

R = TypeVar("R")
T = TypeVar("T")

OUTAGE_S: Final = 3.0
LAG_S: Final = 1.0


class Kind(StrEnum):
    """What happens to the call."""

    NOTHING = "nothing"
    UNAVAILABLE = "unavailable"
    """Nobody is there."""
    OUTAGE = "outage"
    """Nobody is there for the next seconds."""
    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    LATE = "late"
    """The reply takes a second. Everybody else goes on."""
    LEFT_BEFORE = "left before"
    """The caller is cancelled before the call has an effect."""
    LEFT_AFTER = "left after"
    """The caller is cancelled before the reply is there."""
    SESSION_LOST = "session lost"
    """The session ends while the reply is on its way."""
    CLOSED = "closed"
    """The connection is closed while the reply is on its way."""
    LAGS = "lags"
    """The metadata server that answers lags behind what others have changed for a moment, until it
    is asked for what is newest, or the client has written."""
    OVERTAKEN = "overtaken"
    """Somebody else does the same before the call has an effect, all of it."""


class Trouble:
    """Counts the calls of one client once it is armed, and says which one meets the trouble."""

    def __init__(self, kind: Kind = Kind.NOTHING, at: int = 0) -> None:
        self.kind = kind
        self.at = at
        self.count = 0
        self.is_armed = False
        self.calls: list[str] = []
        self.leave: Callable[[], object] = lambda: None
        """Cancels the caller."""
        self.close: Callable[[], Coroutine[Any, Any, None]]
        """Closes the connection."""
        self.overtake: Callable[[], Coroutine[Any, Any, None]]
        """Has somebody else do the same."""
        self.past = MemoryTree()
        """What a server that lags knows."""
        self.is_behind = False
        self._ends = 0.0
        self._closing: asyncio.Task[None] | None = None

    def met_by(self, call: str) -> Kind:
        """What this call meets."""
        if not self.is_armed:
            return Kind.NOTHING
        self.count += 1
        self.calls.append(call)
        now = asyncio.get_running_loop().time()
        if self.count == self.at:
            self._ends = now + OUTAGE_S
            return self.kind
        return Kind.OUTAGE if self.kind is Kind.OUTAGE and now < self._ends else Kind.NOTHING

    async def before(self, kind: Kind) -> None:
        """The call is about to have its effect."""
        if kind is Kind.LEFT_BEFORE:
            self.leave()
            await asyncio.sleep(0)
        elif kind is Kind.OVERTAKEN:
            await self.overtake()

    async def after(self, kind: Kind, expire: Callable[[], None]) -> None:
        """It had its effect, and the reply is on its way."""
        if kind is Kind.LEFT_AFTER:
            self.leave()
        elif kind is Kind.SESSION_LOST:
            expire()
        elif kind is Kind.CLOSED:
            self._closing = asyncio.get_running_loop().create_task(self.close())
        elif kind is Kind.LATE:
            await asyncio.sleep(1.0)
        if kind is not Kind.NOTHING:
            for _turn in range(5):
                await asyncio.sleep(0)


def copy_of(tree: MemoryTree) -> MemoryTree:
    """The nodes as they are now, without those who watch them."""
    copied = MemoryTree()
    copied._nodes = dict(tree._nodes)
    copied._children = {path: set(names) for path, names in tree._children.items()}
    return copied


_REFUSED: Final = (Kind.UNAVAILABLE, Kind.OUTAGE)
_UNKNOWN: Final = (Kind.LOST_REQUEST, Kind.LOST_REPLY)


class TroubledStore(MemoryMetadataStore):
    """A session whose n-th operation meets the trouble."""

    def __init__(self, tree: MemoryTree, trouble: Trouble) -> None:
        super().__init__(tree)
        self._trouble = trouble

    async def get(self, path: str) -> Versioned[bytes]:
        return await self._read("get", path, lambda: self._answering.get(path))

    async def get_latest(self, path: str) -> Versioned[bytes]:
        return await self._read("get_latest", path, lambda: self.tree.get(path))

    async def children(self, path: str) -> list[str]:
        return await self._read("children", path, lambda: self._answering.children(path))

    @property
    def _answering(self) -> MemoryTree:
        """What the server knows that this session is connected to."""
        return self._trouble.past if self._trouble.is_behind else self.tree

    async def _read(self, name: str, path: str, act: Callable[[], R]) -> R:
        kind = self._trouble.met_by(f"{name} {path}")
        if kind is Kind.LAGS:
            self._lag()
        if name in ("get_latest", "is_own"):
            self._trouble.is_behind = False
        if kind in (*_REFUSED, *_UNKNOWN):
            raise MetadataUnavailableError(f"metadata {name} of {path!r}: {kind}")
        await self._trouble.before(kind)
        try:
            return await super()._read(name, path, act)
        finally:
            await self._trouble.after(kind, self.expire)

    def _lag(self) -> None:
        """Be connected to a server that lags, until that has caught up and tells who watches."""
        self._trouble.is_behind = True

        def catch_up() -> None:
            self._trouble.is_behind = False
            for subscription in list(self._watches):
                subscription.notify()

        asyncio.get_running_loop().call_later(LAG_S, catch_up)

    async def _write(self, name: str, path: str, act: Callable[[], None]) -> None:
        kind = self._trouble.met_by(f"{name} {path}")
        if kind in _REFUSED:
            raise MetadataUnavailableError(f"metadata {name} of {path!r}: {kind}")
        await self._trouble.before(kind)
        self._trouble.is_behind = False
        if kind is not Kind.LOST_REQUEST:
            await super()._write(name, path, act)
        await self._trouble.after(kind, self.expire)
        if kind in _UNKNOWN:
            raise OutcomeUnknownError(f"metadata {name} of {path!r}: {kind}")


class TroubledTransport(MemoryTransport):
    """Connections to bookies, on which the n-th call meets the trouble."""

    def __init__(
        self, bookies: dict[BookieId, Any], trouble: Trouble, expire: Callable[[], None]
    ) -> None:
        super().__init__(bookies)
        self._trouble = trouble
        self._expire = expire

    async def _call(
        self,
        bookie_id: BookieId,
        answer: Callable[[BookieApi, Callable[[T], None]], None],
        timeout_s: float,
    ) -> T | BookieStatus:
        kind = self._trouble.met_by(f"call of {bookie_id}")
        if kind in _REFUSED:
            return BookieStatus.UNAVAILABLE
        await self._trouble.before(kind)
        answered: T | BookieStatus = BookieStatus.TIMEOUT
        if kind is not Kind.LOST_REQUEST:
            answered = await super()._call(bookie_id, answer, timeout_s)
        await self._trouble.after(kind, self._expire)
        if kind in _UNKNOWN:
            await asyncio.sleep(timeout_s)
            return BookieStatus.TIMEOUT
        return answered


async def troubled_client(world: World, trouble: Trouble) -> tuple[LedgerClient, TroubledStore]:
    """A client of the world whose calls meet the trouble once that is armed, and its store."""
    store = TroubledStore(world.tree, trouble)
    transport = TroubledTransport(world.alive, trouble, store.expire)
    client = await LedgerClient.over(store, transport, ClientConfig())
    trouble.close = client.close
    return client, store


async def outcome_of(work: Coroutine[Any, Any, object], trouble: Trouble) -> object:
    """What the operation brings: its result, its LedgerError, or None if its caller left."""
    task = asyncio.ensure_future(work)
    trouble.leave = task.cancel
    trouble.is_armed = True
    try:
        return await task
    except LedgerError as error:
        return error
    except asyncio.CancelledError:
        assert trouble.kind in (Kind.LEFT_BEFORE, Kind.LEFT_AFTER, Kind.CLOSED)
        return None
    finally:
        trouble.is_armed = False
