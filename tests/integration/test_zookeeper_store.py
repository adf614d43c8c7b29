"""ZooKeeperStore against a real server, over a relay that loses messages and connections."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import Close, Connect

from spark_ledger.errors import (
    ConflictError,
    LedgerClosedError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
    UnauthorizedError,
)
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.base import Check, Create, MetadataStore, Put
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.uri import parse_uri
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore
from spark_ledger.types import BookieId, BookieInfo, Versioned
from tests.integration.relay import Lose, Relay

pytestmark = pytest.mark.processes

WAIT_S = 20.0


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def relayed(
    uri: str, *, operation_timeout_s: float = WAIT_S
) -> AsyncIterator[tuple[Relay, ZooKeeperStore, MetadataStore]]:
    """A store behind a relay, and another straight to the same root."""
    address = parse_uri(uri)
    direct = await open_store(uri)
    async with Relay(int(address.hosts.rpartition(":")[2])) as relay:
        store = await ZooKeeperStore.connect(
            parse_uri(f"zk://127.0.0.1:{relay.port}{address.root}"),
            session_timeout_s=4.0,
            operation_timeout_s=operation_timeout_s,
        )
        try:
            yield relay, store, direct
        finally:
            relay.pass_all()
            relay.open()
            await store.close()
            await direct.close()


@pytest.mark.parametrize("lost", [Lose.REQUEST, Lose.REPLY])
def test_create_after_lost_connection_is_decided_by_a_look(metadata_uri: str, lost: Lose) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            await store.create("d/first", b"")
            relay.lose_next(lost)
            await store.create("d/plain", b"x")
            assert relay.cut.is_set()
            assert await direct.get("d/plain") == Versioned(b"x", 0)
            relay.lose_next(lost)
            await store.create("d/ephemeral", b"x", ephemeral=True)
            relay.lose_next(lost)
            with pytest.raises(ConflictError):
                await store.create("d/plain", b"y")
            await store.close()
            assert await direct.children("d") == ["first", "plain"]

    asyncio.run(main())


@pytest.mark.parametrize("lost", [Lose.REQUEST, Lose.REPLY])
def test_create_over_another_sessions_ephemeral_node_is_a_conflict(
    metadata_uri: str, lost: Lose
) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            await direct.create("lock", b"same", ephemeral=True)
            relay.lose_next(lost)
            with pytest.raises(ConflictError):
                await store.create("lock", b"same", ephemeral=True)

    asyncio.run(main())


def test_is_own_tells_the_session_and_the_latest_value_is_read(metadata_uri: str) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            await direct.create("theirs", b"1", ephemeral=True)
            await direct.create("stays", b"2")
            relay.lose_next(Lose.REPLY)
            await store.create("ours", b"3", ephemeral=True)
            assert [await store.is_own(path) for path in ("theirs", "stays", "ours")] == [
                False,
                False,
                True,
            ]
            assert await store.get_latest("stays") == Versioned(b"2", 0)
            for look in (store.is_own, store.get_latest):
                with pytest.raises(NotFoundError):
                    await look("nothing")

    asyncio.run(main())


@pytest.mark.parametrize("lost", [Lose.REQUEST, Lose.REPLY])
def test_put_after_lost_connection_is_decided_by_a_look(metadata_uri: str, lost: Lose) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            await store.create("n", b"0")
            for version in range(3):
                relay.lose_next(lost)
                value = b"%d" % (version + 1)
                if lost is Lose.REQUEST:
                    # Never sent again: a restored store might have given the version again.
                    with pytest.raises(OutcomeUnknownError):
                        await store.put("n", value, version)
                    assert relay.cut.is_set()
                    await store.put("n", value, version)
                else:
                    assert await store.put("n", value, version) == version + 1
                    assert relay.cut.is_set()
            assert await direct.get("n") == Versioned(b"3", 3)
            relay.lose_next(lost)
            with pytest.raises(ConflictError):
                await store.put("n", b"x", 2)

    asyncio.run(main())


async def interfered(
    relay: Relay, lost: Lose, write: Awaitable[object], meanwhile: Awaitable[object]
) -> object:
    """The result of a write whose message is lost, with another's change before the reconnect."""
    relay.lose_next(lost, then_closed=True)
    task = asyncio.ensure_future(write)
    await relay.cut.wait()
    await meanwhile
    relay.open()
    return await task


def test_put_after_lost_connection_and_anothers_put_is_a_conflict(metadata_uri: str) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            await store.create("n", b"0")
            with pytest.raises(ConflictError, match="'n'"):
                await interfered(
                    relay, Lose.REQUEST, store.put("n", b"mine", 0), direct.put("n", b"theirs", 0)
                )
            assert await direct.get("n") == Versioned(b"theirs", 1)

    asyncio.run(main())


def test_put_after_lost_connection_and_later_puts_is_unknown(metadata_uri: str) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            await store.create("n", b"0")
            with pytest.raises(OutcomeUnknownError, match="'n'"):
                await interfered(
                    relay, Lose.REPLY, store.put("n", b"mine", 0), direct.put("n", b"theirs", 1)
                )
            with pytest.raises(NotFoundError):
                await interfered(relay, Lose.REPLY, store.put("n", b"mine", 2), direct.delete("n"))

    asyncio.run(main())


