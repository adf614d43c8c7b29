"""ZooKeeperStore when its server is killed, paused, starting, or comes back without its data."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.base import Check, Create, MetadataStore
from spark_ledger.metadata.cluster import ensure_cluster, read_cluster
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.uri import parse_uri
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore
from spark_ledger.types import Versioned
from tests.integration.relay import Lose, Relay

pytestmark = pytest.mark.processes

WAIT_S = 20.0


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def own_zookeeper() -> Iterator[LocalCluster]:
    """A server that tests of this module kill and pause."""
    with LocalCluster(bookies=0) as cluster:
        yield cluster


def test_a_killed_server_comes_back_with_its_data(own_zookeeper: LocalCluster) -> None:
    async def main() -> None:
        uri = f"{own_zookeeper.uri}/killed"
        store = await open_store(uri)
        calls: list[str] = []
        store.on_session_lost(lambda: calls.append("lost"))
        await store.create("n", b"0")
        await store.create("e", b"", ephemeral=True)
        store.watch("n", lambda: calls.append("watch"))
        await store.get("n")
        await asyncio.to_thread(own_zookeeper.kill_zookeeper)
        reads = [asyncio.create_task(store.get("n")) for _ in range(3)]
        write = asyncio.create_task(store.put("n", b"1", 0))
        await asyncio.to_thread(own_zookeeper.start_zookeeper)
        with pytest.raises(OutcomeUnknownError):  # it may be another store that came back
            await write
        assert (await store.get("n")).version == 0
        assert await store.put("n", b"1", 0) == 1
        for read in reads:
            assert (await read).value in (b"0", b"1")
        await eventually(lambda: "watch" in calls)
        assert await store.get("e") == Versioned(b"", 0)  # back within the session's time
        assert "lost" not in calls
        await store.close()

    asyncio.run(main())


def test_server_that_lost_its_data_is_refused() -> None:
    async def main(cluster: LocalCluster) -> None:
        store, fresh_root = await open_store(cluster.uri), await open_store(f"{cluster.uri}-new")
        watcher = await open_store(cluster.uri)
        calls: list[str] = []
        watcher.on_session_lost(lambda: calls.append("lost"))
        watcher.watch("n", lambda: calls.append("watch"))
        cluster_id = await ensure_cluster(store)
        assert await read_cluster(watcher) == cluster_id
        await store.create("n", b"0")
        await eventually(lambda: "watch" in calls)
        calls.clear()
        data = cluster.directory / "zookeeper" / "data"
        await asyncio.to_thread(cluster.kill_zookeeper)
        shutil.move(data, data.with_name("aside"))
        await asyncio.to_thread(cluster.start_zookeeper)
        direct = await accepted_by(cluster)
        for use in (
            store.create("m/n", b""),
            store.get("n"),
            store.children("n"),
            store.put("n", b"1", 0),
            store.transaction([Create("t", b"")]),
            ensure_cluster(store),
        ):
            with pytest.raises(ConfigurationError, match=r"no longer holds the cluster .* missing"):
                await use
        await eventually(lambda: set(calls) == {"lost", "watch"})
        with pytest.raises(NotFoundError):
            await fresh_root.create("n", b"")  # nothing was known there that could be another
        assert await direct.children("m") == []
        other_id = await ensure_cluster(direct)
        assert other_id != cluster_id

        await asyncio.to_thread(cluster.kill_zookeeper)
        shutil.rmtree(data)
        shutil.move(data.with_name("aside"), data)
        await asyncio.to_thread(cluster.start_zookeeper)
        await (await accepted_by(cluster, writes=600)).close()
        await eventually_works(store)
        assert await read_cluster(store) == cluster_id
        assert await store.get("n") == Versioned(b"0", 0)
        with pytest.raises(ConfigurationError, match="another one"):
            await direct.get("n")
        for opened in (store, fresh_root, watcher, direct):
            await opened.close()

    with LocalCluster(bookies=0) as cluster:
        asyncio.run(main(cluster))


async def accepted_by(cluster: LocalCluster, writes: int = 100) -> MetadataStore:
    """A session that writes until the server's transaction ids pass those that clients have seen.

    Before that, ZooKeeper refuses them: it takes them for clients with newer data than its own.
    """
    store = await open_store(cluster.uri)
    await asyncio.gather(*(store.create(f"x/{n}", b"") for n in range(writes)))
    return store


async def eventually_works(store: MetadataStore) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await store.get("n")
            except ConfigurationError:
                await asyncio.sleep(0.02)
            else:
                return


def test_a_server_that_swallows_the_first_message_is_tried_again_soon(metadata_uri: str) -> None:
    async def main() -> None:
        address = parse_uri(metadata_uri)
        async with Relay(int(address.hosts.rpartition(":")[2])) as relay:
            relay.lose_next(Lose.SILENCE)
            connecting = asyncio.create_task(
                ZooKeeperStore.connect(
                    parse_uri(f"zk://127.0.0.1:{relay.port}{address.root}"),
                    session_timeout_s=2 * WAIT_S,
                    connect_timeout_s=WAIT_S,
                )
            )
            await relay.cut.wait()
            relay.pass_new()
            store = await connecting
            await store.create("n", b"")
            await store.close()

    asyncio.run(main())


def test_operations_time_out_at_their_own_timeout(own_zookeeper: LocalCluster) -> None:
    async def main() -> None:
        uri = f"{own_zookeeper.uri}/bounded"
        store = await open_store(uri, operation_timeout_s=0.3)
        await store.create("n", b"")
        own_zookeeper.pause_zookeeper()
        try:
            with pytest.raises(MetadataUnavailableError, match=r"within 0\.3 s"):
                while True:  # the signal may take a moment
                    await store.get("n")
            with pytest.raises(MetadataUnavailableError, match=r"within 0\.3 s"):
                await store.children("n")
            with pytest.raises(OutcomeUnknownError):
                await store.put("n", b"1", 0)
            with pytest.raises(OutcomeUnknownError):
                await store.transaction([Check("n", 0)])
        finally:
            own_zookeeper.resume_zookeeper()
        await store.close()

    asyncio.run(main())
