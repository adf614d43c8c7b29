"""A ZooKeeper server and kazoo clients in memory: replies that get lost, sessions that end.

Everything happens on the loop of the test, when the test says so. kazoo calls its listeners,
watches and results from threads of its own; here they are called at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import pytest
from kazoo import exceptions as kz
from kazoo.protocol.states import EventType, KazooState, KeeperState

from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.zookeeper import session
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore

T = TypeVar("T")
Act = Callable[[], Any]


class How(Enum):
    """What happens to a request."""

    LOST_REQUEST = "lost request"
    """The connection breaks before the server has it."""
    LOST_REPLY = "lost reply"
    """The server does it, then the connection breaks."""
    NO_ANSWER = "no answer"
    """The server does it. The reply comes when the test says so (``late``), or never."""


@dataclass
class Trouble:
    """What happens to the next request of a name. ``meanwhile`` is done by somebody else, before
    the connection is back."""

    name: str
    how: How
    meanwhile: Callable[[], object] = lambda: None
    comes_back: bool = True


@dataclass
class Node:
    data: bytes
    owner: int = 0
    version: int = 0
    cversion: int = 0

    @property
    def ephemeralOwner(self) -> int:
        return self.owner


class Result(Generic[T]):
    """kazoo's result object: it is filled once, and then calls back."""

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: BaseException | None = None
        self._is_filled = False
        self._callbacks: list[Callable[[Any], None]] = []

    def rawlink(self, callback: Callable[[Any], None]) -> None:
        if self._is_filled:
            callback(self)
        else:
            self._callbacks.append(callback)

    def fill(self, value: Any = None, exception: BaseException | None = None) -> None:
        self.value, self.exception, self._is_filled = value, exception, True
        for callback in self._callbacks:
            callback(self)


@dataclass(frozen=True)
class Event:
    type: str


