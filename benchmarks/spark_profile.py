"""The profile of Spark jobs: processor seconds per million rows by component, beside a sink and a
source that do nothing."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from benchmarks import flights
from benchmarks.drivers import Line, Profiled
from benchmarks.rows import OURS, Row, median, rounded, rounded_each
from benchmarks.spark_flights import ENSEMBLE, run_job
from benchmarks.spark_job import Job
from benchmarks.steps import Step
from spark_ledger.local import LocalCluster

SMALL_WORK = ("sink", "source")


def steps(*, quick: bool) -> Iterator[Step]:
    """One Spark program that runs all cases in turn."""
    yield Step("profile of Spark jobs", partial(_rows, quick=quick))


def _rows(*, quick: bool) -> Iterator[Row]:
    work = Path(tempfile.mkdtemp(prefix="spark-"))
    rows = flights.write_files(work / "flights", 2 if quick else 4)
    with LocalCluster(bookies=ENSEMBLE[0]) as cluster:
        job = Job(
            system=OURS,
            address=cluster.uri,
            flights=str(work / "flights"),
            rows=rows,
            work=str(work),
            rounds=1 if quick else 5,
            bookie_pids=[cluster.bookie_pid(index) for index in range(ENSEMBLE[0])],
        )
        argv = [sys.executable, "-m", "benchmarks.spark_profile_job"]
        lines = run_job(cluster.processes, [*argv, msgspec.json.encode(job).decode()])
    yield from profile_rows(lines)


def profile_rows(lines: Sequence[Line]) -> Iterator[Row]:
    """A row for each case: medians of its rounds, each component by itself."""
    found = [line for line in lines if isinstance(line, Profiled)]
    for work, system in dict.fromkeys((line.profiled, line.system) for line in found):
        rounds = [each for each in found if (each.profiled, each.system) == (work, system)]
        is_small = work in SMALL_WORK
        unit = 1e3 if is_small else 1e6
        cpu = rounded_each(
            {
                name: unit * median(each.cpu_seconds[name] / each.amount for each in rounds)
                for name in rounds[0].cpu_seconds
            }
        )
        seconds = median(each.seconds / each.amount for each in rounds)
        yield Row(
            bench="spark",
            system=system,
            op="micro-batch" if is_small else "processor",
            of=work,
            per_second=None if is_small else rounded(1 / seconds),
            elapsed_ms=rounded(1e3 * seconds) if is_small else None,
            cpu_ms=cpu if is_small else None,
            cpu_seconds=None if is_small else cpu,
            phases_ms=_medians([each.phases_ms for each in rounds]),
            calls_ms=_medians([each.calls_ms for each in rounds]),
        )


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """Of each name that all rounds have; None without one."""
    names = [name for name in rounds[0] if all(name in each for each in rounds)]
    return rounded_each({name: median(each[name] for each in rounds) for name in names}) or None