def test_create_after_lost_connection_and_anothers_write_is_conflict_or_unknown(
    metadata_uri: str,
) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            with pytest.raises(ConflictError):
                await interfered(
                    relay, Lose.REQUEST, store.create("a", b"mine"), direct.create("a", b"theirs")
                )
            with pytest.raises(OutcomeUnknownError):
                await interfered(
                    relay, Lose.REPLY, store.create("b", b"mine"), direct.put("b", b"theirs", 0)
                )

    asyncio.run(main())


@pytest.mark.parametrize("lost", [Lose.REQUEST, Lose.REPLY])
def test_delete_after_lost_connection_is_decided_by_a_look(metadata_uri: str, lost: Lose) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            for version in (-1, 0):
                await store.create("n", b"")
                relay.lose_next(lost)
                await store.delete("n", version)
                assert relay.cut.is_set()
                with pytest.raises(NotFoundError):
                    await direct.get("n")

    asyncio.run(main())


@pytest.mark.parametrize(("lost", "version"), [(Lose.REQUEST, 0), (Lose.REPLY, 1)])
def test_transaction_after_lost_connection_is_unknown(
    metadata_uri: str, lost: Lose, version: int
) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            await store.create("n", b"0")
            relay.lose_next(lost)
            with pytest.raises(OutcomeUnknownError, match="'n'"):
                await store.transaction([Put("n", b"1", 0), Create("m", b"")])
            assert (await direct.get("n")).version == version
            # A refusal that arrives is certain: nothing was changed. The read is one of the new
            # connection: a transaction that has to wait for it ends as unknown.
            assert (await store.get("n")).version == version
            with pytest.raises(ConflictError):
                await store.transaction([Check("n", 9)])

    asyncio.run(main())


def test_read_after_lost_connection_is_sent_again(metadata_uri: str) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            await direct.create("n/child", b"x")
            for lost in (Lose.REQUEST, Lose.REPLY):
                relay.lose_next(lost)
                assert await store.children("n") == ["child"]
                relay.lose_next(lost)
                assert (await store.get("n/child")).value == b"x"

    asyncio.run(main())


def test_silent_server_is_unavailable_for_reads_and_unknown_for_writes(metadata_uri: str) -> None:
    async def main() -> None:
        async with relayed(metadata_uri, operation_timeout_s=0.5) as (relay, store, direct):
            await direct.create("n", b"0")
            ticks: list[float] = []

            async def tick() -> None:
                while True:
                    ticks.append(time.monotonic())
                    await asyncio.sleep(0.01)

            ticker = asyncio.create_task(tick())
            relay.lose_next(Lose.SILENCE)
            results = await asyncio.gather(
                store.get("n"),
                store.children("n"),
                store.put("n", b"1", 0),
                store.transaction([Put("n", b"1", 0)]),
                return_exceptions=True,
            )
            kinds = [type(result) for result in results]
            assert kinds == [MetadataUnavailableError] * 2 + [OutcomeUnknownError] * 2
            ticker.cancel()
            assert len(ticks) > 10  # the loop went on
            relay.pass_all()

    asyncio.run(main())


def test_write_without_connection_is_unavailable(metadata_uri: str) -> None:
    async def main() -> None:
        async with relayed(metadata_uri, operation_timeout_s=0.5) as (relay, store, direct):
            await direct.create("n", b"0")
            relay.lose_next(Lose.REQUEST, then_closed=True)
            with pytest.raises(MetadataUnavailableError):
                await store.get("n")
            for write in (store.put("n", b"1", 0), store.transaction([Put("n", b"1", 0)])):
                with pytest.raises(MetadataUnavailableError, match="nothing was changed"):
                    await write
            relay.open()
            assert (await direct.get("n")).version == 0

    asyncio.run(main())


def test_watches_report_after_a_reconnect(metadata_uri: str) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            calls: list[str] = []
            lost: list[str] = []
            store.watch("n", lambda: calls.append("n"))
            store.on_session_lost(lambda: lost.append("lost"))
            await store.children("n")
            relay.lose_next(Lose.REQUEST, then_closed=True)
            task = asyncio.create_task(store.children("n"))
            await relay.cut.wait()
            await direct.create("n", b"")  # missed
            relay.open()
            await task
            await eventually(lambda: calls == ["n"])
            await direct.create("n/child", b"")  # armed again
            await eventually(lambda: calls == ["n", "n"])
            assert lost == []

    asyncio.run(main())


def test_close_fails_operations_in_flight(metadata_uri: str) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, direct):
            await direct.create("n", b"0")
            relay.lose_next(Lose.SILENCE)
            read = asyncio.create_task(store.get("n"))
            write = asyncio.create_task(store.put("n", b"1", 0))
            await relay.cut.wait()
            closing = asyncio.create_task(store.close())
            with pytest.raises(LedgerClosedError, match="connect again"):
                await read
            with pytest.raises(OutcomeUnknownError):
                await write
            relay.pass_all()
            await closing
            with pytest.raises(LedgerClosedError, match="connect again"):
                await store.get("n")

    asyncio.run(main())


