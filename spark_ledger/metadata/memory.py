"""The metadata store in memory: several sessions over one tree, for simulation and unit tests.

Deterministic: no clock, no threads, no randomness. An operation yields to the loop once, then
happens at once. Tests steer it with ``MemoryMetadataStore.expire`` and with an ``interpose``
function, which may delay or refuse any single operation, or make its outcome unknown.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerClosedError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.base import (
    Check,
    Create,
    Delete,
    Operation,
    Put,
    StoreSize,
    Subscription,
    Watch,
    check_operations,
    check_path,
    check_size,
    parent_of,
)
from spark_ledger.types import Versioned

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Node:
    data: bytes
    version: int = 0
    owner: int | None = None  # the session an ephemeral node belongs to
    changes: int = 0  # children that came or went


class Outcome(Enum):
    """What an interposed operation does."""

    NORMAL = "normal"
    UNAVAILABLE = "unavailable"
    """Nothing happens; MetadataUnavailableError."""
    LOST_REQUEST = "lost request"
    """Nothing happens, but a write cannot know: OutcomeUnknownError."""
    LOST_REPLY = "lost reply"
    """It happens, but a write cannot know: OutcomeUnknownError."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one operation: it waits for ``delay_s``, then ends as ``outcome`` says."""

    outcome: Outcome = Outcome.NORMAL
    delay_s: float = 0.0


Interpose = Callable[[str, str], Fault]
"""Called with an operation's name (``get``, ``put`` ...) and path before it happens."""