class FakeServer:
    """The nodes, by absolute path, and every session's watches."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(b"")}
        self.sessions = 6
        self.troubles: list[Trouble] = []
        self.requests: list[tuple[str, str]] = []
        self.late: list[Callable[[], None]] = []
        """Replies that the test gives when it likes."""
        self.clients: list[FakeKazoo] = []
        self.is_up = True
        self.words: dict[bytes, str | Exception] = {}
        """Answers to commands of four letters."""

    def client(self, **settings: Any) -> FakeKazoo:
        """Stands in for the class KazooClient."""
        made = FakeKazoo(self, settings)
        self.clients.append(made)
        return made

    def count(self, name: str) -> int:
        return sum(1 for called, _ in self.requests if called == name)

    def node(self, path: str) -> Node:
        if path not in self.nodes:
            raise kz.NoNodeError
        return self.nodes[path]

    def expect(self, path: str, version: int) -> Node:
        node = self.node(path)
        if version not in (-1, node.version):
            raise kz.BadVersionError
        return node

    def children(self, path: str) -> list[str]:
        self.node(path)
        prefix = path.rstrip("/") + "/"
        below = [p for p in self.nodes if p.startswith(prefix) and p != path]
        return [p[len(prefix) :] for p in reversed(below) if "/" not in p[len(prefix) :]]

    def create(self, path: str, data: bytes, owner: int = 0) -> str:
        parent = path.rpartition("/")[0] or "/"
        if self.node(parent).owner:
            raise kz.NoChildrenForEphemeralsError
        if path in self.nodes:
            raise kz.NodeExistsError
        self.nodes[path] = Node(data, owner)
        self.fire(path, EventType.CREATED)
        return path

    def set(self, path: str, data: bytes, version: int = -1) -> Node:
        node = self.expect(path, version)
        self.nodes[path] = replace(node, data=data, version=node.version + 1)
        self.fire(path, EventType.CHANGED)
        return self.nodes[path]

    def delete(self, path: str, version: int = -1) -> bool:
        self.expect(path, version)
        if self.children(path):
            raise kz.NotEmptyError
        del self.nodes[path]
        self.fire(path, EventType.DELETED)
        return True

    def end_session(self, session: int) -> None:
        for path in [path for path, node in self.nodes.items() if node.owner == session]:
            self.delete(path)

    def fire(self, path: str, kind: str) -> None:
        parent = path.rpartition("/")[0] or "/"
        for client in self.clients:
            client.fire(client.data_watches, path, kind)
            if kind != EventType.CHANGED:
                client.fire(client.child_watches, parent, EventType.CHILD)
            if kind == EventType.DELETED:
                client.fire(client.child_watches, path, kind)
        if kind != EventType.CHANGED and parent in self.nodes:
            above = self.nodes[parent]
            self.nodes[parent] = replace(above, cversion=above.cversion + 1)


class FakeKazoo:
    """``kazoo.client.KazooClient``, as far as the store uses it."""

    def __init__(self, server: FakeServer, settings: dict[str, Any]) -> None:
        self._server = server
        self.settings = settings
        self.connected = False
        self.client_state: str = KeeperState.CONNECTING
        self.client_id: tuple[int, bytes] | None = None
        self.last_zxid = 0
        """The last change that it has seen."""
        self.data_watches: dict[str, set[Callable[[Any], None]]] = {}
        self.child_watches: dict[str, set[Callable[[Any], None]]] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._session = 0
        self.is_stopped = False

    # -- the connection ----------------------------------------------------------------------------

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def tell(self, state: str) -> None:
        for listener in self._listeners:
            listener(state)

    def start_async(self) -> object:
        if self._server.is_up:
            asyncio.get_running_loop().call_soon(self.connect)
        return None

    def connect(self) -> None:
        """The connection stands, in the session of before if there is one."""
        if not self._session:
            self._server.sessions += 1
            self._session = self._server.sessions
        self.connected, self.client_state = True, KeeperState.CONNECTED
        self.client_id = (self._session, b"")
        self.tell(KazooState.CONNECTED)

    def break_connection(self, *, silently: bool = False) -> None:
        """``silently``: kazoo knows it, and has not told its listeners yet."""
        self.connected, self.client_id = False, None
        self.client_state = KeeperState.CONNECTING
        for watches in (self.data_watches, self.child_watches):
            for path in list(watches):
                self.fire(watches, path, EventType.NONE)
        if not silently:
            self.tell(KazooState.SUSPENDED)

    def expire(self, *, silently: bool = False) -> None:
        """The session has ended. The client connects again, with a new one, if the test says so."""
        self.break_connection(silently=silently)
        self._server.end_session(self._session)
        self._session = 0
        if not silently:
            self.tell(KazooState.LOST)

    def die(self, state: str = KeeperState.CLOSED) -> None:
        """kazoo's thread ends by an error of its own, or because its credentials were refused."""
        self.expire(silently=True)
        self.client_state = state
        self.tell(KazooState.LOST)

    def stop(self) -> None:
        self.is_stopped = True
        self.connected, self.client_state = False, KeeperState.CLOSED
        self._server.end_session(self._session)

    def close(self) -> None:
        assert self.is_stopped

    def fire(self, watches: dict[str, set[Callable[[Any], None]]], path: str, kind: str) -> None:
        for callback in watches.pop(path, set()):
            callback(Event(kind))

    # -- requests ----------------------------------------------------------------------------------

    def command(self, word: bytes) -> str:
        answer = self._server.words[word]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sync_async(self, path: str) -> Result[str]:
        return self._request("sync", path, lambda: path)

    def get_async(self, path: str) -> Result[Any]:
        return self._request("get", path, lambda: (self._server.node(path).data, self._stat(path)))

    def _stat(self, path: str) -> Node:
        return self._server.node(path)

    def get_children_async(
        self,
        path: str,
        watch: Callable[[Any], None] | None = None,
        *,
        include_data: bool = False,
    ) -> Result[Any]:
        def act() -> Any:
            names = self._server.children(path)
            if watch is not None:
                self.child_watches.setdefault(path, set()).add(watch)
            return (names, self._server.nodes[path]) if include_data else names

        return self._request("children", path, act)

    def exists_async(self, path: str, watch: Callable[[Any], None] | None = None) -> Result[Any]:
        def act() -> Node | None:
            if watch is not None:
                self.data_watches.setdefault(path, set()).add(watch)
            return self._server.nodes.get(path)

        return self._request("exists", path, act)

    def create_async(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False
    ) -> Result[Any]:
        owner = self._session if ephemeral else 0
        return self._request("create", path, lambda: self._server.create(path, value, owner))

    def set_async(self, path: str, value: bytes, version: int) -> Result[Any]:
        return self._request("set", path, lambda: self._server.set(path, value, version))

    def delete_async(self, path: str, version: int) -> Result[Any]:
        return self._request("delete", path, lambda: self._server.delete(path, version))

    def transaction(self) -> FakeTransaction:
        return FakeTransaction(self, self._server)

    def _request(self, name: str, path: str, act: Act) -> Result[Any]:
        result: Result[Any] = Result()
        if not self.connected:
            result.fill(exception=kz.SessionExpiredError())
            return result
        self._server.requests.append((name, path))
        troubles = self._server.troubles
        trouble = troubles.pop(0) if troubles and troubles[0].name == name else None
        outcome = _outcome(act) if trouble is None or trouble.how is not How.LOST_REQUEST else {}
        if trouble is None:
            result.fill(**outcome)
        elif trouble.how is How.NO_ANSWER:
            self._server.late.append(lambda: result.fill(**outcome))
        else:
            self.break_connection()
            result.fill(exception=kz.ConnectionLoss())
            trouble.meanwhile()
            if trouble.comes_back:
                asyncio.get_running_loop().call_later(0.001, self.connect)
        return result


