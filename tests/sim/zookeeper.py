"""A model of ZooKeeper: one tree, one session per process, and requests that fail in every way.

The tree and the rules of its operations are those of the metadata store in memory. This file adds
what happens between clients and servers: requests and answers that are late or lost, servers that
are unreachable or lag, sessions that expire.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from spark_ledger.errors import (
    LedgerError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.base import Create, Delete, Operation, Put, Watch, check_path
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.types import Versioned
from tests.sim.base import SimBase
from tests.sim.loop import Process

R = TypeVar("R")

_check_path = functools.lru_cache(maxsize=4096)(check_path)
"""Cached, because every schedule asks for the same few paths many times."""

_HISTORY_MAX = 4
_REGISTRATIONS = ("bookies/writable/", "bookies/readonly")


class SimTree(MemoryTree):
    """The nodes. Keeps their last values, and calls ``observe`` at every change."""

    def __init__(self, observe: Callable[[str, bytes | None], None]) -> None:
        super().__init__()
        self._observe = observe
        self.zxid = 0
        self.past: dict[str, list[tuple[int, Versioned[bytes] | None]]] = {}
        """The last values of each node, with the number of the change that wrote them; None:
        deleted."""

    def apply(self, operations: Sequence[Operation], *, owner: int | None = None) -> None:
        super().apply(operations, owner=owner)
        self.zxid += 1
        for operation in operations:
            match operation:
                case Create(path, data):
                    self._changed(path, Versioned(data, 0))
                case Put(path, data, version):
                    self._changed(path, Versioned(data, version + 1))
                case Delete(path, _):
                    self._changed(path, None)
                case _:
                    pass

    def at(self, path: str, zxid: int) -> Versioned[bytes]:
        """A node as it was after change ``zxid``, if that is still known."""
        values = self.past.get(path, [])
        for number, value in reversed(values):
            if number <= zxid:
                if value is None:
                    raise NotFoundError(f"metadata node {path!r} does not exist")
                return value
        if values and len(values) == _HISTORY_MAX and values[0][1] is not None:
            return values[0][1]
        raise NotFoundError(f"metadata node {path!r} does not exist")

    def _changed(self, path: str, value: Versioned[bytes] | None) -> None:
        values = self.past.setdefault(path, [])
        values.append((self.zxid, value))
        del values[:-_HISTORY_MAX]
        self._observe(path, None if value is None else value.value)


class _SimWatch:
    """A watch whose notification takes time. Several notifications may be merged, and one may come
    twice."""

    def __init__(self, store: SimStore, path: str, callback: Callable[[], None]) -> None:
        self._store = store
        self._path = path
        self._callback = callback
        self._scheduled = False
        self._cancelled = False

    def notify(self) -> None:
        if self._cancelled or self._scheduled:
            return
        self._scheduled = True
        delay_s = self._store.world.delay()
        self._store.world.loop.later(delay_s, self._store.process, self._run)

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._store.watches.discard(self)
            self._store.tree.remove_watch(self._path, self)  # type: ignore[arg-type]

    def _run(self) -> None:
        self._scheduled = False
        if not self._cancelled:
            # A read after a notification sees the change.
            self._store.seen = self._store.changes.zxid
            self._callback()


class SimStore(MemoryMetadataStore):
    """One process's session, made by ``SimZookeeper.connect``."""

    def __init__(self, zookeeper: SimZookeeper, process: Process) -> None:
        super().__init__(zookeeper.tree)
        self.zookeeper = zookeeper
        self.changes = zookeeper.tree
        self.world = zookeeper.world
        self.process = process
        self.watches: set[_SimWatch] = set()
        self.seen = zookeeper.tree.zxid
        """The last change that this session has seen; its reads are never older."""

    @property
    def session(self) -> int:
        """The session's number."""
        return self._session

    async def get(self, path: str) -> Versioned[bytes]:
        _check_path(path)
        return await self._read("get", path, lambda: self._stale(path))

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        _check_path(path)
        watch = _SimWatch(self, path, callback)
        self.watches.add(watch)
        self.tree.add_watch(path, watch)  # type: ignore[arg-type]
        return watch

    def expire(self) -> None:
        self.tree.end_session(self._session)
        self._session = self.tree.new_session_id()
        self.seen = self.changes.zxid
        for subscription in list(self._lost):
            subscription.notify()
        self.notify_watches()

    def notify_watches(self) -> None:
        """Notify all watches: after a reconnect, changes may have been missed."""
        for watch in sorted(self.watches, key=lambda watch: watch._path):
            watch.notify()

    def forget(self) -> None:
        """The process has died: end its session and its watches."""
        for watch in list(self.watches):
            watch.cancel()
        self.tree.end_session(self._session)

    async def close(self) -> None:
        if not self._closed:
            for watch in list(self.watches):
                watch.cancel()
        await super().close()

    def _stale(self, path: str) -> Versioned[bytes]:
        """A read from a server that may lag, but never behind what this session has seen."""
        tree, draw = self.changes, self.zookeeper.draw
        if self.zookeeper.stale_reads and draw.random() < 0.2 and self.seen < tree.zxid:
            self.seen = draw.randint(self.seen, tree.zxid)
            return tree.at(path, self.seen)
        self.seen = tree.zxid
        return tree.get(path)

    async def _read(self, name: str, path: str, act: Callable[[], R]) -> R:
        if path.startswith(_REGISTRATIONS) and not self.zookeeper.is_unreachable(self.process):
            return act()  # read in bulk after every change, and only hints: one delay is enough
        await self._reach(name, path)
        await asyncio.sleep(self._delay())
        self._check_open(name, path)
        if self.zookeeper.strikes(0.3):
            self.world.fault("metadata read refused", f"{self.process} {name} {path}")
            raise MetadataUnavailableError(f"metadata {name} of {path!r}: no answer")
        return act()

    async def _write(self, name: str, path: str, act: Callable[[], None]) -> None:
        await self._reach(name, path)
        await asyncio.sleep(self._delay())
        self._check_open(name, path)
        error: LedgerError | None = None
        if self.zookeeper.strikes(1.0):
            error = await self._strike(name, path, act)
        else:
            act()
            self.world.say(f"{self.process} -> zookeeper: {name} {path}")
            self.seen = self.changes.zxid
        await asyncio.sleep(self._delay())
        if error is not None:
            raise error

    async def _strike(self, name: str, path: str, act: Callable[[], None]) -> LedgerError:
        """A write fails in one of three ways."""
        kind = self.zookeeper.draw.choice(["refused", "request lost", "reply lost"])
        self.world.fault(f"metadata write {kind}", f"{self.process} {name} {path}")
        if kind == "refused":
            return MetadataUnavailableError(f"metadata {name} of {path!r}: refused")
        if kind == "reply lost":
            try:
                act()
            except LedgerError as error:
                self.world.say(f"... which says {type(error).__name__}")
        return OutcomeUnknownError(f"metadata {name} of {path!r}: {kind}")

    async def _reach(self, name: str, path: str) -> None:
        """Wait while the servers are unreachable, until the time is up."""
        loop, zookeeper = self.world.loop, self.zookeeper
        deadline = loop.now + zookeeper.timeout_s
        while zookeeper.is_unreachable(self.process):
            if loop.now >= deadline:
                raise MetadataUnavailableError(f"metadata {name} of {path!r}: not reachable")
            await asyncio.sleep(0.05)

    def _check_open(self, name: str, path: str) -> None:
        if self._closed:
            raise MetadataUnavailableError("this handle of the metadata store is closed")
        if self.zookeeper.is_unreachable(self.process):
            raise MetadataUnavailableError(f"metadata {name} of {path!r}: connection lost")

    def _delay(self) -> float:
        return self.world.delay()


