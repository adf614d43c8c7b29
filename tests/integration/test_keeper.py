"""The keeper as a process, against a real ZooKeeper, real bookies, and writers that are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import spark_ledger
from spark_ledger.local import LocalCluster
from tests.integration.test_cli import Shell

pytestmark = [pytest.mark.processes, pytest.mark.proof]

WAIT_S = 60.0
SCHEMA = pa.schema([("n", pa.int64())])

WRITER = """
import sys, pyarrow as pa, spark_ledger
client = spark_ledger.connect(sys.argv[1])
raw = client.create_ledger()
for number in range(5):
    raw.append(b"%d" % number)
writer = client.stream("s").writer()
writer.write(pa.table({"n": [7]}, pa.schema([("n", pa.int64())])))
(segment,) = writer.finish()
print(raw.ledger_id, segment.ledger_id, flush=True)
sys.stdin.read()
"""


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


@contextmanager
def keeper(shell: Shell) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "spark_ledger.cli", "keeper", "run", "--interval", "0.2"),
            *("--owner-grace", "0.5", "--unnamed-grace", "1", "--until-input-ends"),
        ],
        env=shell.environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_keeper_ends_what_a_killed_writer_left_and_is_killed_itself() -> None:
    with LocalCluster(bookies=3) as cluster, spark_ledger.connect(cluster.uri) as client:
        shell = Shell(cluster.uri)
        stream = client.create_stream("s", SCHEMA)
        stream.append(pa.table({"n": [1, 2]}, SCHEMA))
        argv = [sys.executable, "-c", WRITER, cluster.uri]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            raw, unnamed = map(int, writer.stdout.readline().split())
            writer.kill()
        assert shell("keeper", "status").status == 1, "nobody is the keeper"
        with keeper(shell) as first:
            eventually(lambda: shell("keeper", "status").status == 0)
            first.send_signal(signal.SIGKILL)
        with keeper(shell) as second:
            eventually(lambda: unnamed not in client.list_ledgers())
            eventually(lambda: client.ledger_metadata(raw).is_closed)
            with client.open_ledger(raw) as reader:
                assert reader.last_add_confirmed == 4
            eventually(lambda: shell("keeper", "status", "--json").json()["found"]["unnamed"] == 0)
            status = shell.ok("keeper", "status", "--json").json()
            assert status["elected"]["pid"] == second.pid
            assert status["done"]["recovered"] >= 1 and status["done"]["deleted"] == 1
            assert "unnamed ledgers" in shell.ok("keeper", "status").out
            assert second.stdin is not None
            second.stdin.close()
            assert second.wait(WAIT_S) == 0, "who started it has ended"
        rows = [n for batch in stream.read() for n in batch.column("n").to_pylist()]
        assert rows == [1, 2]
        client.create_ledger()
        due = shell.ok("keeper", "run", "--dry-run", "--owner-grace", "0", "--json").json()
        assert due == [], "its owner lives"


def test_bookies_run_one_keeper_and_another_when_it_is_gone() -> None:
    with LocalCluster(bookies=2, keeper=True) as cluster:
        shell = Shell(cluster.uri)

        def pid() -> int:
            elected = shell("keeper", "status", "--json").json()["elected"]
            return elected["pid"] if elected else 0

        eventually(lambda: pid() != 0)
        first = pid()
        (index,) = [n for n in range(2) if f"process {first}" in cluster.bookie_log(n).read_text()]
        cluster.kill_bookie(index)
        eventually(lambda: pid() not in (0, first))
        assert f"process {pid()}" in cluster.bookie_log(1 - index).read_text()
