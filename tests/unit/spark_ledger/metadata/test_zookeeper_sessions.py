"""The ZooKeeper store over reconnects, new sessions, other stores and the death of kazoo."""

from __future__ import annotations

import asyncio
import gc

import pytest
from kazoo.protocol.states import KeeperState

from spark_ledger.errors import ConfigurationError, LedgerClosedError, OutcomeUnknownError
from spark_ledger.metadata.base import Delete
from spark_ledger.metadata.cluster import CLUSTER_PATH
from spark_ledger.metadata.codec import ClusterNode
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.zookeeper import session
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore
from spark_ledger.types import PlacementPolicy
from tests.unit.spark_ledger.metadata.fake_zookeeper import (
    LONG_S,
    SHORT_S,
    FakeServer,
    How,
    Run,
    Trouble,
    eventually,
    run,
    settle,
)

__all__ = ["run"]

IDENTITY = f"/root/{CLUSTER_PATH}"


def test_lost_session_is_told_once_when_the_new_one_stands(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        lost: list[int] = []
        told: list[int] = []
        watch = store.on_session_lost(lambda: lost.append(server.sessions))
        store.on_session_lost(lambda: told.append(server.sessions))
        client.break_connection()
        client.connect()
        await settle()
        assert lost == [], "the session has outlived that"
        client.expire()
        await settle()
        client.break_connection()
        await settle()
        assert lost == [], "nobody can make a node again yet"
        client.connect()
        await eventually(lambda: bool(lost))
        assert lost == [server.sessions]
        client.break_connection()
        client.connect()
        await settle()
        assert lost == told == [server.sessions], "once"
        watch.cancel()
        client.expire()
        client.connect()
        await settle()
        assert (len(lost), len(told)) == (1, 2)

    run(scenario)


def test_new_session_of_another_store_is_refused_until_the_old_one_is_back(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        await store.create(CLUSTER_PATH, b"this one")
        await store.get(CLUSTER_PATH)
        for other in (None, b"another"):
            server.delete(IDENTITY)
            if other is not None:
                server.create(IDENTITY, other)
            client.expire()
            client.connect()
            for operation in (store.get("n"), store.create("n", b""), store.children("n")):
                how = "missing" if other is None else "another one"
                with pytest.raises(ConfigurationError, match=rf"no longer holds the .* is {how}"):
                    await operation
            assert "/root/n" not in server.nodes
            if other is None:
                server.create(IDENTITY, b"")
            server.delete(IDENTITY)
            server.create(IDENTITY, b"this one")
            client.expire()
            client.connect()
            assert await store.children("n") == []

    run(scenario)


def test_store_that_is_closed_says_so_though_another_store_had_answered(run: Run) -> None:
    """Whoever tries again until an operator has mended that would do so for ever."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        await store.create(CLUSTER_PATH, b"this one")
        await store.get(CLUSTER_PATH)
        server.delete(IDENTITY)
        client.expire()
        client.connect()
        with pytest.raises(ConfigurationError):
            await store.get("n")
        await store.close()
        for operation in (store.get("n"), store.create("n", b""), store.transaction([Delete("n")])):
            with pytest.raises(LedgerClosedError):
                await operation

    run(scenario)


def test_cluster_is_the_one_that_was_read_first(run: Run) -> None:
    """Not the one that another store shows in the same session, before anybody has compared."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        await store.create(CLUSTER_PATH, b"this one")
        for question in (store.get, store.get_latest):
            await question(CLUSTER_PATH)
            server.set(IDENTITY, b"another")
        client.expire()
        client.connect()
        with pytest.raises(ConfigurationError, match=r"no longer holds the cluster"):
            await store.children("n")
        server.set(IDENTITY, b"this one")
        client.expire()
        client.connect()
        assert await store.children("n") == []

    run(scenario)


def test_new_session_finds_the_cluster_again_whose_placement_policy_was_changed(run: Run) -> None:
    """Every client that had read the node before the change was refused for ever."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        before = ClusterNode(cluster_id="c1")
        await store.create(CLUSTER_PATH, encode_node(before))
        await store.get(CLUSTER_PATH)
        await store.put(CLUSTER_PATH, encode_node(before.with_policy(PlacementPolicy(2))), 0)
        client.expire()
        client.connect()
        assert await store.children("n") == []
        server.set(IDENTITY, encode_node(ClusterNode(cluster_id="c2")))
        client.expire()
        client.connect()
        with pytest.raises(ConfigurationError, match=r"no longer holds the cluster"):
            await store.children("n")

    run(scenario)


def test_operation_is_not_sent_in_a_session_that_nobody_has_verified(run: Run) -> None:
    """kazoo knows its new session before its listener was heard."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        await store.create(CLUSTER_PATH, b"this one")
        await store.get(CLUSTER_PATH)
        server.delete(IDENTITY)
        client.expire(silently=True)
        server.sessions += 1
        client._session = server.sessions
        client.connected, client.client_id = True, (client._session, b"")
        creating = asyncio.create_task(store.create("n", b"", ephemeral=True))
        await settle()
        assert "/root/n" not in server.nodes
        client.tell("LOST")
        client.tell("CONNECTED")
        with pytest.raises(ConfigurationError):
            await creating
        assert "/root/n" not in server.nodes

    run(scenario)


@pytest.mark.parametrize("name", ["sync", "get"])
@pytest.mark.parametrize("how", [How.LOST_REPLY, How.NO_ANSWER])
def test_verification_that_fails_is_made_again(run: Run, name: str, how: How) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        await store.create(CLUSTER_PATH, b"this one")
        await store.get(CLUSTER_PATH)
        lost: list[int] = []
        store.on_session_lost(lambda: lost.append(1))
        server.troubles = [Trouble(name, how), Trouble(name, how)]
        client.expire()
        client.connect()
        await eventually(lambda: bool(lost))
        assert (await store.get(CLUSTER_PATH)).value == b"this one"
        assert lost == [1]

    run(scenario, SHORT_S)


@pytest.mark.parametrize("comes_before", [True, False])
def test_verification_that_waits_to_be_repeated_ends_with_what_it_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, comes_before: bool
) -> None:
    """Otherwise one connection is counted twice, or a timer outlives its store."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        delay_s = 0.01 if comes_before else LONG_S
        monkeypatch.setattr(session, "ZOOKEEPER_RESTART_DELAY_S", delay_s)
        (client,) = server.clients
        await store.create(CLUSTER_PATH, b"this one")
        await store.get(CLUSTER_PATH)
        back = Trouble("sync", How.LOST_REPLY, meanwhile=client.connect, comes_back=False)
        server.troubles = [back]
        client.expire()
        client.connect()
        await settle()
        assert store.connections == 1, "nobody has verified the second one"
        if comes_before:
            behind = asyncio.Event()
            asyncio.get_running_loop().call_later(delay_s, behind.set)
            client.break_connection()
            client.connect()
            assert (await store.get(CLUSTER_PATH)).value == b"this one"
            await behind.wait()
            await settle()
            assert store.connections == 2

    run(scenario)


@pytest.mark.parametrize("state", [KeeperState.CLOSED, KeeperState.AUTH_FAILED])
def test_death_of_kazoo_starts_another_client(run: Run, state: str) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"0")
        for version in range(3):
            old = server.clients[-1]
            lost: list[int] = []
            watch = store.on_session_lost(lambda lost=lost: lost.append(1))  # type: ignore[misc]
            old.die(state)
            with pytest.raises(OutcomeUnknownError, match="connection to ZooKeeper broke"):
                await store.put("n", b"x", version)
            assert await store.put("n", b"x", version) == version + 1
            assert server.clients[-1] is not old
            await eventually(lambda old=old: old.is_stopped)  # type: ignore[misc]
            old.tell("SUSPENDED")
            old.tell("LOST")
            await settle()
            assert (await store.get("n")).version == version + 1
            assert lost == [1]
            watch.cancel()

    run(scenario)


def test_write_under_way_when_kazoo_dies_goes_to_its_successor(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"0")
        (old,) = server.clients
        for name in ("set", "create", "delete"):
            old = server.clients[-1]
            server.troubles = [Trouble(name, How.LOST_REQUEST, old.die, comes_back=False)]
            if name == "set":
                with pytest.raises(OutcomeUnknownError, match="connection to ZooKeeper broke"):
                    await store.put("n", b"1", 0)  # the version may have been given again
                assert await store.put("n", b"1", 0) == 1
            elif name == "create":
                await store.create("m", b"", ephemeral=True)
                assert server.nodes["/root/m"].owner == server.sessions
            else:
                await store.delete("n")
            assert server.clients[-1] is not old
        assert "/root/n" not in server.nodes

    run(scenario)


def test_close_while_kazoo_is_replaced_leaves_no_client(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        server.clients[0].die()
        await settle()
        await store.close()
        await store.close()
        assert all(client.is_stopped for client in server.clients)

    server = run(scenario)
    gc.collect()
    assert len(server.clients) <= 2
