"""The ZooKeeper store while no connection comes back: was the server restored from a backup?

It refuses whoever has seen later changes, without a word: a fresh client has to look.
"""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from spark_ledger.metadata.zookeeper import session
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore
from tests.unit.spark_ledger.metadata.fake_zookeeper import (
    FakeKazoo,
    FakeServer,
    Run,
    eventually,
    run,
    settle,
)

__all__ = ["run"]

SEEN = 100
"""The last change that the client has seen."""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int | Exception | None]:
    """The newest changes that probes find, one after the other; an error is raised."""
    found: list[int | Exception | None] = []

    def newest_change(_client: object, _path: str) -> int | None:
        answer = found.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(session, "newest_change", newest_change)
    monkeypatch.setattr(session, "ZOOKEEPER_PROBE_AFTER_S", 0.005)
    return found


def cut(server: FakeServer) -> None:
    """The connection breaks, and none comes back."""
    server.clients[0].last_zxid = SEEN
    server.clients[0].break_connection()


@pytest.mark.parametrize("before", [[], [None], [SEEN, None, SEEN + 1]])
def test_store_that_went_back_is_found_out_however_often_nothing_was_found_before(
    run: Run, answers: list[int | Exception | None], before: list[int | None]
) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        lost: list[int] = []
        watched: list[int] = []
        store.on_session_lost(lambda: lost.append(1))
        store.watch("n", lambda: watched.append(1))
        connections = store.connections
        answers.extend([*before, SEEN - 1])
        cut(server)
        await eventually(lambda: store.connections > connections)
        await settle()
        assert "restored from a backup" in store.restored
        assert lost == [1], "nodes of the session are gone"
        assert watched == [1], "what was read may be out of date"
        first, *_, last = server.clients
        await eventually(lambda: first.is_stopped)
        assert not first.connected
        assert last.connected and not last.is_stopped
        server.create("/root/n", b"now")
        assert (await store.get("n")).value == b"now", "it goes on"
        await settle()
        assert watched == [1, 1]

    run(scenario)


def test_server_that_comes_back_with_all_that_was_seen_was_not_restored(
    run: Run, answers: list[int | Exception | None]
) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        answers.extend([None, SEEN, SEEN + 5])
        cut(server)
        await eventually(lambda: not answers)
        server.clients[0].connect()
        await asyncio.sleep(0.05)
        assert store.restored == ""
        assert not server.clients[0].is_stopped
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nobody looks any more"

    run(scenario)


@pytest.mark.parametrize("comes", ["connection", "close", "other client"])
def test_answer_that_comes_late_changes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """The connection came back, or was given up, while a fresh client looked."""
    asked, may_answer = Event(), Event()

    def newest_change(_client: object, _path: str) -> int:
        asked.set()
        may_answer.wait(10)
        return SEEN - 1

    monkeypatch.setattr(session, "newest_change", newest_change)
    monkeypatch.setattr(session, "ZOOKEEPER_PROBE_AFTER_S", 0.005)

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        cut(server)
        await asyncio.to_thread(asked.wait, 10)
        if comes == "connection":
            server.clients[0].connect()
        elif comes == "close":
            await store.close()
        else:
            server.clients[0].die()
            await eventually(lambda: store.connections == 2)
        used = len([client for client in server.clients if client.connected])
        may_answer.set()
        await asyncio.sleep(0.05)
        assert store.restored == ""
        assert len([client for client in server.clients if client.connected]) == used

    run(scenario)


def test_next_outage_is_looked_into_after_one_that_was_over_or_could_not_be(
    run: Run, answers: list[int | Exception | None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        answers.append(OSError("too many open files"))
        cut(server)
        await eventually(lambda: "nobody looks why" in caplog.text)
        client.connect()
        await settle()
        cut(server)
        client.connect()
        await asyncio.sleep(0.02)
        cut(server)
        client.connect()
        cut(server)  # it was connected for a moment, before anybody looked
        answers.append(SEEN - 1)
        await eventually(lambda: bool(store.restored))

    run(scenario)


def test_store_that_goes_back_twice_says_so(
    run: Run, answers: list[int | Exception | None]
) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        async def go_back() -> int:
            connections, client = store.connections, server.clients[-1]
            client.last_zxid = SEEN
            answers.append(SEEN - 1)
            client.break_connection()
            await eventually(lambda: store.connections > connections)
            return store.restores

        assert store.restores == 0
        assert [await go_back() for _ in range(2)] == [1, 2]

    run(scenario)


class Flapping(FakeKazoo):
    """Its connection breaks in the moment after somebody has seen that it stands."""

    @property
    def connected(self) -> bool:
        if self.__dict__["connected"] and self.__dict__.pop("breaks", False):
            self.break_connection()
            return True
        return bool(self.__dict__["connected"])

    @connected.setter
    def connected(self, value: bool) -> None:
        self.__dict__["connected"] = value


def test_connection_that_breaks_as_a_look_ends_is_looked_into_again(
    run: Run, answers: list[int | Exception | None]
) -> None:
    """Else a server that was restored is asked with the session that it refuses for ever."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        client.__class__ = Flapping
        cut(server)
        client.connect()
        await settle()
        client.__dict__["breaks"] = True
        answers.append(SEEN - 1)
        await eventually(lambda: bool(store.restored))

    run(scenario)


def test_outage_is_looked_into_with_a_client_of_its_own_each_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended with the look: that of the store would never come back."""
    probes: list[tuple[FakeKazoo, str]] = []

    def newest_change(client: FakeKazoo, path: str) -> int:
        probes.append((client, path))
        client.is_stopped = True
        return SEEN

    monkeypatch.setattr(session, "newest_change", newest_change)
    monkeypatch.setattr(session, "ZOOKEEPER_PROBE_AFTER_S", 0.005)

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (first,) = server.clients
        cut(server)
        await eventually(lambda: len(probes) >= 3)
        first.connect()
        assert len({id(client) for client, _ in probes[:3]} - {id(first)}) == 3
        assert {path for _, path in probes} == {"/root"}
        assert {client.settings["hosts"] for client, _ in probes} == {first.settings["hosts"]}
        assert await store.children("n") == [] and not first.is_stopped

    run(scenario)


def test_connection_that_dies_when_the_store_was_found_to_be_older_is_replaced_once(
    run: Run, answers: list[int | Exception | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the nodes of the session that has just begun are gone, and nobody is told."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        monkeypatch.setattr(session, "ZOOKEEPER_RESTART_DELAY_S", 0.05)
        lost: list[int] = []
        store.on_session_lost(lambda: lost.append(server.sessions))
        answers.append(SEEN - 1)
        (first,) = server.clients
        cut(server)
        await eventually(lambda: bool(store.restored))
        await asyncio.sleep(0.02)
        first.die()
        await store.create("n", b"", ephemeral=True)
        await asyncio.sleep(0.1)
        assert lost == [server.nodes["/root/n"].owner]
        await eventually(lambda: first.is_stopped)
        assert server.clients[-1].connected
        assert await store.is_own("n")

    run(scenario)


def test_watch_of_an_outage_stays_when_another_of_its_node_goes(run: Run) -> None:
    """Nothing stands for it at the server yet."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        client.break_connection()
        store.watch("m", lambda: None).cancel()
        assert not store._watches._watches, "nothing is kept of it"
        calls: list[int] = []
        other = store.watch("n", lambda: calls.append(0))
        watch = store.watch("n", lambda: calls.append(1))
        other.cancel()
        client.connect()
        await settle()
        assert calls == [1]
        server.create("/root/n", b"")
        await settle()
        assert calls == [1, 1]
        watch.cancel()

    run(scenario)
