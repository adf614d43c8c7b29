"""Streams real flights through ledgers while processes are killed, and compares all rows.

    python -m examples.demo [--rows N]          (make demo)

1. A ZooKeeper and four bookies start on loopback; 336,776 flights land as 24 Parquet files.
2. A Spark driver streams the files into the stream "flights", one micro-batch a file, replicated
   to three bookies (AQ 2). In the middle one bookie is killed with SIGKILL, and later the driver
   with all its processes; a new driver goes on from the checkpoint.
3. Other drivers read the stream back, as a batch and as a stream.
4. Every row is compared. Exit status 0: each is there exactly once, unchanged and in order.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

import spark_ledger
from examples.demo.appender import SteadyAppender
from examples.demo.compare import compare, read_in_stream_order
from examples.demo.flights import FILES, land_files, load_flights
from examples.demo.report import Report, print_report
from spark_ledger.errors import ConfigurationError
from spark_ledger.local import LocalCluster

STREAM = "flights"
KILL_BOOKIE_AT_BATCH = 5
KILL_DRIVER_AT_BATCH = 11
AROUND_THE_KILL_S = 5.0

console = Console(width=110, highlight=False)


class Driver:
    """A Spark driver as a process group: its Python, its JVM and their workers."""

    def __init__(self, job: str, uri: str, **options: Path) -> None:
        command = [sys.executable, "-m", "examples.demo.driver", job, "--metadata", uri]
        command += ["--stream", STREAM]
        for name, value in options.items():
            command += [f"--{name.rstrip('_')}", str(value)]
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if not os.environ.get("DEMO_DEBUG") else None,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def batches(self) -> Iterator[dict[str, Any]]:
        """What it prints of each micro-batch. Raises SystemExit if the driver fails."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
        errors = self._process.stderr.read() if self._process.stderr is not None else ""
        if self._process.wait() != 0:
            raise SystemExit(f"a Spark driver failed:\n{errors[-6000:]}")

    def kill(self) -> None:
        """SIGKILL to the whole group, so that nothing can clean up."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def write_with_faults(
    cluster: LocalCluster, landing: Path, work: Path, appender: SteadyAppender, report: Report
) -> None:
    """Files -> stream; meanwhile a bookie and a driver are killed."""
    seconds, rows, done = 0.0, 0, -1

    def take(driver: Driver, until: Callable[[int], bool]) -> None:
        nonlocal seconds, rows, done
        for batch in driver.batches():
            if batch["batch"] > done:
                done = batch["batch"]
                seconds, rows = seconds + batch["seconds"], rows + batch["rows"]
                console.print(f"  micro-batch {done}: {batch['rows']:,} rows")
            if done == KILL_BOOKIE_AT_BATCH and not report.killed_bookie:
                kill_a_bookie(cluster, appender, report)
            if until(done):
                return

    options = {"from_": landing, "checkpoint": work / "write-checkpoint"}
    first = Driver("write", cluster.uri, **options)
    take(first, lambda batch: batch >= KILL_DRIVER_AT_BATCH)
    first.kill()
    report.faults.append(f"driver killed after micro-batch {done}, restarted from its checkpoint")
    console.print(f"[red]the driver was killed[/] after micro-batch {done}; a new one takes over")
    take(Driver("write", cluster.uri, **options), lambda batch: False)
    report.rows_per_second["write, streaming"] = rows / seconds


def kill_a_bookie(cluster: LocalCluster, appender: SteadyAppender, report: Report) -> None:
    """Kill a bookie that both the stream's newest ledger and the appender write to."""
    with spark_ledger.connect(cluster.uri) as client:
        ledger_id = client.stream(STREAM).commit(KILL_BOOKIE_AT_BATCH).segments[-1].ledger_id
        in_use = client.ledger_metadata(ledger_id).last_fragment.bookies
    victim = next(bookie for bookie in in_use if bookie in appender.bookies)
    at = time.monotonic()
    cluster.kill_bookie(list(cluster.bookie_ids).index(victim))
    report.killed_bookie = victim
    report.faults.append(f"{victim} killed after micro-batch {KILL_BOOKIE_AT_BATCH}")
    console.print(f"[red]{victim} was killed[/], in the middle of the write")
    time.sleep(0.2)
    report.append_longest_ms = 1000 * appender.longest_wait_s(at, at + AROUND_THE_KILL_S)


def read_back(cluster: LocalCluster, work: Path, flights: pa.Table, report: Report) -> None:
    """Stream -> files, as a batch and as a stream; compare both with the input."""
    for job, name in (("batch", "batch read"), ("read", "streaming read")):
        target = work / job
        rows, seconds = 0, 0.0
        driver = Driver(job, cluster.uri, to=target, checkpoint=work / f"{job}-checkpoint")
        for batch in driver.batches():
            rows, seconds = rows + batch["rows"], seconds + batch["seconds"]
        report.rows_per_second[name] = rows / seconds
        report.comparisons[name] = compare(flights, read_in_stream_order(target))
        console.print(f"  {name}: {rows:,} rows")


def run(rows_max: int | None) -> Report:
    """The whole demonstration."""
    report = Report()
    with (
        tempfile.TemporaryDirectory(prefix="ledger-demo-") as directory,
        LocalCluster(bookies=4) as cluster,
        spark_ledger.connect(cluster.uri) as client,
    ):
        work = Path(directory)
        console.print(f"ZooKeeper and four bookies are up: {cluster.uri}")
        flights = load_flights(rows_max)
        land_files(flights, work / "landing")
        console.print(f"{flights.num_rows:,} flights landed as {FILES} files; writing")
        appender = SteadyAppender(client)
        write_with_faults(cluster, work / "landing", work, appender, report)
        report.appends = appender.stop()
        report.append_median_ms = 1000 * appender.median_s()
        console.print("reading back")
        read_back(cluster, work, flights, report)
        stream = client.stream(STREAM)
        commits = stream.commits(0, stream.head().next_commit)
        used = {segment.ledger_id for commit in commits for segment in commit.segments}
        report.rows, report.commits = stream.head().rows, len(commits)
        report.ledgers = [
            client.ledger_metadata(ledger_id) for ledger_id in sorted({*used, appender.ledger_id})
        ]
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, help="use only the first N flights")
    arguments = parser.parse_args()
    try:
        report = run(arguments.rows)
    except ConfigurationError as error:
        console.print(f"[red]{error}[/]")
        return 2
    print_report(console, report)
    return 0 if report.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
