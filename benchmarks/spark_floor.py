"""The floor of a micro-batch: what Spark takes for one row, and what a source and a sink add."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.flights import FILES_PER_COPY
from benchmarks.rows import OURS, Row
from benchmarks.spark_flights import ENSEMBLE, run_job
from benchmarks.spark_job import Job
from benchmarks.spark_profile import profile_rows
from benchmarks.steps import Step
from spark_ledger.local import LocalCluster


def steps(*, quick: bool) -> Iterator[Step]:
    """One Spark program that runs all cases in turn."""
    yield Step("floor of a micro-batch", partial(_rows, quick=quick))


def _rows(*, quick: bool) -> Iterator[Row]:
    work = Path(tempfile.mkdtemp(prefix="spark-"))
    _write_rows(work / "rows")
    with LocalCluster(bookies=ENSEMBLE[0]) as cluster:
        job = Job(
            system=OURS,
            address=cluster.uri,
            flights=str(work / "rows"),
            rows=FILES_PER_COPY,
            work=str(work),
            rounds=1 if quick else 5,
            bookie_pids=[cluster.bookie_pid(index) for index in range(ENSEMBLE[0])],
        )
        argv = [sys.executable, "-m", "benchmarks.spark_floor_job"]
        lines = run_job(cluster.processes, [*argv, msgspec.json.encode(job).decode()])
    yield from profile_rows(lines)


def _write_rows(directory: Path) -> None:
    """Rows as Spark's source of rates makes them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir()
    now = pa.array([datetime.now(UTC)], pa.timestamp("us", "UTC"))
    for number in range(FILES_PER_COPY):
        table = pa.table({"timestamp": now, "value": pa.array([number], pa.int64())})
        pq.write_table(table, directory / f"row-{number}.parquet")
