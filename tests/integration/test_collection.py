"""Garbage collection with real bookies and a real ZooKeeper, which is restored from a backup."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import spark_ledger
from spark_ledger.cli.inspection import inspect_ledger
from spark_ledger.limits import MIB
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.connect import open_store
from spark_ledger.stream.blocking import StreamConnection
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import BookieId, LedgerId
from tests.integration.test_cli import Shell
from tests.integration.test_restored_zookeeper import backup, restore, restored_command

pytestmark = [pytest.mark.processes, pytest.mark.proof]

WAIT_S = 90.0
BOOKIES = [BookieId(f"bookie-{number}") for number in range(3)]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.2)


def held(uri: str, ledger_ids: Iterable[int]) -> set[tuple[str, int]]:
    """Which bookies hold entries of which of these ledgers, once all bookies are registered: after
    a restore the registrations of the backup end first."""
    deadline = time.monotonic() + WAIT_S

    async def ask() -> set[tuple[str, int]]:
        store = await open_store(uri)
        registry = BookieRegistry(store)
        addresses: dict[BookieId, str] = {}
        while not addresses.keys() >= set(BOOKIES):
            assert time.monotonic() < deadline, f"registered are only {sorted(addresses)}"
            addresses = {info.bookie_id: info.address for info in await registry.list()}
            await asyncio.sleep(0.1)
        transport = GrpcTransport(addresses.get)
        found: set[tuple[str, int]] = set()
        for bookie_id in BOOKIES:
            for each in ledger_ids:
                status, ranges, _ = await transport.list_entries(
                    bookie_id, LedgerId(each), timeout_s=10.0
                )
                assert status.is_denial or status.value == 0, status
                if ranges:
                    found.add((bookie_id, each))
        await transport.close()
        await store.close()
        return found

    return asyncio.run(ask())


def write(client: StreamConnection, count: int) -> list[int]:
    """Closed ledgers of some entries on all bookies."""
    ledger_ids: list[int] = []
    for _ in range(count):
        with client.create_ledger() as writer:
            for number in range(5):
                writer.append(b"%d" % number)
        ledger_ids.append(writer.ledger_id)
    return ledger_ids


def all_passes(shell: Shell, condition: Callable[[dict[str, Any]], bool], *options: str) -> bool:
    """Each bookie has made a pass, and of each it is true; false if one cannot be asked now."""
    done = shell("bookies", "collect", "--json", *options)
    passes = [each["collection"] for each in done.json()] if done.out else []
    return len(passes) == len(BOOKIES) and all(map(condition, passes))


def test_deleted_ledgers_leave_every_bookie_also_one_that_was_down() -> None:
    with LocalCluster(bookies=3) as cluster, spark_ledger.connect(cluster.uri) as client:
        shell = Shell(cluster.uri)
        kept, gone = write(client, 2), write(client, 3)
        everywhere = {(bookie_id, each) for bookie_id in BOOKIES for each in (*kept, *gone)}
        assert held(cluster.uri, (*kept, *gone)) == everywhere
        cluster.kill_bookie(2)
        for each in gone:
            client.delete_ledger(each)
        cluster.start_bookie(2)
        eventually(  # what no flush has stored yet is not looked at
            lambda: all_passes(shell, lambda _: True) and not held(cluster.uri, gone)
        )
        assert held(cluster.uri, (*kept, *gone)) == {
            (bookie_id, each) for bookie_id in BOOKIES for each in kept
        }
        for each in kept:
            with client.open_ledger(each) as reader:
                assert [entry.payload for entry in reader.read(0, 4)] == [
                    b"%d" % number for number in range(5)
                ]
        rows = shell.ok("bookies", "list", "--json").json()
        assert all(row["collection"]["aborted"] == "" for row in rows)
        assert "ago" in shell.ok("bookies", "list").out


def log_bytes(directory: Path) -> int:
    """What the logs below a bookie's directory take on the disk."""
    return sum(each.stat().st_blocks * 512 for each in (directory / "ledgers").glob("*.log"))


def test_space_of_a_deleted_ledger_is_back_long_before_a_pass_of_everyday() -> None:
    """With the default pause between two passes, the first one comes after seven minutes or more:
    longer than this test waits. The sign of the deletion starts one (rule G10)."""
    with LocalCluster(bookies=3) as cluster, spark_ledger.connect(cluster.uri) as client:
        directories = [cluster.bookie_directory(number) for number in range(3)]
        (kept,) = write(client, 1)
        with client.create_ledger() as writer:
            for _ in range(200):
                writer.append(bytes(MIB))
        gone = writer.ledger_id
        assert held(cluster.uri, (gone, kept)) == {(b, i) for b in BOOKIES for i in (gone, kept)}
        assert min(map(log_bytes, directories)) > 200 * MIB
        client.delete_ledger(gone)
        eventually(lambda: max(map(log_bytes, directories)) < 150 * MIB)
        assert held(cluster.uri, (gone, kept)) == {(b, kept) for b in BOOKIES}


def test_ledgers_that_a_restored_zookeeper_lacks_stay_until_an_operator_says_so(
    tmp_path: Path,
) -> None:
    with LocalCluster(bookies=3) as cluster:
        shell = Shell(cluster.uri)
        with spark_ledger.connect(cluster.uri) as client:
            kept = write(client, 2)
            backup(cluster, tmp_path / "backup")
        with spark_ledger.connect(cluster.uri) as client:
            lost = write(client, 3)
        eventually(lambda: all_passes(shell, lambda row: row["aborted"] == ""))  # marks them
        restore(cluster, tmp_path / "backup")
        restored_command(cluster.uri)
        refused = "was restored from a backup"
        eventually(lambda: all_passes(shell, lambda row: refused in row["aborted"]))
        everywhere = {(bookie_id, each) for bookie_id in BOOKIES for each in (*kept, *lost)}
        assert held(cluster.uri, (*kept, *lost)) == everywhere
        named = [word for bookie_id in BOOKIES for word in ("--bookie", bookie_id)]
        accept = (*named, "--accept-restored", "--share", "1")
        would = (*accept, "--dry-run")
        eventually(lambda: all_passes(shell, lambda row: row["candidates"] == 3, *would))
        assert held(cluster.uri, (*kept, *lost)) == everywhere
        assert all_passes(shell, lambda row: row["deleted"] == 3, *accept)
        assert held(cluster.uri, (*kept, *lost)) == {
            (bookie_id, each) for bookie_id in BOOKIES for each in kept
        }
        assert inspect_ledger(cluster.uri, kept[0]).metadata.is_closed
