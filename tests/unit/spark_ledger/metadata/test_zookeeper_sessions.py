"""The ZooKeeper store over reconnects, new sessions, other stores and the death of kazoo."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest
from kazoo.protocol.states import EventType, KeeperState

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
    Event,
    FakeServer,
    How,
    Run,
    Trouble,
    run,
)

__all__ = ["run"]

IDENTITY = f"/root/{CLUSTER_PATH}"


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.001)


async def settle() -> None:
    """Let everything that is under way on the loop happen."""
    for _ in range(10):
        await asyncio.sleep(0)


# -- watches ---------------------------------------------------------------------------------------


def test_watch_reports_every_change_and_what_a_reconnect_may_have_hidden(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        calls: list[int] = []
        store.watch("n", lambda: calls.append(1))
        server.create("/root/n", b"")
        await settle()
        assert len(calls) == 1
        for version in range(3):
            server.set("/root/n", b"%d" % version)
            await settle()
            server.create(f"/root/n/child{version}", b"")
            await settle()
            assert len(calls) == 3 + 2 * version
        client.break_connection()
        await settle()
        assert len(calls) == 7, "a broken connection is no change"
        server.set("/root/n", b"while away")
        client.connect()
        await settle()
        assert len(calls) == 8, "it may have missed one"
        server.set("/root/n", b"again")
        server.delete("/root/n/child0")
        await settle()
        assert len(calls) == 9, "two at once are one call, and the watch stands again"
        client.expire()
        client.connect()
        await settle()
        assert len(calls) == 10

    run(scenario)


def test_watch_is_armed_before_its_subscribers_are_called(run: Run) -> None:
    """Otherwise a change right behind their read would be missed."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        armed: list[bool] = []
        store.watch("n", lambda: armed.append(bool(client.data_watches.get("/root/n"))))
        server.create("/root/n", b"")
        await settle()
        server.set("/root/n", b"1")
        await settle()
        client.break_connection()
        client.connect()
        await settle()
        assert armed == [True] * 3
        assert client.child_watches.get("/root/n")

    run(scenario)


def test_cancelled_watch_leaves_the_other_and_calls_nobody(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        calls: list[str] = []
        one = store.watch("n", lambda: calls.append("one"))
        other = store.watch("n", lambda: calls.append("other"))
        server.create("/root/n", b"")
        one.cancel()
        await settle()
        assert calls == ["other"]
        server.set("/root/n", b"1")
        await settle()
        assert calls == ["other"] * 2
        other.cancel()
        server.set("/root/n", b"2")
        await settle()
        assert calls == ["other"] * 2

    run(scenario)


def test_change_during_a_callback_calls_again(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        seen: list[bytes] = []

        def changed() -> None:
            seen.append(server.nodes["/root/n"].data)
            if len(seen) == 1:
                server.set("/root/n", b"2")

        store.watch("n", changed)
        server.create("/root/n", b"1")
        await settle()
        assert seen == [b"1", b"2"]

    run(scenario)


@pytest.mark.parametrize("changes", [False, True])
def test_watches_that_come_and_go_leave_nothing_behind(run: Run, changes: bool) -> None:
    """As those of a program that looks into a ledger again and again for a year."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        server.create("/root/n", b"")
        calls: list[int] = []
        for number in range(20):
            watch = store.watch("n", lambda: calls.append(1))
            if changes:
                server.set("/root/n", b"%d" % number)
                await settle()
                assert len(calls) == number + 1
            watch.cancel()
            server.set("/root/n", b"unseen" if number % 3 else b"")
            if number % 2:
                await settle()
        for watches in (client.data_watches, client.child_watches):
            assert len(watches.get("/root/n", ())) <= 1
        await settle()
        store.watch("n", lambda: calls.append(1))
        calls.clear()
        server.create("/root/n/child", b"")
        await settle()
        assert calls == [1]
        server.set("/root/n", b"seen")
        await settle()
        assert calls == [1, 1]

    run(scenario)


def test_watch_whose_children_change_while_nobody_wants_it_is_used_again(run: Run) -> None:
    """That of its data stands still, and nobody can take it back."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        server.create("/root/n", b"")
        calls: list[int] = []
        for number in range(5):
            store.watch("n", lambda: calls.append(1)).cancel()
            server.create(f"/root/n/{number}", b"")
            await settle()
        assert len(client.data_watches["/root/n"]) == 1
        last = store.watch("n", lambda: calls.append(1))
        server.create("/root/n/seen", b"")
        await settle()
        assert calls == [1]
        server.set("/root/n", b"seen")
        await settle()
        assert calls == [1, 1]
        last.cancel()
        server.create("/root/n/last", b"")
        server.set("/root/n", b"unseen")
        await settle()
        assert not store._watches._watches, "nothing stands any more"

    run(scenario)


def test_watch_that_nobody_wants_is_forgotten_with_its_connection(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        for number in range(20):
            server.create(f"/root/n{number}", b"")
            store.watch(f"n{number}", lambda: None).cancel()
        client.break_connection()
        client.connect()
        await settle()
        assert not client.data_watches and not client.child_watches
        assert not store._watches._watches

    run(scenario)


@pytest.mark.parametrize("kind", ["data", "children"])
def test_watch_of_which_one_half_has_fired_is_used_again(run: Run, kind: str) -> None:
    """The other half stands, and nobody can take it back: each tail would leave one behind."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        server.create("/root/n", b"")
        for number in range(5):
            store.watch("n", lambda: None).cancel()
            if kind == "data":
                server.set("/root/n", b"")
            else:
                server.create(f"/root/n/{number}", b"")
            await settle()
        stands = client.child_watches if kind == "data" else client.data_watches
        assert len(stands["/root/n"]) == 1

    run(scenario)


def test_event_of_a_watch_that_is_forgotten_takes_no_other_of_its_node_away(run: Run) -> None:
    """kazoo tells events and connections in two threads, so the one may be late."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        server.create("/root/n", b"")
        store.watch("n", lambda: None).cancel()
        (late,) = client.data_watches["/root/n"]
        for _ in range(2):
            client.break_connection()
            client.connect()
            await settle()
        calls: list[int] = []
        watch = store.watch("n", lambda: calls.append(1))
        late(Event(EventType.CHANGED))
        await settle()
        assert calls == []
        client.break_connection()
        client.connect()
        await settle()
        assert calls == [1]
        watch.cancel()

    run(scenario)


# -- sessions --------------------------------------------------------------------------------------


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