def _outcome(act: Act) -> dict[str, Any]:
    try:
        return {"value": act()}
    except kz.KazooException as error:
        return {"exception": error}


@dataclass
class FakeTransaction:
    """Operations that happen together or not at all."""

    client: FakeKazoo
    server: FakeServer
    parts: list[tuple[str, Act]] = field(default_factory=list)

    def check(self, path: str, version: int) -> None:
        self.parts.append((path, lambda: self.server.expect(path, version)))

    def create(self, path: str, value: bytes) -> None:
        self.parts.append((path, lambda: self.server.create(path, value)))

    def set_data(self, path: str, value: bytes, version: int) -> None:
        self.parts.append((path, lambda: self.server.set(path, value, version)))

    def delete(self, path: str, version: int) -> None:
        self.parts.append((path, lambda: self.server.delete(path, version)))

    def commit_async(self) -> Result[Any]:
        def act() -> list[object]:
            before = dict(self.server.nodes)
            answers: list[object] = []
            for number, (_, part) in enumerate(self.parts):
                outcome = _outcome(part)
                if "exception" in outcome:
                    self.server.nodes = before
                    undone: list[object] = [kz.RolledBackError() for _ in range(number)]
                    rest = [kz.RuntimeInconsistency() for _ in self.parts[number + 1 :]]
                    return [*undone, outcome["exception"], *rest]
                answers.append(outcome["value"])
            return answers

        return self.client._request("transaction", self.parts[0][0], act)


# -- a store that is connected to it ---------------------------------------------------------------

LONG_S, SHORT_S = 5.0, 0.2
"""How long an operation is tried: nobody waits for the long one; the short one is waited for."""

Scenario = Callable[[FakeServer, ZooKeeperStore], Awaitable[None]]


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.001)


async def settle() -> None:
    """Let everything that is under way on the loop happen."""
    for _ in range(10):
        await asyncio.sleep(0)


class Run(Protocol):
    """Runs a scenario with a server and a connected store; ``operation_s`` bounds operations."""

    def __call__(self, scenario: Scenario, operation_s: float = LONG_S, /) -> FakeServer: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def run_scenario(scenario: Scenario, operation_s: float = LONG_S, /) -> FakeServer:
        server = FakeServer()
        monkeypatch.setattr(session, "KazooClient", server.client)
        monkeypatch.setattr(session, "ZOOKEEPER_RESTART_DELAY_S", 0.01)

        async def main() -> None:
            store = await open_store("zk://h:1/root", operation_timeout_s=operation_s)
            assert isinstance(store, ZooKeeperStore)
            try:
                async with asyncio.timeout(10):
                    await scenario(server, store)
            finally:
                await store.close()

        asyncio.run(main())
        return server

    return run_scenario
