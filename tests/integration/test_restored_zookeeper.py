"""ZooKeeper is restored from a backup: what is known stays, nothing is mixed, nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.aio import connect
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError, MetadataUnavailableError, NoSuchLedgerError
from spark_ledger.keeper.nodes import DroppedNode, dropped_path, read_state
from spark_ledger.limits.metadata import RESTORED_IDS_SKIPPED
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.json_nodes import read_node

PATIENCE_S = 60.0
"""For one step. Each takes a few seconds; a hang never ends."""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3) as running:
        yield running


def backup(cluster: LocalCluster, to: Path) -> None:
    """Copy ZooKeeper's data, as they are at this moment."""
    cluster.kill_zookeeper()
    shutil.copytree(cluster.directory / "zookeeper" / "data", to)
    cluster.start_zookeeper()


def restore(cluster: LocalCluster, backup_directory: Path) -> None:
    """Put a copy of ZooKeeper's data in the place of what it has."""
    cluster.kill_zookeeper()
    data = cluster.directory / "zookeeper" / "data"
    shutil.rmtree(data)
    shutil.copytree(backup_directory, data)
    cluster.start_zookeeper()


def restored_command(uri: str) -> dict[str, object]:
    """Run the command until all bookies answer it."""
    found: dict[str, object] = command(uri, "cluster", "restored", "--yes")
    return found