def _kazoo(store: ZooKeeperStore) -> Any:
    """The client below a store, with all that kazoo's own class has."""
    return store._session.client


def expire(store: ZooKeeperStore, port: int) -> None:
    """End the store's session from outside: resume it on another connection and close it there.

    The store must not be able to connect meanwhile: a session goes to whoever resumed it last, and
    the close of an earlier one is not heard."""
    known = store._session.client.client_id
    assert known is not None
    resume = Connect(0, _kazoo(store).last_zxid, 4000, *known, False).serialize()
    end = struct.pack(">ii", 1, Close.type)
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        for message in (resume, end):
            connection.sendall(struct.pack(">i", len(message)) + message)
        while connection.recv(4096):
            pass  # the server hangs up when it is done


def test_an_expired_session_is_replaced(metadata_uri: str, zookeeper: LocalCluster) -> None:
    async def main() -> None:
        async with relayed(metadata_uri) as (relay, store, other):
            registry, reader = BookieRegistry(store), BookieRegistry(other)
            info = BookieInfo(BookieId("b"), "127.0.0.1:1")
            await registry.register(info)
            calls: list[str] = []
            store.watch("n", lambda: calls.append("watch"))
            store.on_session_lost(lambda: calls.append("lost"))
            before = store._session.client.client_id
            relay.lose_next(Lose.NOTHING, then_closed=True)
            await asyncio.to_thread(expire, store, zookeeper.zookeeper_port)
            relay.open()
            await eventually(lambda: "lost" in calls and "watch" in calls and registry.registered)
            assert store._session.client.client_id != before
            assert await reader.list() == [info]
            calls.clear()
            await store.children("n")
            await other.create("n", b"")
            await eventually(lambda: calls == ["watch"])
            await store.close()
            assert await reader.list() == []  # the new registration belonged to the new session

    asyncio.run(main())


def test_connect_without_server_names_the_hosts() -> None:
    async def main() -> None:
        with pytest.raises(MetadataUnavailableError, match=r"127\.0\.0\.1:1,127\.0\.0\.1:2"):
            await open_store("zk://127.0.0.1:1,127.0.0.1:2/x", connect_timeout_s=0.3)

    asyncio.run(main())


def test_a_dead_connection_thread_is_replaced(
    metadata_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)

    async def main() -> None:
        store = await open_store(metadata_uri)
        assert isinstance(store, ZooKeeperStore)
        calls: list[str] = []
        store.on_session_lost(lambda: calls.append("lost"))
        await store.create("n", b"0")

        class Broken:
            type = 4

            def serialize(self) -> bytes:
                raise RuntimeError("a bug in the client library")

        _kazoo(store)._call(Broken(), None)
        await eventually(lambda: calls == ["lost"])
        assert await store.get("n") == Versioned(b"0", 0)
        await store.close()

    asyncio.run(main())


def test_credentials_protect_every_level(zookeeper: LocalCluster) -> None:
    async def main() -> None:
        port = zookeeper.zookeeper_port
        owner_uri = f"zk://owner:s%40cret@127.0.0.1:{port}/secured/a/b"
        store = await open_store(owner_uri)
        await store.create("n/child", b"x")
        await store.transaction([Create("n/other", b"y")])
        for uri in (
            f"zk://127.0.0.1:{port}/secured/a/b",
            f"zk://owner:wrong@127.0.0.1:{port}/secured/a/b",
            f"zk://else:s%40cret@127.0.0.1:{port}/secured/a/b",
            f"zk://127.0.0.1:{port}/secured/new",
        ):
            with pytest.raises(UnauthorizedError, match="credentials") as caught:
                await open_store(uri)
            assert "wrong" not in str(caught.value) and "cret" not in str(caught.value)
        again = await open_store(owner_uri)
        assert await again.children("n") == ["child", "other"]
        stranger = await open_store(f"zk://127.0.0.1:{port}/open")
        assert isinstance(stranger, ZooKeeperStore)
        protected = [
            "/secured",
            "/secured/a",
            "/secured/a/b",
            "/secured/a/b/n",
            "/secured/a/b/n/child",
            "/secured/a/b/n/other",
        ]
        for path in protected:
            result = await asyncio.to_thread(_refusal, stranger, path)
            assert result == ["NoAuthError"] * 3, path
        for each in (store, again, stranger):
            await each.close()

    asyncio.run(main())


def _refusal(stranger: ZooKeeperStore, path: str) -> list[str]:
    """Names of the errors of read, write and delete."""
    client = _kazoo(stranger)
    results = [
        client.get_async(path),
        client.set_async(path, b""),
        client.create_async(f"{path}/intruder", b""),
    ]
    found: list[str] = []
    for result in results:
        try:
            result.get(timeout=WAIT_S)
        except KazooException as error:
            found.append(type(error).__name__)
    return found
