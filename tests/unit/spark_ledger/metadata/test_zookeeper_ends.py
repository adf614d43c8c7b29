"""How a ZooKeeper store begins and ends, also one that never connected; what is asked behind a
sync; and what a server says of its size."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, cast

import pytest
from kazoo import exceptions as kz
from kazoo.handlers.threading import (
    AsyncResult,
    KazooTimeoutError,
    SequentialThreadingHandler,
)
from kazoo.protocol.states import KeeperState
from kazoo.security import make_digest_acl

from spark_ledger.errors import ConfigurationError, MetadataUnavailableError, UnauthorizedError
from spark_ledger.metadata.base import StoreSize
from spark_ledger.metadata.cluster import CLUSTER_PATH
from spark_ledger.metadata.connect import connected_store, open_store
from spark_ledger.metadata.zookeeper import restored, session
from spark_ledger.metadata.zookeeper import store as store_module
from spark_ledger.metadata.zookeeper.handler import PollingHandler
from spark_ledger.metadata.zookeeper.kazoo_api import Client, Result
from spark_ledger.metadata.zookeeper.restored import newest_change
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.metadata.fake_zookeeper import (
    SHORT_S,
    FakeKazoo,
    FakeServer,
    How,
    Run,
    Trouble,
    run,
)

__all__ = ["run"]


@pytest.mark.parametrize(
    ("user", "auth", "acl"),
    [
        ("", None, None),
        ("u:p@", [("digest", "u:p")], [make_digest_acl("u", "p", all=True)]),
    ],
)
def test_user_of_the_uri_shows_his_password_and_owns_what_he_makes(
    monkeypatch: pytest.MonkeyPatch, user: str, auth: object, acl: object
) -> None:
    """Otherwise anybody could delete it; and without a user nobody is kept out."""

    async def main() -> None:
        server = FakeServer()
        monkeypatch.setattr(session, "KazooClient", server.client)
        store = await open_store(f"zk://{user}h:1/root", session_timeout_s=2.5)
        (client,) = server.clients
        await store.close()
        settings = client.settings
        assert (settings["auth_data"], settings["default_acl"]) == (auth, acl)
        assert (settings["hosts"], settings["timeout"]) == ("h:1", 2.5)
        assert settings["connection_retry"]["max_tries"] == -1, "an outage may last for days"
        assert isinstance(settings["handler"], PollingHandler)

    asyncio.run(main())


@pytest.mark.parametrize(("user", "who"), [("", "no user"), ("u:p@", "user 'u'")])
def test_root_that_is_not_open_to_the_user_is_an_error_that_names_him_and_leaves_no_session(
    monkeypatch: pytest.MonkeyPatch, user: str, who: str
) -> None:
    def refused(client: FakeKazoo, path: str) -> Any:
        def refuse() -> None:
            raise kz.NoAuthError

        return client._request("get", path, refuse)

    async def main() -> None:
        server = FakeServer()
        monkeypatch.setattr(session, "KazooClient", server.client)
        monkeypatch.setattr(FakeKazoo, "get_async", refused)
        with pytest.raises(UnauthorizedError, match=f"refuses '/root' to {who}: check"):
            await open_store(f"zk://{user}h:1/root")
        assert [client.is_stopped for client in server.clients] == [True]

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_store_of_a_while_is_closed_behind_it(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    async def main() -> None:
        server = FakeServer()
        monkeypatch.setattr(session, "KazooClient", server.client)
        with suppress(KeyError):
            async with connected_store("zk://h:1/root") as store:
                await store.create("n", b"", ephemeral=True)
                if fails:
                    raise KeyError
        assert [client.is_stopped for client in server.clients] == [True]
        assert "/root/n" not in server.nodes and "/root" in server.nodes

    asyncio.run(main())


@pytest.mark.parametrize("ends_by", ["timeout", "cancellation"])
def test_connect_to_nobody_leaves_no_session(ends_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that tries again for a day would have thousands of kazoo's threads."""
    server = FakeServer()
    server.is_up = False
    monkeypatch.setattr(session, "KazooClient", server.client)

    async def main() -> None:
        connecting = asyncio.ensure_future(open_store("zk://h:1/root", connect_timeout_s=0.05))
        await asyncio.sleep(0.01)
        if ends_by == "cancellation":
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
        else:
            with pytest.raises(MetadataUnavailableError, match="no ZooKeeper answered"):
                await connecting
        assert [client.is_stopped for client in server.clients] == [True]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.parametrize("how", ["break_connection", "expire", "die"])
