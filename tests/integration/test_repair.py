"""Repair with real processes: a bookie is killed for good, and its copies are made again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

import spark_ledger
from spark_ledger.local import LocalCluster
from tests.integration.test_cli import Shell

pytestmark = [pytest.mark.processes, pytest.mark.proof]

WAIT_S = 90.0
SCHEMA = pa.schema([("n", pa.int64())])


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.2)


def test_killed_bookies_copies_are_made_again_and_the_others_may_go_then() -> None:
    with (
        LocalCluster(bookies=5, keeper=True, lost_bookie_delay_s=3.0) as cluster,
        spark_ledger.connect(cluster.uri) as client,
    ):
        shell = Shell(cluster.uri)
        stream = client.create_stream("s", SCHEMA)
        ledgers = []
        for number in range(30):
            with client.create_ledger() as writer:
                ledgers.append(writer.ledger_id)
                writer.append(b"%d" % number * 1000)
            stream.append(pa.table({"n": [number]}, SCHEMA))
        locked = []
        for number in range(5):
            with client.create_ledger(password=b"secret") as writer:
                locked.append(writer.ledger_id)
                for _ in range(10):
                    writer.append(b"%d" % number * 1000)
        idle = client.create_ledger()
        idle.append(b"idle")
        before = client.ledger_metadata(ledgers[0]).fragments[0].bookies
        first, *others = (int(name.removeprefix("bookie-")) for name in before)
        cluster.kill_bookie(first)
        name = f"bookie-{first}"

        def names(ledger_id: int) -> set[str]:
            metadata = client.ledger_metadata(ledger_id)
            return {bookie for fragment in metadata.fragments for bookie in fragment.bookies}

        closed = [i for i in client.list_ledgers() if client.ledger_metadata(i).is_closed]
        assert any(name in names(ledger_id) for ledger_id in closed)
        eventually(lambda: all(name not in names(ledger_id) for ledger_id in closed))
        status = shell("autorecovery", "status", "--json").json()
        assert name in status["gone_bookies"] and status["failed"] == []
        assert "lack copies" in shell("autorecovery", "status").out
        for other in others:
            cluster.kill_bookie(other)
        for number, ledger_id in enumerate(ledgers):
            with client.open_ledger(ledger_id) as reader:
                (entry,) = reader.read(0, 0)
                assert entry.payload == b"%d" % number * 1000
        for number, ledger_id in enumerate(locked):
            with client.open_ledger(ledger_id, password=b"secret") as reader:
                found = [entry.payload for entry in reader.read(0, 9)]
                assert found == [b"%d" % number * 1000] * 10
        rows = [n for batch in stream.read() for n in batch.column("n").to_pylist()]
        assert rows == list(range(30))


def test_decommission_of_a_living_bookie_moves_its_copies_and_its_writers() -> None:
    with LocalCluster(bookies=4) as cluster, spark_ledger.connect(cluster.uri) as client:
        shell = Shell(cluster.uri)
        writers = [client.create_ledger() for _ in range(6)]
        for number, writer in enumerate(writers):
            writer.append(b"%d" % number)
        for writer in writers[:3]:
            writer.close()
        with subprocess.Popen(
            [*(sys.executable, "-m", "spark_ledger.cli"), "bookies", "decommission", "bookie-1"],
            env=shell.environment,
        ) as process:
            while process.poll() is None:
                for writer in writers[3:]:
                    writer.append(b"more")
                time.sleep(0.1)
        assert process.returncode == 0
        for writer in writers:
            metadata = client.ledger_metadata(writer.ledger_id)
            assert all("bookie-1" not in each.bookies for each in metadata.fragments)
            assert metadata.is_closed == (writer in writers[:3]), "who adds is never ended"
        cluster.stop_bookie(1)
        assert "bookie-1" not in shell("bookies", "list").out
        for writer in writers[3:]:
            writer.close()


def test_new_bookie_gets_its_share_and_serves_it_when_others_are_gone() -> None:
    with LocalCluster(bookies=3) as cluster, spark_ledger.connect(cluster.uri) as client:
        shell = Shell(cluster.uri)
        contents = {}
        for number in range(40):
            password = b"secret" if number % 4 == 0 else b""
            with client.create_ledger(password=password) as writer:
                payloads = [b"%d-%d" % (number, entry) * 1000 for entry in range(5)]
                for payload in payloads:
                    writer.append(payload)
                contents[writer.ledger_id] = password, payloads
        writer = client.create_ledger()
        writer.append(b"begun")
        new = f"bookie-{cluster.add_bookie()}"
        planned = shell.ok("bookies", "rebalance", "--dry-run", "--json").json()
        assert planned["even"] and planned["moves"] > 0
        assert shell("bookies", "rebalance", "--max-moves", "3", "--json").json()["moves"] == 3
        with subprocess.Popen(
            [*(sys.executable, "-m", "spark_ledger.cli"), "bookies", "rebalance", "--json"],
            env=shell.environment,
            stdout=subprocess.PIPE,
        ) as process:
            while process.poll() is None:
                writer.append(b"more")
                time.sleep(0.05)
            assert process.stdout is not None and process.returncode == 0
            done = json.loads(process.stdout.read())
        assert done["even"] and done["failed"] == {} and done["bookies"][new]["held_bytes_after"]
        moved = {
            ledger_id: client.ledger_metadata(ledger_id).fragments[0].bookies
            for ledger_id in contents
            if new in client.ledger_metadata(ledger_id).fragments[0].bookies
        }
        assert len(moved) == done["moves"] + 3
        assert "even: all are near" in shell.ok("bookies", "rebalance").out
        writer.close()
        for index in range(2):
            cluster.kill_bookie(index)
        for ledger_id, (password, payloads) in contents.items():
            with client.open_ledger(ledger_id, password=password) as reader:
                assert [entry.payload for entry in reader.read(0, 4)] == payloads
        assert any("bookie-2" not in bookies for bookies in moved.values()), "one is on it alone"