class SimZookeeper:
    """The servers, and which processes can reach them."""

    def __init__(
        self,
        world: SimBase,
        draw: random.Random,
        *,
        faults: float,
        stale_reads: bool,
        observe: Callable[[str, bytes | None], None],
    ) -> None:
        self.world = world
        self.draw = draw
        self.tree = SimTree(observe)
        self.faults = faults
        self.stale_reads = stale_reads
        self.timeout_s = 1.0
        self.down = False
        self.cut_off: set[str] = set()
        self.stores: dict[str, SimStore] = {}

    def connect(self, process: Process) -> SimStore:
        """Open a session for a process."""
        store = self.stores[process.name] = SimStore(self, process)
        return store

    def is_unreachable(self, process: Process) -> bool:
        """Whether the process cannot reach the servers now."""
        return self.down or process.name in self.cut_off

    def strikes(self, weight: float) -> bool:
        """Whether this request fails."""
        return self.faults > 0 and self.draw.random() < self.faults * weight

    def expire(self, name: str) -> None:
        """The servers expire a session; its process learns of it at its next request."""
        store = self.stores[name]
        if store.process.alive:
            self.tree.end_session(store.session)
            self.world.loop.later(self.world.delay() * 3, store.process, store.expire)

    def died(self, process: Process, after_s: float) -> None:
        """A process has died: its session ends once the servers have noticed."""
        store = self.stores.pop(process.name, None)
        if store is not None:
            self.world.loop.later(after_s, None, store.forget)