class MemoryTree:
    """The shared nodes. All fields are guarded by ``lock``: sessions may live on the loops of
    different threads."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {"": _Node(b"")}
        self._children: dict[str, set[str]] = {"": set()}
        self._undo: list[tuple[str, _Node | None]] = []
        self._watches: dict[str, list[Subscription]] = {}
        self._next_session = 1
        self.lock = threading.RLock()

    def open_session(self, *, interpose: Interpose | None = None) -> MemoryMetadataStore:
        """A new client of this tree."""
        return MemoryMetadataStore(self, interpose=interpose)

    def new_session_id(self) -> int:
        with self.lock:
            self._next_session += 1
            return self._next_session - 1

    def get(self, path: str) -> Versioned[bytes]:
        with self.lock:
            node = self._node(path)
            return Versioned(node.data, node.version)

    def is_owned_by(self, path: str, session: int) -> bool:
        with self.lock:
            return self._node(path).owner == session

    def children(self, path: str) -> list[str]:
        with self.lock:
            return sorted(self._children.get(path, ()))

    def size(self) -> StoreSize:
        with self.lock:
            return StoreSize(len(self._nodes), sum(len(node.data) for node in self._nodes.values()))

    def listing(self, path: str) -> Versioned[list[str]]:
        with self.lock:
            node = self._nodes.get(path)
            return Versioned(self.children(path), -1 if node is None else node.changes)

    def apply(self, operations: Sequence[Operation], *, owner: int | None = None) -> None:
        """All of the operations, or none; ``owner`` makes created nodes ephemeral."""
        with self.lock:
            assert not self._undo, "transactions do not nest"
            try:
                for operation in operations:
                    self._apply_one(operation, owner)
            except Exception:
                while self._undo:
                    path, before = self._undo.pop()
                    self._replace(path, before)
                raise
            changed, self._undo = self._undo, []
            for path, before in changed:
                self._notify(path)
                if before is None or path not in self._nodes:
                    self._notify(parent_of(path))

    def make_parents(self, path: str) -> None:
        with self.lock:
            names = path.split("/")[:-1]
            for depth in range(1, len(names) + 1):
                parent = "/".join(names[:depth])
                if parent not in self._nodes:
                    self.apply([Create(parent, b"")])

    def end_session(self, owner: int) -> None:
        """Remove a session's ephemeral nodes."""
        with self.lock:
            owned = [path for path, node in self._nodes.items() if node.owner == owner]
            self.apply([Delete(path) for path in sorted(owned)])

    def add_watch(self, path: str, subscription: Subscription) -> None:
        with self.lock:
            self._watches.setdefault(path, []).append(subscription)

    def remove_watch(self, path: str, subscription: Subscription) -> None:
        with self.lock:
            self._watches[path].remove(subscription)
            if not self._watches[path]:
                del self._watches[path]

    def _node(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise NotFoundError(f"metadata node {path!r} does not exist")
        return node

    def _expect(self, path: str, version: int) -> _Node:
        node = self._node(path)
        if version not in (-1, node.version):
            raise ConflictError(
                f"metadata node {path!r} has version {node.version}, expected {version}"
            )
        return node

    def _apply_one(self, operation: Operation, owner: int | None) -> None:
        path = operation.path
        match operation:
            case Check(_, version):
                self._expect(path, version)
                return
            case Create(_, data):
                if path in self._nodes:
                    raise ConflictError(f"metadata node {path!r} exists already")
                parent = self._nodes.get(parent_of(path))
                if parent is None:
                    raise NotFoundError(f"metadata node {path!r}: its parent does not exist")
                if parent.owner is not None:
                    raise ConfigurationError(
                        f"metadata node {path!r}: an ephemeral node cannot have children"
                    )
                after: _Node | None = _Node(data, owner=owner)
            case Put(_, data, version):
                before = self._expect(path, version)
                after = replace(before, data=data, version=before.version + 1)
            case Delete(_, version):
                self._expect(path, version)
                if self._children[path]:
                    raise ConflictError(f"metadata node {path!r} has children")
                after = None
        self._undo.append((path, self._nodes.get(path)))
        self._replace(path, after)

    def _replace(self, path: str, node: _Node | None) -> None:
        name, parent = path.rpartition("/")[2], parent_of(path)
        siblings = self._children[parent]
        if (node is None) is (path in self._nodes):
            above = self._nodes[parent]
            self._nodes[parent] = replace(above, changes=above.changes + 1)
        if node is None:
            del self._nodes[path], self._children[path]
            siblings.discard(name)
        else:
            self._nodes[path] = node
            self._children.setdefault(path, set())
            siblings.add(name)

    def _notify(self, path: str) -> None:
        for subscription in self._watches.get(path, ()):
            subscription.notify()


class MemoryMetadataStore:
    """One session of a ``MemoryTree``; implements ``MetadataStore``. Belongs to one loop."""

    def __init__(
        self, tree: MemoryTree | None = None, *, interpose: Interpose | None = None
    ) -> None:
        self.tree = tree or MemoryTree()
        self.interpose = interpose
        self._session = self.tree.new_session_id()
        self._watches: list[Subscription] = []
        self._lost: list[Subscription] = []
        self._closed = False
        self._connections = 1

    @property
    def connections(self) -> int:
        return self._connections

    @property
    def restored(self) -> str:
        return ""

    @property
    def restores(self) -> int:
        return 0

    async def get(self, path: str) -> Versioned[bytes]:
        check_path(path)
        return await self._read("get", path, lambda: self.tree.get(path))

    async def get_latest(self, path: str) -> Versioned[bytes]:
        return await MemoryMetadataStore.get(self, path)

    async def is_own(self, path: str) -> bool:
        check_path(path)
        return await self._read("is_own", path, lambda: self.tree.is_owned_by(path, self._session))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._read("children", path, lambda: self.tree.children(path))

    async def listing(self, path: str) -> Versioned[list[str]]:
        check_path(path)
        return await self._read("children", path, lambda: self.tree.listing(path))

    async def size(self) -> StoreSize:
        """How large the tree is."""
        return self.tree.size()

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = True
    ) -> None:
        check_path(path)
        check_size(path, len(data))

        def act() -> None:
            if make_parents:
                self.tree.make_parents(path)
            self.tree.apply([Create(path, data)], owner=self._session if ephemeral else None)

        await self._write("create", path, act)

    async def put(self, path: str, data: bytes, version: int) -> int:
        operation = Put(path, data, version)
        check_operations([operation])
        await self._write("put", path, lambda: self.tree.apply([operation]))
        return version + 1

    async def delete(self, path: str, version: int = -1) -> None:
        check_path(path)
        await self._write("delete", path, lambda: self.tree.apply([Delete(path, version)]))

    async def transaction(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)
        if operations:
            path = operations[0].path
            await self._write("transaction", path, lambda: self.tree.apply(operations))

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        check_path(path)

        def forget(cancelled: Subscription) -> None:
            self._watches.remove(cancelled)
            self.tree.remove_watch(path, cancelled)

        subscription = Subscription(callback, forget)
        self._watches.append(subscription)
        self.tree.add_watch(path, subscription)
        return subscription

    def on_session_lost(self, callback: Callable[[], None]) -> Watch:
        subscription = Subscription(callback, self._lost.remove)
        self._lost.append(subscription)
        return subscription

    def expire(self) -> None:
        """Lose the session, as a client that was cut off for too long does, and get a new one."""
        self.tree.end_session(self._session)
        self._session = self.tree.new_session_id()
        for subscription in list(self._lost):
            subscription.notify()
        self.reconnect()

    def reconnect(self) -> None:
        """Lose the connection, and get a new one in the same session."""
        self._connections += 1
        for subscription in list(self._watches):
            subscription.notify()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.tree.end_session(self._session)
            for subscription in list(self._lost):
                subscription.cancel()
            for subscription in list(self._watches):
                subscription.close()

    async def _read(self, name: str, path: str, act: Callable[[], R]) -> R:
        outcome = await self._begin(name, path)
        if outcome is not Outcome.NORMAL:
            raise MetadataUnavailableError(f"metadata {name} of {path!r}: {outcome.value}")
        return act()

    async def _write(self, name: str, path: str, act: Callable[[], None]) -> None:
        outcome = await self._begin(name, path)
        if outcome is Outcome.UNAVAILABLE:
            raise MetadataUnavailableError(f"metadata {name} of {path!r}: {outcome.value}")
        if outcome is not Outcome.LOST_REQUEST:
            act()
        if outcome is not Outcome.NORMAL:
            raise OutcomeUnknownError(f"metadata {name} of {path!r}: {outcome.value}")

    async def _begin(self, name: str, path: str) -> Outcome:
        """Yield, so that other tasks interleave here, and ask what shall happen."""
        fault = self.interpose(name, path) if self.interpose else Fault()
        await asyncio.sleep(fault.delay_s)
        if self._closed:
            raise LedgerClosedError("this connection is closed: connect again")
        return fault.outcome
