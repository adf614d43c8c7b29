"""A model of ZooKeeper: one tree, one session per process, and requests that fail in every way.

The tree and the rules of its operations are those of the metadata store in memory. This file adds
what happens between clients and servers: requests and answers that are late or lost, servers that
are unreachable or lag, sessions that expire.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from spark_ledger.errors import (
    LedgerError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.lab.simulation.loop import Process
from spark_ledger.metadata.base import Create, Delete, Operation, Put, Watch, check_path
from spark_ledger.metadata.cluster import CLUSTER_PATH, cluster_identity
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree, _Node
from spark_ledger.metadata.uri import ZooKeeperAddress
from spark_ledger.metadata.zookeeper.identity import StoreIdentity
from spark_ledger.types import Versioned
from tests.sim.base import SimBase

R = TypeVar("R")

_check_path = functools.lru_cache(maxsize=4096)(check_path)
"""Cached, because every schedule asks for the same few paths many times."""


class Backup(NamedTuple):
    """Everything that a restore may bring back."""

    zxid: int
    """The number of the last change."""
    nodes: dict[str, _Node]
    next_session: int = 0
    """Sessions with lower numbers were there."""

    def data(self) -> dict[str, bytes]:
        """What it says, but for ephemeral nodes."""
        return {path: node.data for path, node in self.nodes.items() if node.owner is None}


_HISTORY_MAX = 4
_ADDRESS = ZooKeeperAddress("simulated:2181", "/ledger")
_REGISTRATIONS = ("bookies/writable/", "bookies/readonly")


class Looks(Protocol):
    """Is told of reads that are no older than their question."""

    def asked(self, process: Process, path: str) -> None:
        """A process begins to read a node."""

    def told(self, process: Process, path: str, data: bytes | None) -> None:
        """It has what is there; None: nothing."""


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

    def back_up(self) -> Backup:
        """Everything that a restore may bring back."""
        return Backup(self.zxid, dict(self._nodes), self._next_session)

    def restore(self, backup: Backup, sessions: Collection[int] = ()) -> None:
        """Be as the backup was: numbers and versions are given again. ``sessions`` go on, with the
        ephemeral nodes that they had then; all others are gone."""
        self.zxid = backup.zxid
        self.past.clear()
        self._nodes = {
            path: node
            for path, node in backup.nodes.items()
            if node.owner is None or node.owner in sessions
        }
        self._children = {path: set() for path in self._nodes}
        for path, node in self._nodes.items():
            if path:
                above, _, name = path.rpartition("/")
                self._children[above].add(name)
            self.past[path] = [(self.zxid, Versioned(node.data, node.version))]

    def peek(self, path: str) -> Versioned[bytes] | None:
        """A node as it is now, without a request; None if it is not there."""
        return self.get(path) if path in self._nodes else None

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
        self._went_back = ""
        self._restores = 0
        self._identity = StoreIdentity(_ADDRESS, CLUSTER_PATH, cluster_identity)
        self._gone = False
        """The session of a dead process has ended."""

    @property
    def session(self) -> int:
        """The session's number."""
        return self._session

    async def get(self, path: str) -> Versioned[bytes]:
        _check_path(path)
        return await self._read("get", path, lambda: self._stale(path))

    async def get_latest(self, path: str) -> Versioned[bytes]:
        _check_path(path)
        looks = self.zookeeper.looks
        if looks is not None:
            looks.asked(self.process, path)
        try:
            found = await self._read("get", path, lambda: self._newest(path))
        except NotFoundError:
            if looks is not None:
                looks.told(self.process, path, None)
            raise
        if looks is not None:
            looks.told(self.process, path, found.value)
        return found

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        _check_path(path)
        watch = _SimWatch(self, path, callback)
        self.watches.add(watch)
        self.tree.add_watch(path, watch)  # type: ignore[arg-type]
        return watch

    def expire(self) -> None:
        self.tree.end_session(self._session)
        self._session = self.tree.new_session_id()
        for subscription in list(self._lost):
            subscription.notify()
        self.reconnect()

    def reconnect(self) -> None:
        self.seen = self.changes.zxid
        self._connections += 1
        self.notify_watches()

    def come_back(self, *, shows: bool, goes_on: bool = False) -> None:
        """Connect to a store that was restored: see whether it shows, with a new session, or with
        the one that was in the backup, of which no server knows that it is older than its client.
        """
        refused = shows and self.seen > self.changes.zxid
        if refused:
            self._went_back = "ZooKeeper was restored from a backup"
            self._restores += 1
        self.zookeeper.returning.discard(self.process.name)
        if goes_on and not refused:
            self.world.counts["sessions that were in a backup"] += 1
            self.reconnect()
            return
        if self._identity.is_known:  # as each new session of the store over ZooKeeper does
            self._look_whose_it_is()
        self.expire()

    def know(self, cluster: bytes) -> None:
        """The node of the cluster whose ZooKeeper this has to be."""
        self._identity.learn(CLUSTER_PATH, cluster)
        self._look_whose_it_is()

    def _look_whose_it_is(self) -> None:
        node = self.changes.peek(CLUSTER_PATH)
        self._identity.check(None if node is None else node.value)

    @property
    def restored(self) -> str:
        return self._went_back

    @property
    def restores(self) -> int:
        return self._restores

    def notify_watches(self) -> None:
        """Notify all watches: after a reconnect, changes may have been missed."""
        for watch in sorted(self.watches, key=lambda watch: watch._path):
            watch.notify()

    def forget(self) -> None:
        """The process has died: end its session and its watches."""
        self._gone = True
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

    def _newest(self, path: str) -> Versioned[bytes]:
        """A read from a server that has caught up: later ones of the session are never older."""
        self.seen = self.changes.zxid
        return self.changes.get(path)

    def _apply(self, act: Callable[[], None]) -> None:
        """Apply a write, in whose name it is."""
        zookeeper = self.zookeeper
        zookeeper.writer = self.process
        try:
            act()
        finally:
            zookeeper.writer = None

    async def _read(self, name: str, path: str, act: Callable[[], R]) -> R:
        if path.startswith(_REGISTRATIONS) and not self.zookeeper.is_unreachable(self.process):
            self._check_identity()
            return act()  # read in bulk after every change, and only hints: one delay is enough
        await self._reach(name, path)
        await asyncio.sleep(self._delay())
        self._check_open(name, path)
        if self.zookeeper.strikes(0.3):
            self.world.fault("metadata read refused", f"{self.process} {name} {path}")
            raise MetadataUnavailableError(f"metadata {name} of {path!r}: no answer")
        if name != "get":
            self.seen = self.changes.zxid
        return act()

    async def _write(self, name: str, path: str, act: Callable[[], None]) -> None:
        connection = self._connections
        await self._reach(name, path)
        if self.zookeeper.is_late():
            await self._arrive_late(name, path, act)
        else:
            await asyncio.sleep(self._delay())
        self._check_open(name, path)
        if connection != self._connections and name in ("put", "transaction"):
            raise OutcomeUnknownError(f"metadata {name} of {path!r}: the connection was lost")
        error: LedgerError | None = None
        if self.zookeeper.strikes(1.0):
            error = await self._strike(name, path, act)
        else:
            try:
                self._apply(act)
            finally:  # the reply says how new it is, also where the write was refused
                self.seen = self.changes.zxid
            self.world.say(f"{self.process} -> zookeeper: {name} {path}")
        await asyncio.sleep(self._delay())
        if connection != self._connections and name in ("put", "transaction"):
            raise OutcomeUnknownError(f"metadata {name} of {path!r}: its reply was lost")
        if error is not None:
            raise error

    async def _arrive_late(self, name: str, path: str, act: Callable[[], None]) -> None:
        """Wait until a write has reached the servers. They take it although its process is dead by
        then, as long as its session has not ended."""
        arrived = asyncio.get_running_loop().create_future()
        zookeeper, session = self.zookeeper, self._session

        def arrive() -> None:
            if self.process.alive:
                if not arrived.done():  # else nobody waits for it any more
                    arrived.set_result(None)
            elif session == self._session and not (self._gone or zookeeper.down):
                self.world.fault("metadata write of the dead", f"{self.process} {name} {path}")
                with suppress(LedgerError):
                    self._apply(act)

        self.world.loop.later(zookeeper.late_s(), None, arrive)
        await arrived

    async def _strike(self, name: str, path: str, act: Callable[[], None]) -> LedgerError:
        """A write fails in one of three ways."""
        kind = self.zookeeper.draw.choice(["refused", "request lost", "reply lost"])
        self.world.fault(f"metadata write {kind}", f"{self.process} {name} {path}")
        if kind == "refused":
            return MetadataUnavailableError(f"metadata {name} of {path!r}: refused")
        if kind == "reply lost":
            try:
                self._apply(act)
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
        self._check_identity()

    def _check_identity(self) -> None:
        if self._identity.fault is not None:
            raise self._identity.fault

    def _check_open(self, name: str, path: str) -> None:
        if self._closed:
            raise MetadataUnavailableError("this handle of the metadata store is closed")
        if self.zookeeper.is_unreachable(self.process):
            raise MetadataUnavailableError(f"metadata {name} of {path!r}: connection lost")
        self._check_identity()

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
        self.looks: Looks | None = None
        self.writer: Process | None = None
        """Whose write is being applied; it may be dead."""
        self.timeout_s = 1.0
        self.down = False
        self.restoring = False
        """Down until a backup is in place."""
        self.returning: set[str] = set()
        """Processes that have not connected since the restore."""
        self.cut_off: set[str] = set()
        self.cluster: bytes | None = None
        """The cluster's node, in a schedule in which it may be missing for a while."""
        self.stores: dict[str, SimStore] = {}
        self._late = world.random_for("late writes") if world.options.late_writes else None

    def is_late(self) -> bool:
        """Whether a write is long on its way."""
        return self._late is not None and not self.world.healing and self._late.random() < 0.3

    def late_s(self) -> float:
        """How long such a write is on its way."""
        assert self._late is not None, "Only late writes are late."
        return self._late.uniform(0.02, 0.4)

    def connect(self, process: Process) -> SimStore:
        """Open a session for a process."""
        store = self.stores[process.name] = SimStore(self, process)
        if self.cluster is not None:  # who finds another one, or none, is not let in
            store.know(self.cluster)
        return store

    def is_unreachable(self, process: Process) -> bool:
        """Whether the process cannot reach the servers now."""
        name = process.name
        return self.down or self.restoring or name in self.cut_off or name in self.returning

    def restore(self, backup: Backup, *, shows: bool, sessions_last: bool = False) -> None:
        """Come back as the backup was. ``shows``: clients can tell it by the last change.
        ``sessions_last``: those that were there go on, without what they have made since."""
        living = [store for store in self.stores.values() if store.process.alive]
        lasting = {
            store.session
            for store in living
            if sessions_last and store.session < backup.next_session
        }
        self.tree.restore(backup, lasting)
        self.restoring = False
        for store in living:
            self.returning.add(store.process.name)
            delay_s = min(60.0, self.draw.choice([3.0, 100.0]) * self.world.delay())
            goes_on = store.session in lasting
            back = functools.partial(store.come_back, shows=shows, goes_on=goes_on)
            self.world.loop.later(delay_s, store.process, back)

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
