"""Watches of the ZooKeeper store: what is told, what a reconnect hides, what is left behind."""

from __future__ import annotations

import pytest
from kazoo.protocol.states import EventType

from spark_ledger.metadata.zookeeper.store import ZooKeeperStore
from tests.unit.spark_ledger.metadata.fake_zookeeper import (
    Event,
    FakeServer,
    Run,
    run,
    settle,
)

__all__ = ["run"]


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
