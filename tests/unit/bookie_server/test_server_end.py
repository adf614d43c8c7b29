"""What a bookie tells others while it serves, and how a storage that fails ends it."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from bookie_server import registration, server
from bookie_server.bookie import Bookie
from bookie_server.collection.collector import LedgerCollector
from bookie_server.core.read_only import Cause, Stall
from bookie_server.exit_codes import EXIT_FATAL, EXIT_OK, EXIT_REFUSED
from bookie_server.server import BookieServer
from bookie_server.service import read_threads
from bookie_server.service.grpc_service import BookieService
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.metadata.base import Create, Delete
from spark_ledger.metadata.collection import CollectionOrder, write_order
from spark_ledger.metadata.cookies import LEFT_PATH, cookie_path, leaving_path, left_path
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from tests.unit.bookie_server.test_server import NODE, B, Cluster, until
from tests.unit.bookie_server.test_server import cluster as cluster


@asynccontextmanager
async def serving(cluster: Cluster) -> AsyncIterator[tuple[BookieServer, asyncio.Task[int]]]:
    bookie = cluster.server()
    running = asyncio.create_task(bookie.run())
    await until(lambda: cluster.tree.children("bookies/writable") == [B])
    async with asyncio.timeout(30):
        while not await cluster.is_answered():
            pass
    try:
        yield bookie, running
    finally:
        bookie._stop.set()
        await running


def announced(cluster: Cluster) -> tuple[list[str], list[str]]:
    children = cluster.tree.children
    return children("bookies/writable"), children("bookies/readonly")


def test_storage_that_fails_ends_the_bookie_without_another_answer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained: list[str] = []
    monkeypatch.setattr(BookieService, "drain", lambda _: drained.append("drained"))

    async def main() -> None:
        async with serving(cluster) as (bookie, running):
            bookie._on_fatal("journal: the sync failed")
            async with asyncio.timeout(30):
                assert await running == EXIT_FATAL
        assert not await cluster.is_answered() and drained == []
        assert announced(cluster) == ([], []), "nobody has to wait for its session"
        start = cluster.cookie().start
        assert start is not None and start.counter == 1, "no clean stop is noted"

    asyncio.run(main())


def test_bookie_that_is_told_to_leave_is_read_only_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "BOOKIE_REFRESH_INTERVAL_S", 3600.0)

    async def main() -> None:
        operator = cluster.tree.open_session()
        async with serving(cluster) as (_bookie, running):
            await operator.create(leaving_path(B), b"")
            await until(lambda: announced(cluster) == ([], [B]))
            await operator.delete(leaving_path(B))
            await until(lambda: announced(cluster) == ([B], []))
        assert await running == EXIT_OK

    asyncio.run(main())


@pytest.mark.parametrize("says_which", [True, False])
def test_bookie_that_was_taken_out_while_it_was_away_is_not_registered_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, says_which: bool
) -> None:
    """Its operator was told that it is out, and its directories may be emptied at any time."""

    async def main() -> None:
        operator, away = cluster.tree.open_session(), asyncio.Event()
        registered: list[str] = []

        def interpose(name: str, path: str) -> Fault:
            if (name, path) == ("create", NODE):
                registered.append(path)
            return Fault(Outcome.UNAVAILABLE) if away.is_set() else Fault()

        cluster.interpose = interpose
        async with serving(cluster) as (_, running):
            away.set()
            cluster.expire()
            assert announced(cluster) == ([], [])
            incarnation = cluster.cookie().incarnation.encode()
            await operator.create(left_path(B), incarnation if says_which else b"")
            await operator.delete(cookie_path(B))
            away.clear()
            async with asyncio.timeout(10):
                assert await running == EXIT_REFUSED
        assert registered == [NODE], "at its start"
        assert f"bookie {B} was taken out of its cluster" in caplog.text
        running = asyncio.create_task(cluster.server().run())
        with pytest.raises(ConfigurationError, match="was taken out of its cluster"):
            await running

    asyncio.run(main())


def test_bookie_that_is_taken_out_while_it_registers_is_withdrawn(cluster: Cluster) -> None:
    """Who took it out sees no node of it, and tells nobody that it has to be stopped."""

    async def main() -> None:
        operator = cluster.tree.open_session()
        await operator.create(LEFT_PATH, b"")
        expired = asyncio.Event()

        def interpose(name: str, path: str) -> Fault:
            if (
                (name, path) == ("create", NODE)
                and expired.is_set()
                and announced(cluster) == ([], [])
            ):
                expired.clear()
                cluster.tree.apply([Create(left_path(B), b""), Delete(cookie_path(B))])
            return Fault()

        cluster.interpose = interpose
        async with serving(cluster) as (_, running):
            expired.set()
            cluster.expire()
            async with asyncio.timeout(10):
                assert await running == EXIT_REFUSED
        assert not expired.is_set() and announced(cluster) == ([], [])

    asyncio.run(main())


@pytest.mark.parametrize("left", [None, b"another"])
def test_bookie_that_a_restored_store_does_not_know_serves_on(
    cluster: Cluster, left: bytes | None
) -> None:
    """It has no cookie either, and nobody has taken it out: at most another one that had its name
    before it was formatted."""

    async def main() -> None:
        operator = cluster.tree.open_session()
        async with serving(cluster) as (_, running):
            if left is not None:
                await operator.create(left_path(B), left)
            await operator.delete(cookie_path(B))
            cluster.expire()
            await until(lambda: announced(cluster) == ([B], []))
        assert await running == EXIT_OK

    asyncio.run(main())


def test_stall_of_a_disk_is_told_to_clients_and_to_the_cluster_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "BOOKIE_REFRESH_INTERVAL_S", 3600.0)
    told: list[str] = []
    monkeypatch.setattr(BookieService, "disks_stall", lambda _, reason: told.append(reason))
    stalls: list[Stall | None] = [None]
    monkeypatch.setattr(Bookie, "stall", property(lambda _: stalls[0]))

    async def main() -> None:
        async with serving(cluster):
            stalls[0] = Stall(Cause.JOURNAL_STALLED, "journal /j has not synced")
            await until(lambda: announced(cluster) == ([], [B]))
            assert told == ["journal /j has not synced"]
            stalls[0] = None
            await until(lambda: announced(cluster) == ([B], []))
            assert told == ["journal /j has not synced", ""]

    asyncio.run(main())


def test_disk_that_answers_no_read_is_told_and_the_bookie_stays_writable(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_threads, "READS_STALLED_S", 0.1)
    answers = threading.Event()

    async def hangs(service: BookieService) -> bool:
        await service._answers.reserve("")
        try:
            return await service.reads.run(0, lambda: answers.wait(30))
        finally:
            service._answers.release()

    async def main() -> None:
        async with serving(cluster) as (bookie, _running):
            (directory,) = bookie._config.ledger_directories
            hung = asyncio.ensure_future(hangs(bookie._service))
            status = bookie._report.status
            await until(lambda: status()["stalled_reads"] != {})
            assert list(bookie._service.reads.stalled) == [str(directory)]
            assert f'bookie_reads_stalled{{directory="{directory}"}} 1.0' in (
                bookie._report.exposition().decode()
            )
            assert status()["reads_waiting"] == 0 and announced(cluster) == ([B], [])
            answers.set()
            assert await hung
            await until(lambda: status()["stalled_reads"] == {})

    asyncio.run(main())


def test_metadata_that_hang_do_not_hold_up_the_stop(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BOOKIE_WITHDRAW_TIMEOUT_S", 0.1)

    async def main() -> None:
        async with serving(cluster) as (bookie, running):
            cluster.interpose = lambda _name, _path: Fault(delay_s=3600.0)
            bookie._stop.set()
            async with asyncio.timeout(30):
                assert await running == EXIT_OK

    asyncio.run(main())


@pytest.mark.parametrize("pool", ["reads", "_describing"])
def test_disk_that_hangs_under_a_read_does_not_hold_up_the_stop(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pool: str
) -> None:
    """The bookie flushes, and says that it stops as it should."""
    threads: list[threading.Thread] = []
    monkeypatch.setattr(server, "BOOKIE_READS_END_S", 0.1)
    disk_answers, behind = threading.Event(), threading.Event()

    async def main() -> None:
        async with serving(cluster) as (bookie, running):
            service = bookie._service
            reads = service.reads._lanes[0].pool if pool == "reads" else service._describing
            for _ in range(reads._max_workers):
                reads.submit(disk_answers.wait)
            reads.submit(behind.set)
            threads.extend(reads._threads)
            bookie._stop.set()
            async with asyncio.timeout(30):
                assert await running == EXIT_OK

    try:
        asyncio.run(main())
    finally:
        disk_answers.set()
        for thread in threads:
            thread.join(10)
    assert "a disk does not answer a read" in caplog.text
    assert "did not close in time" not in caplog.text
    start = cluster.cookie().start
    assert start is not None and start.counter == 2, "a clean stop is noted"
    assert not behind.is_set(), "nobody waits for what had not begun"


@pytest.mark.parametrize("error", [OSError(errno.EIO, "a disk failed"), CorruptionError("rotten")])
def test_last_flush_that_fails_is_said_and_the_bookie_stops_as_it_should(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    close = Bookie.close

    def fails(bookie: Bookie) -> None:
        close(bookie)
        raise error

    monkeypatch.setattr(Bookie, "close", fails)
    closed: list[MemoryMetadataStore] = []
    close_store = MemoryMetadataStore.close

    async def close_and_note(store: MemoryMetadataStore) -> None:
        await close_store(store)
        closed.append(store)

    async def main() -> None:
        monkeypatch.setattr(MemoryMetadataStore, "close", close_and_note)
        async with serving(cluster) as (bookie, running):
            assert not closed
            bookie._stop.set()
            assert await running == EXIT_OK, "what was acknowledged is in the journal"
            assert len(closed) == 1, "the session ends with the process"

    asyncio.run(main())
    said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert said == [f"the last flush failed, the journal has everything acknowledged: {error}"]
    start = cluster.cookie().start
    assert start is not None and start.counter == 2, "a clean stop is noted"


def test_storage_that_does_not_close_is_left_behind(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk_answers, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(server, "BOOKIE_CLOSE_TIMEOUT_S", 0.1)
    close = Bookie.close

    def hangs(bookie: Bookie) -> None:
        disk_answers.wait(60)
        close(bookie)
        ended.set()

    monkeypatch.setattr(Bookie, "close", hangs)

    async def main() -> None:
        async with serving(cluster) as (bookie, running):
            bookie._stop.set()
            async with asyncio.timeout(30):
                assert await running == EXIT_OK

    try:
        asyncio.run(main())
    finally:
        disk_answers.set()
        assert ended.wait(30)
    assert "the storage did not close in time" in caplog.text


@pytest.mark.parametrize("enabled", [True, False])
def test_bookie_that_serves_collects_as_configured_and_tells_of_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    monkeypatch.setattr(MemoryMetadataStore, "restored", property(lambda _: "by an operator"))
    settings = msgspec.structs.replace(cluster.config.collection, enabled=enabled, pause_s=0.01)
    cluster.config = msgspec.structs.replace(cluster.config, collection=settings)
    ended: list[object] = []
    stop = LedgerCollector.stop

    async def stop_and_note(collector: LedgerCollector) -> None:
        await stop(collector)
        ended.append(cluster.tree.children("bookies/writable"))

    monkeypatch.setattr(LedgerCollector, "stop", stop_and_note)

    async def main() -> None:
        operator = cluster.tree.open_session()
        async with serving(cluster) as (bookie, running):
            await write_order(operator, B, CollectionOrder(token="now"))
            if enabled:
                await until(lambda: bookie._metrics.collection().passes == 1)
            status = bookie._report.status()
            assert status["metadata_restored"] == "by an operator"
            collection = status["collection"]
            assert isinstance(collection, dict) and collection["passes"] == enabled
            assert not ended
            bookie._stop.set()
            assert await running == EXIT_OK
        assert ended == [[B]] * enabled, "before it is withdrawn, while the store is there"

    asyncio.run(main())
