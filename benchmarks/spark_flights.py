"""The Spark benchmark: the flights through ``format("ledger")`` and through Kafka's connector."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from benchmarks import flights
from benchmarks.cpu_time import shares
from benchmarks.drivers import CpuTime, Line, rounds_of, run_driver_lines
from benchmarks.peers import kafka
from benchmarks.peers.jars import SPARK_KAFKA, fetched
from benchmarks.rows import BARE, OURS, Round, Row, System, row_of_rounds
from benchmarks.spark_job import PARTITIONS, Job
from benchmarks.steps import Step
from spark_ledger.local import LocalCluster
from spark_ledger.local.processes import Processes

TIMEOUT_S = 900.0
OPS = ("write", "read", "stream-copy")
ENSEMBLE = (3, 3, 2)


def steps(*, quick: bool, peers: bool, limit: bool = False) -> Iterator[Step]:
    """The steps of the Spark benchmark: one Spark program for each system. ``limit``: also for a
    source and a sink in Python that do nothing."""
    yield Step(f"{OURS}: flights through Spark", partial(_ledger_rows, quick=quick))
    if limit:
        yield Step(f"{BARE}: flights through Spark", partial(_bare_rows, quick=quick))
    if peers:
        yield Step("kafka: flights through Spark", partial(_kafka_rows, quick=quick))


def _copies(*, quick: bool) -> int:
    return 2 if quick else 4


def _ledger_rows(*, quick: bool) -> Iterator[Row]:
    work = Path(tempfile.mkdtemp(prefix="spark-"))
    rows = flights.write_files(work / "flights", _copies(quick=quick))
    with LocalCluster(bookies=ENSEMBLE[0]) as cluster:
        job = Job(
            system=OURS,
            address=cluster.uri,
            flights=str(work / "flights"),
            rows=rows,
            work=str(work),
            rounds=1 if quick else 3,
            bookie_pids=[cluster.bookie_pid(index) for index in range(ENSEMBLE[0])],
        )
        lines = _run(cluster.processes, job)
    yield from _rows(lines, OURS)
    yield from _cpu_rows(lines)


def _bare_rows(*, quick: bool) -> Iterator[Row]:
    work = Path(tempfile.mkdtemp(prefix="spark-"))
    rows = flights.write_files(work / "flights", _copies(quick=quick))
    job = Job(
        system=BARE,
        address="",
        flights=str(work / "flights"),
        rows=rows,
        work=str(work),
        rounds=1 if quick else 3,
    )
    processes = Processes(Path(tempfile.mkdtemp(prefix="bare-")).resolve(), remove=True)
    try:
        yield from _rows(_run(processes, job), BARE)
    finally:
        processes.stop(graceful=False)


def _kafka_rows(*, quick: bool) -> Iterator[Row]:
    work = Path(tempfile.mkdtemp(prefix="spark-"))
    rows = flights.write_files(work / "flights", _copies(quick=quick))
    jars = sorted(map(str, fetched(SPARK_KAFKA).glob("*.jar")))
    with kafka.running(partitions=PARTITIONS) as peer:
        job = Job(
            system="kafka",
            address=peer.brokers,
            flights=str(work / "flights"),
            rows=rows,
            work=str(work),
            rounds=1 if quick else 3,
            jars=jars,
        )
        lines = _run(peer.processes, job)
    yield from _rows(lines, "kafka")


def _run(processes: Processes, job: Job) -> list[Line]:
    argv = [sys.executable, "-m", "benchmarks.spark_job", msgspec.json.encode(job).decode()]
    return run_job(processes, argv)


def run_job(processes: Processes, argv: Sequence[str]) -> list[Line]:
    """Run a Spark program to its end; what it printed."""
    # Spark starts its Python processes by name: by default the first on the path.
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": tempfile.gettempdir(),
        "JAVA_TOOL_OPTIONS": os.environ.get("JAVA_TOOL_OPTIONS", ""),
    }
    return run_driver_lines(
        processes, "spark-job", argv, timeout_s=TIMEOUT_S, environment=environment
    )


def _rows(lines: Sequence[Line], system: System) -> Iterator[Row]:
    rounds = [line for line in lines if isinstance(line, Round)]
    for op in OPS:
        yield row_of_rounds(rounds_of(rounds, op), bench="spark", system=system, ensemble=ENSEMBLE)


def _cpu_rows(lines: Sequence[Line]) -> Iterator[Row]:
    """How the CPU time of all rounds divides among the components."""
    for op in OPS:
        total: dict[str, float] = {}
        for line in lines:
            if isinstance(line, CpuTime) and line.cpu_of == op:
                for name, seconds in line.cpu_seconds.items():
                    total[name] = total.get(name, 0.0) + seconds
        yield Row(bench="spark", system=OURS, op="cpu-share", of=op, cpu_share=shares(total))
