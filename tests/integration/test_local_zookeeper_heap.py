"""The local ZooKeeper: one that ends is started again, and errors name a heap that is full."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ledger import local
from spark_ledger.errors import LedgerError
from spark_ledger.local import LocalCluster, zookeeper
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.connect import open_store

pytestmark = pytest.mark.processes

WAIT_S = 60.0
NODE = b"x" * 20_000


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


async def fill(store: MetadataStore, acknowledged: list[str]) -> None:
    """Create nodes until one fails; those in ``acknowledged`` are there."""
    while True:
        path = f"n{secrets.token_hex(8)}"
        await store.create(path, NODE)
        acknowledged.append(path)


def test_zookeeper_with_a_full_heap_ends_says_so_and_has_its_data_with_a_larger_one(
    tmp_path: Path,
) -> None:
    acknowledged: list[str] = []

    async def use(uri: str) -> str:
        """Fill it until an error says that it is full, or WAIT_S have passed; the last error."""
        said = ""
        deadline = time.monotonic() + WAIT_S
        store = await open_store(uri, operation_timeout_s=1.0)
        try:
            while "is full" not in said and time.monotonic() < deadline:
                try:
                    await fill(store, acknowledged)
                except LedgerError as error:
                    said = str(error)
        finally:
            await store.close()
        return said

    with LocalCluster(bookies=0, directory=tmp_path, zookeeper_heap_bytes=16 * 2**20) as cluster:
        first = cluster.processes.states()["zookeeper"].pid
        said = asyncio.run(use(cluster.uri))
        assert "heap of 16 MiB is full" in said and "--zookeeper-heap 32m" in said
        eventually(lambda: cluster.processes.states()["zookeeper"].pid != first)
    assert len(acknowledged) > 50

    async def missing(uri: str) -> list[str]:
        store = await open_store(uri)
        try:
            return [path for path in acknowledged if (await store.get(path)).value != NODE]
        finally:
            await store.close()

    with LocalCluster(bookies=0, directory=tmp_path) as cluster:
        assert asyncio.run(missing(cluster.uri)) == []


def test_zookeeper_that_is_killed_is_started_again_and_status_shows_why(tmp_path: Path) -> None:
    before = local.up(tmp_path, 0).zookeeper
    try:
        assert before is not None
        os.kill(before.pid, signal.SIGKILL)

        def is_back() -> bool:
            now = local.status(tmp_path).zookeeper
            return now is not None and now.running and now.pid != before.pid

        eventually(is_back)
        now = local.status(tmp_path).zookeeper
        assert now is not None and now.note.startswith("it ended with exit code -9")
        eventually(lambda: zookeeper.answers(tmp_path / "zookeeper", port_of(before.address)))
    finally:
        local.down(tmp_path)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