def test_store_that_is_closed_without_a_connection_leaves_no_task(run: Run, how: str) -> None:
    """It looked why there was none, or made another client."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        before = asyncio.all_tasks()
        getattr(server.clients[0], how)()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() - before, "it does something about it"
        await store.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before
        assert all(client.is_stopped for client in server.clients)

    run(scenario)


def test_close_that_is_left_while_kazoo_is_replaced_ends_the_session(run: Run) -> None:
    """Else its ephemeral nodes stay for as long as the process lives."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        server.clients[0].die()
        await asyncio.sleep(0)
        told: list[int] = []
        store.watch("n", lambda: told.append(1))
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert told == [1], "whoever waits for a change learns that none will come"
        await store.close()
        assert all(client.is_stopped for client in server.clients)

    run(scenario)


def test_all_that_watch_are_called_back_once_when_the_store_is_closed(run: Run) -> None:
    """Else those that wait for a change wait for ever."""
    told: list[str] = []

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        server.create("/root/a", b"")
        for name in ("a 1", "a 2", "a 3", "b 4", "b 5"):
            store.watch(name[0], lambda name=name: told.append(name))  # type: ignore[misc]
        store.watch("a", lambda: told.append("cancelled")).cancel()
        await store.close()
        await store.close()
        await asyncio.sleep(0)
        assert told == ["a 1", "a 2", "a 3", "b 4", "b 5"]

    run(scenario)


