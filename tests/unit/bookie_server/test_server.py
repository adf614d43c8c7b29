"""The order of a bookie's start, and what ends it: over a metadata store in memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bookie_server import process, server
from bookie_server.config import BookieConfig, parse
from bookie_server.exit_codes import EXIT_OK, EXIT_REPLACED
from bookie_server.registration import format_new, is_formatted
from bookie_server.server import BookieServer
from spark_ledger.local.ports import free_port
from spark_ledger.metadata import bookies
from spark_ledger.metadata.codec import encode_bookie
from spark_ledger.metadata.cookies import BookieCookie, cookie_path, decode_cookie, encode_cookie
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree
from spark_ledger.types import BookieId, BookieInfo, BookieStart

B = BookieId("b1")
NODE = "bookies/writable/b1"


class Cluster:
    """A metadata tree, and the configuration of one bookie in it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree = MemoryTree()
        self.port = free_port()
        self.interpose: Callable[[str, str], Fault] = lambda _name, _path: Fault()
        text = (
            'metadata = "zk://h/x"\nbookie_id = "b1"\nsession_timeout_s = 0.1\n'
            f"[listen]\nport = {self.port}\n[admin]\nenabled = false\n[storage]\n"
            'journal_directory = "journal"\nledger_directories = ["l0"]\n'
            "journal_file_bytes = 4194304\n"
        )
        self.config: BookieConfig = parse(text, root / "bookie.toml")

        self.sessions: list[MemoryMetadataStore] = []

        async def open_store(_uri: str, **_named: object) -> MemoryMetadataStore:
            store = self.tree.open_session(interpose=lambda *asked: self.interpose(*asked))
            self.sessions.append(store)
            return store

        monkeypatch.setattr(server, "open_store", open_store)

    def server(self) -> BookieServer:
        return BookieServer(self.config, ready_file=None, format_if_new=True)

    async def is_answered(self) -> bool:
        """Whether a client gets an answer within a moment."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=0.3)
            except grpc.aio.AioRpcError:
                return False
            return True

    def expire(self) -> None:
        """End the session of the newest process, which goes on with another one."""
        self.sessions[-1].expire()

    def cookie(self) -> BookieCookie:
        return decode_cookie(B, self.tree.get(cookie_path(B)).value)

    async def leave_node(self) -> MemoryMetadataStore:
        """What a process leaves behind that was killed before its bookie's first start."""
        session = self.tree.open_session()
        if not is_formatted(self.config):
            await format_new(self.config, session)
        await session.create(NODE, encode_bookie(BookieInfo(B, "h:9")), ephemeral=True)
        return session


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_nothing_is_answered_before_the_bookie_is_registered(cluster: Cluster) -> None:
    async def main() -> None:
        registering = asyncio.Event()

        def interpose(name: str, path: str) -> Fault:
            if (name, path) != ("create", NODE):
                return Fault()
            registering.set()
            return Fault(delay_s=1.0)

        cluster.interpose = interpose
        bookie = cluster.server()
        running = asyncio.create_task(bookie.run())
        async with asyncio.timeout(30):
            await registering.wait()
        assert not await cluster.is_answered()
        async with asyncio.timeout(30):
            while not await cluster.is_answered():
                pass
        assert cluster.tree.children("bookies/writable") == [B]
        bookie._stop.set()
        assert await running == EXIT_OK
        assert cluster.tree.children("bookies/writable") == []
        assert cluster.cookie().start is not None and cluster.cookie().is_confirmed

    asyncio.run(main())


def test_start_waits_for_the_session_of_its_predecessor(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        dead = await cluster.leave_node()
        bookie = cluster.server()
        running = asyncio.create_task(bookie.run())
        await until(lambda: "waiting until it ends" in caplog.text)
        await asyncio.sleep(0.1)
        assert cluster.cookie().start is None, "whoever lives is not told that it is replaced"
        assert not await cluster.is_answered()
        dead.expire()
        await until(lambda: cluster.tree.children("bookies/writable") == [B])
        start = cluster.cookie().start
        assert start is not None and start.counter == 1
        bookie._stop.set()
        assert await running == EXIT_OK
        stop = cluster.cookie().start
        assert stop is not None and stop.counter == 2, "a clean stop is counted as well"

    asyncio.run(main())


def test_signal_ends_the_wait_for_a_predecessor(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        await cluster.leave_node()
        bookie = cluster.server()
        running = asyncio.create_task(bookie.run())
        await until(lambda: "waiting until it ends" in caplog.text)
        bookie._stop.set()
        with pytest.raises(server.Stopped):
            await running
        assert cluster.tree.children("bookies/writable") == [B], "that of the other"

    asyncio.run(main())


def test_predecessor_that_lives_ends_the_start_with_its_own_code(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookies, "REGISTRATION_MARGIN_S", 0.1)
    turns_s: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", turns_s.append)
    asyncio.run(cluster.leave_node())
    assert process.run(cluster.config, format_if_new=True) == EXIT_REPLACED
    assert cluster.tree.children("bookies/writable") == [B]
    assert cluster.cookie().start is None
    assert len(turns_s) == 1 and turns_s[0] < 0.005, "the loop waits so long behind each thread"


@pytest.mark.parametrize("how", ["later start", "other registration"])
def test_bookie_that_is_replaced_stops_without_another_answer(cluster: Cluster, how: str) -> None:
    async def main() -> None:
        bookie = cluster.server()
        running = asyncio.create_task(bookie.run())
        await until(lambda: cluster.tree.children("bookies/writable") == [B])
        other = cluster.tree.open_session()
        if how == "later start":
            node = await other.get(cookie_path(B))
            later = msgspec.structs.replace(cluster.cookie(), start=BookieStart(99, "x"))
            await other.put(cookie_path(B), encode_cookie(later), node.version)
        else:
            await other.delete(NODE)
            await other.create(NODE, encode_bookie(BookieInfo(B, "h:9")), ephemeral=True)
        async with asyncio.timeout(30):
            assert await running == EXIT_REPLACED
        assert not await cluster.is_answered()
        start = cluster.cookie().start
        assert start is not None and start.counter == (99 if how == "later start" else 1)
        left = [] if how == "later start" else [B]
        assert cluster.tree.children("bookies/writable") == left

    asyncio.run(main())