def command(uri: str, *arguments: str) -> Any:
    """What a command prints as JSON; tried again while the cluster finds itself."""
    for _ in range(60):
        ended = subprocess.run(
            [sys.executable, "-m", "spark_ledger.cli", *arguments, "--json"],
            env={"SPARK_LEDGER_METADATA": uri, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if ended.returncode == 0:
            return json.loads(ended.stdout)
        time.sleep(0.5)
    raise AssertionError(ended.stdout + ended.stderr)


async def write(client: LedgerClient, name: str) -> tuple[int, list[bytes]]:
    """A closed ledger: its id and entries. Tried again while the cluster finds itself."""
    payloads = [b"%s %d" % (name.encode(), number) for number in range(20)]
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                writer = await client.create_ledger()
                for payload in payloads:
                    await writer.append(payload)
                await writer.close()
            except LedgerError as error:
                logging.getLogger(__name__).info("%s: %s", type(error).__name__, error)
                await asyncio.sleep(0.2)
            else:
                return writer.ledger_id, payloads


async def contents(client: LedgerClient, ledger_id: int) -> list[bytes]:
    async with asyncio.timeout(PATIENCE_S):
        reader = await client.open_ledger(ledger_id, recover=True)
        if reader.last_add_confirmed < 0:
            return []
        return [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]


def test_restored_zookeeper_changes_no_ledger_and_gives_no_id_again(
    cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        kept: dict[int, list[bytes]] = {}
        lost: dict[int, list[bytes]] = {}
        async with await connect(cluster.uri) as running:
            for number in range(3):
                ledger_id, payloads = await write(running, f"before {number}")
                kept[ledger_id] = payloads
            await asyncio.to_thread(backup, cluster, tmp_path / "backup")
            for number in range(20):
                ledger_id, payloads = await write(running, f"after {number}")
                lost[ledger_id] = payloads
            await asyncio.to_thread(restore, cluster, tmp_path / "backup")
            # Before anybody says anything: no ledger may change, whoever writes.
            written: dict[int, list[bytes]] = {}
            async with await connect(cluster.uri) as fresh:
                for ledger_id, payloads in kept.items():
                    assert await contents(fresh, ledger_id) == payloads
                    assert await contents(running, ledger_id) == payloads
                for ledger_id in lost:
                    with pytest.raises(NoSuchLedgerError):
                        await fresh.open_ledger(ledger_id)
            # Bookies that have a new session pass over the ids that they know, without a command.
            async with asyncio.timeout(PATIENCE_S):
                while len(await running.list_bookies()) < 3:
                    await asyncio.sleep(0.1)
            async with await connect(cluster.uri) as fresh:
                ledger_id, payloads = await write(fresh, "without a command")
                assert ledger_id > max(lost)
                written[ledger_id] = payloads
            done = await asyncio.to_thread(restored_command, cluster.uri)
            next_id = done["next_ledger_id"]
            assert isinstance(next_id, int) and next_id > max(lost) + RESTORED_IDS_SKIPPED - 1
            async with await connect(cluster.uri) as fresh:
                for client in (running, fresh):
                    for number in range(3):
                        ledger_id, payloads = await write(client, f"new {number}")
                        assert ledger_id not in kept and ledger_id not in lost
                        written[ledger_id] = payloads
                for ledger_id, payloads in {**kept, **written}.items():
                    assert await contents(fresh, ledger_id) == payloads
            # Bookies that were started meanwhile, and one more start of each.
            for index in range(3):
                await asyncio.to_thread(cluster.kill_bookie, index)
                await asyncio.to_thread(cluster.start_bookie, index)
            async with await connect(cluster.uri) as fresh:
                for ledger_id, payloads in {**kept, **written}.items():
                    assert await contents(fresh, ledger_id) == payloads
                await write(fresh, "at last")

    asyncio.run(main())


def test_keeper_of_a_restored_zookeeper_is_followed_by_one_that_works(tmp_path: Path) -> None:
    """The one that has seen later metadata ends; it neither works on nor keeps its place."""

    async def main(cluster: LocalCluster) -> None:
        async with await connect(cluster.uri) as client:
            await passes_after(client, 0)
        await asyncio.to_thread(backup, cluster, tmp_path / "backup")
        async with await connect(cluster.uri) as client:
            for number in range(3):
                await write(client, f"lost {number}")
            await passes_after(client, time.time_ns())  # it has seen what is lost
        await asyncio.to_thread(restore, cluster, tmp_path / "backup")
        async with await connect(cluster.uri) as client:
            await passes_after(client, time.time_ns())

    with LocalCluster(bookies=3, keeper=True) as cluster:
        asyncio.run(main(cluster))


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_closed_ledger_whose_copies_all_moved_since_the_backup_is_not_lost(tmp_path: Path) -> None:
    """The backup names bookies that have given it back, and none of those that hold it."""

    async def main(cluster: LocalCluster) -> None:
        async with await connect(cluster.uri) as client:
            ledger_id, payloads = await write(client, "moved")
            former = await client.ledger_metadata(ledger_id)
            await asyncio.to_thread(backup, cluster, tmp_path / "backup")
        members = former.fragments[0].bookies
        others = sorted({f"bookie-{number}" for number in range(6)} - set(members))

        def collect(*options: str) -> None:
            named = [part for each in others for part in ("--bookie", each)]
            for each in command(cluster.uri, "bookies", "collect", *named, *options):
                assert each["collection"]["deleted"] == 0, each

        for member in members:
            await asyncio.to_thread(command, cluster.uri, "bookies", "decommission", member)
            given_back = await asyncio.to_thread(
                command, cluster.uri, "bookies", "collect", "--bookie", member
            )
            found = given_back[0]["collection"]  # it may have had a pass of its own before
            assert found["deleted"] == 1 or found["held"] == 0, given_back
        await asyncio.to_thread(restore, cluster, tmp_path / "backup")
        await asyncio.to_thread(restored_command, cluster.uri)
        await asyncio.to_thread(collect, "--accept-restored")
        await asyncio.to_thread(collect)
        async with await connect(cluster.uri) as client:
            assert (await client.ledger_metadata(ledger_id)).fragments == former.fragments
            async with asyncio.timeout(4 * PATIENCE_S):
                while True:
                    with contextlib.suppress(LedgerError):
                        if await contents(client, ledger_id) == payloads:
                            return
                    await asyncio.sleep(0.5)

    with LocalCluster(bookies=6, keeper=True) as cluster:
        asyncio.run(main(cluster))


async def passes_after(client: LedgerClient, since_ns: int) -> None:
    """Wait until a keeper has ended a pass after this time."""
    async with asyncio.timeout(2 * PATIENCE_S):
        while True:
            with contextlib.suppress(MetadataUnavailableError):
                state = await read_state(client.store)
                if state is not None and state.value.time_ms > since_ns // 10**6:
                    return
            await asyncio.sleep(0.2)


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_rows_that_were_packed_since_the_backup_are_read(tmp_path: Path) -> None:
    """A keeper has seen the pack, and lets the ledgers that the backup names stay (rule K11)."""

    async def main(cluster: LocalCluster) -> None:
        async with await connect(cluster.uri) as client:
            stream = await client.create_stream("s", pa.schema({"n": pa.int64()}))
            for number in range(20):
                await stream.append(pa.table({"n": pa.array([number], pa.int64())}))
            await stream.close()
            await asyncio.to_thread(backup, cluster, tmp_path / "backup")
        async with await connect(cluster.uri) as client:
            stream = await client.stream("s")
            former = {each.ledger_id for c in await stream.commits(0, 20) for each in c.segments}
            assert len(await stream.optimizer.run_all(entries_min=1)) == 1
            async with asyncio.timeout(3 * PATIENCE_S):
                while True:
                    node = await read_node(
                        client.store, DroppedNode, dropped_path(stream.config.stream_id)
                    )
                    if node is not None and node.value.packed:
                        break
                    await asyncio.sleep(0.5)
            assert former <= set(await client.list_ledgers())
            await stream.close()
        await asyncio.to_thread(restore, cluster, tmp_path / "backup")
        await asyncio.to_thread(restored_command, cluster.uri)
        named = [word for n in range(3) for word in ("--bookie", f"bookie-{n}")]
        collect = ("bookies", "collect", *named, "--accept-restored")
        await asyncio.to_thread(command, cluster.uri, *collect)
        async with await connect(cluster.uri) as client:
            stream = await client.stream("s")
            found = [n async for batch in stream.read() for n in batch.column("n").to_pylist()]
            assert found == list(range(20))
            await stream.close()

    with LocalCluster(bookies=3, keeper=True) as cluster:
        asyncio.run(main(cluster))