def test_connection_that_died_is_replaced_behind_a_pause(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose credentials are refused would die again and again, each time with new threads."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        monkeypatch.setattr(session, "ZOOKEEPER_RESTART_DELAY_S", 0.05)
        behind = asyncio.Event()
        asyncio.get_running_loop().call_later(0.04, behind.set)
        server.clients[0].die(KeeperState.AUTH_FAILED)
        await behind.wait()
        assert len(server.clients) == 1
        assert await store.children("n") == []
        assert len(server.clients) == 2

    run(scenario)


def test_what_is_said_of_a_server_here_is_part_of_the_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (session, store_module):
        monkeypatch.setattr(module, "read_notice", lambda hosts: f"; {hosts} is out of memory")

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        server.clients[0].break_connection()
        with pytest.raises(MetadataUnavailableError, match=r"nothing was changed; h:1 is out of m"):
            await store.get("n")
        server.is_up = False
        with pytest.raises(MetadataUnavailableError, match=r"zk://h:1/root; h:1 is out of m"):
            await open_store("zk://h:1/root", connect_timeout_s=0.01)

    run(scenario, SHORT_S)


@pytest.mark.parametrize("answers", [0, 1])
def test_probe_ends_though_the_connection_goes_between_two_questions(
    monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """kazoo keeps what is asked meanwhile until there is a connection again, which may be never.
    A process waits at its end for the thread that waits for it."""
    monkeypatch.setattr(restored, "ZOOKEEPER_PROBE_TIMEOUT_S", 0.01)
    handler = SequentialThreadingHandler()

    class Probe:
        last_zxid = 7

        def __init__(self) -> None:
            self.handler = handler
            self.left = answers
            self.ended: list[str] = []

        def start(self, timeout: float) -> None: ...

        def _ask(self, _path: str) -> AsyncResult:
            result = AsyncResult(handler)
            if self.left:
                self.left -= 1
                result.set(None)
            return result

        sync_async = exists_async = _ask

        def stop(self) -> None:
            self.ended.append("stop")

        def close(self) -> None:
            self.ended.append("close")

    probe = Probe()
    found: list[int | None] = []
    client = cast(Client, probe)
    asking = Thread(target=lambda: found.append(newest_change(client, "/")), daemon=True)
    asking.start()
    asking.join(10)
    assert found == [None]
    assert probe.ended == ["stop", "close"]


def test_what_must_be_of_now_is_asked_behind_a_sync(run: Run) -> None:
    """A server that lags would tell an owner that has gone from one that is there, and wrongly."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"", ephemeral=True)
        for question in (store.get_latest, store.is_own):
            server.requests.clear()
            assert await question("n")
            assert [name for name, _path in server.requests] == ["sync", "get"]

    run(scenario)


@pytest.mark.parametrize("operation", ["get_latest", "is_own", "create", "put", "delete"])
def test_all_requests_of_an_operation_share_its_time(
    run: Run, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ZooKeeper silent, one that began anew for each request would take twice its limit."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"", ephemeral=True)
        session, deadlines = store._session, list[float]()
        submit = session.submit

        async def noting(send: Callable[[], Result[Any]], deadline: float) -> Any:
            deadlines.append(deadline)
            return await submit(send, deadline)

        monkeypatch.setattr(session, "submit", noting)
        server.troubles = [Trouble({"put": "set"}.get(operation, operation), How.LOST_REPLY)]
        arguments = {"create": ("m", b""), "put": ("n", b"new", 0)}.get(operation, ("n",))
        await getattr(store, operation)(*arguments)
        assert len(deadlines) == (2 if operation in ("get_latest", "is_own") else 3)
        assert len(set(deadlines)) == 1

    run(scenario)


def test_cluster_of_a_new_session_is_asked_behind_a_sync(run: Run) -> None:
    """A server that lags would pass for one that has lost its data."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        await store.create(CLUSTER_PATH, b"this one")
        await store.get(CLUSTER_PATH)
        server.requests.clear()
        client.expire()
        client.connect()
        await store.get(CLUSTER_PATH)
        path = f"/root/{CLUSTER_PATH}"
        assert server.requests == [("sync", path), ("get", path), ("get", path)]

    run(scenario)


@pytest.mark.parametrize("question", ["get", "get_latest"])
def test_cluster_is_known_however_its_node_was_read(run: Run, question: str) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        await store.create(CLUSTER_PATH, b"this one")
        await getattr(store, question)(CLUSTER_PATH)
        server.delete(f"/root/{CLUSTER_PATH}")
        client.expire()
        client.connect()
        with pytest.raises(ConfigurationError, match="no longer holds the cluster"):
            await store.children("n")

    run(scenario)


def test_missing_node_has_no_children_and_no_number(run: Run) -> None:
    """With that of a node without children, its first child would look like one that came again."""

    async def scenario(_server: FakeServer, store: ZooKeeperStore) -> None:
        assert await store.listing("n") == Versioned([], -1)
        await store.create("n", b"")
        assert await store.listing("n") == Versioned([], 0)

    run(scenario)


@pytest.mark.parametrize("fails_at", ["start", "sync_async", "exists_async", "stop", "close"])
@pytest.mark.parametrize(
    "error",
    [kz.ConnectionLoss(), kz.NoAuthError(), OSError("too many open files"), KazooTimeoutError()],
)
def test_probe_that_fails_anywhere_is_ended_and_says_nothing(
    error: Exception, fails_at: str
) -> None:
    """Else its session and its thread stay, one for each look at an outage."""
    handler = SequentialThreadingHandler()
    called: list[str] = []

    class Probe:
        last_zxid = 7

        def __init__(self) -> None:
            self.handler = handler

        def __getattr__(self, name: str) -> Any:
            def call(*_args: Any, **_options: Any) -> AsyncResult:
                called.append(name)
                if name == fails_at and not (
                    name in ("stop", "close") and isinstance(error, KazooTimeoutError)
                ):
                    raise error
                result = AsyncResult(handler)
                result.set(None)
                return result

            return call

    found = newest_change(cast(Client, Probe()), "/")
    assert found == (7 if fails_at in ("stop", "close") else None)
    assert called[-2:] == ["stop", "close"]


def test_root_that_another_client_makes_at_the_same_time_is_fine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        server = FakeServer()
        monkeypatch.setattr(session, "KazooClient", server.client)
        exists = FakeKazoo.exists_async

        def made_behind(client: FakeKazoo, path: str, watch: Any = None) -> Any:
            answer = exists(client, path, watch)
            if path not in server.nodes:
                server.create(path, b"")
            return answer

        monkeypatch.setattr(FakeKazoo, "exists_async", made_behind)
        store = await open_store("zk://h:1/a/b")
        assert await store.children("n") == []
        await store.close()

    asyncio.run(main())


MNTR = "zk_znode_count\t12\nzk_approximate_data_size\t3456\n"
SRVR = "Mode: standalone\nNode count: 12\n"
REFUSED = "mntr is not executed because it is not in the whitelist."


@pytest.mark.parametrize(
    ("mntr", "srvr", "size"),
    [
        (MNTR, SRVR, StoreSize(12, 3456)),
        (REFUSED, SRVR, StoreSize(12, None)),
        (kz.SessionExpiredError(), SRVR, StoreSize(12, None)),
        (OSError("refused"), SRVR, StoreSize(12, None)),
        (REFUSED, OSError("refused"), StoreSize(None, None)),
    ],
    ids=["both", "refused", "no session", "no connection", "neither"],
)
def test_size_is_what_a_server_says_to_either_question(
    run: Run, mntr: str | Exception, srvr: str | Exception, size: StoreSize
) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        server.words = {b"mntr": mntr, b"srvr": srvr}
        assert await store.size() == size

    run(scenario)


def test_exit_handler_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python begins no thread then. The owner would live on for as long as the session."""

    def refuse(*_args: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    async def main() -> None:
        server = FakeServer()
        monkeypatch.setattr(session, "KazooClient", server.client)
        store = await open_store("zk://h:1/root")
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "to_thread", refuse)
            patch.setattr(threading, "main_thread", Thread)
            await store.close()
        assert [client.is_stopped for client in server.clients] == [True]

    asyncio.run(main())
