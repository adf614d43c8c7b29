"""The Spark program that measures the floor of a micro-batch: one row, as fast as triggers come.

Run as ``python -m benchmarks.spark_floor_job JOB`` with a JSON ``Job``, in a process of its own.
Cases take turns, so that all of them meet the same machine. One line per result.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from benchmarks.cpu_time import CpuMeter
from benchmarks.drivers import Profiled
from benchmarks.rows import BARE, NOOP, OURS, System
from benchmarks.spans import FILE_VARIABLE, Span, spans_since
from benchmarks.spark_job import Job, session
from benchmarks.spark_profile_job import patiently

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

COUNTED: Final = 50
"""Micro-batches of a round that count."""

WARM: Final = 10
"""Micro-batches before them: processes start, and code gets warm."""

_POLL_S: Final = 0.05


class _Case(NamedTuple):
    work: str
    system: System
    start: Callable[[], StreamingQuery]


class _Program:
    """One round of all cases. Names of streams and checkpoints have its number."""

    def __init__(self, spark: SparkSession, job: Job, schema: StructType, number: int) -> None:
        self._spark, self._job, self._schema, self._number = spark, job, schema, number

    def cases(self) -> list[_Case]:
        """In the order in which they run: what is read has been written before."""
        return [
            _Case("sink", NOOP, lambda: self._to(self._rate(), NOOP, "sink")),
            _Case("sink", BARE, lambda: self._to(self._rate(), BARE, "sink")),
            _Case("sink", OURS, lambda: self._to(self._rate(), OURS, "sink")),
            _Case("source", BARE, lambda: self._to(self._bare(), NOOP, "bare")),
            _Case("source", OURS, lambda: self._to(self._ours(), NOOP, "ours")),
        ]

    def _rate(self) -> DataFrame:
        """A row for each trigger, made in the JVM."""
        stream = self._spark.readStream.format("rate-micro-batch")
        return stream.options(rowsPerBatch=1, numPartitions=1).load()

    def _bare(self) -> DataFrame:
        stream = self._spark.readStream.format("bare").schema(self._schema)
        options = {"files": WARM + COUNTED, "perTrigger": 1, "rows": 1}
        return stream.options(flights=self._job.flights, **options).load()

    def _ours(self) -> DataFrame:
        stream = self._spark.readStream.format("timed").option("maxRowsPerTrigger", 1)
        return stream.options(metadata=self._job.address, stream=f"floor-{self._number}").load()

    def _to(self, frame: DataFrame, sink: System, name: str) -> StreamingQuery:
        job = self._job
        writer = frame.writeStream.format({NOOP: "noop", BARE: "bare"}.get(sink, "timed"))
        if sink == OURS:
            writer = writer.options(metadata=job.address, stream=f"floor-{self._number}")
        directory = f"{job.work}/checkpoint-{name}-{sink.replace(' ', '-')}-{self._number}"
        return writer.option("checkpointLocation", directory).start()


def main(arguments: list[str]) -> None:
    """Run all cases once to warm up, then ``rounds`` times."""
    from benchmarks.bare_spark import BareSource
    from benchmarks.timed_ledger import TimedLedger

    job = msgspec.json.decode(arguments[0], type=Job)
    os.environ[FILE_VARIABLE] = f"{job.work}/spans"  # for the processes that Spark starts
    spark: SparkSession = session(job)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10 * (WARM + COUNTED))
    spark.dataSource.register(BareSource)
    spark.dataSource.register(TimedLedger)
    try:
        schema = spark.read.parquet(job.flights).schema
        for number in range(job.rounds + 1):  # the first one warms Spark up
            for case in _Program(spark, job, schema, number).cases():
                found = patiently(partial(_measured, case, job))
                if number:
                    print(msgspec.json.encode(found).decode(), flush=True)
    finally:
        spark.stop()


def _measured(case: _Case, job: Job) -> Profiled:
    query = case.start()
    meter = CpuMeter(job.bookie_pids)
    _wait_for(query, WARM)
    meter.start()
    began_ns = time.monotonic_ns()
    first = _batches_done(query)
    _wait_for(query, WARM + COUNTED)
    used = meter.finish()
    done = [p for p in query.recentProgress if first <= p["batchId"] < WARM + COUNTED]
    query.stop()
    assert len(done) >= COUNTED // 2, f"{len(done)} micro-batches were counted"
    phases = {
        name: statistics.median(each["durationMs"].get(name, 0) for each in done)
        for name in sorted({key for each in done for key in each["durationMs"]})
    }
    seconds = phases.pop("triggerExecution") / 1e3 * len(done)
    calls = calls_of(spans_since(Path(os.environ[FILE_VARIABLE]), began_ns))
    return Profiled(case.work, case.system, len(done), seconds, used, phases, calls)


def _wait_for(query: StreamingQuery, batches: int) -> None:
    """Until so many micro-batches are done. Raises StreamingQueryException if the query fails."""
    while _batches_done(query) < batches:
        if not query.isActive:
            query.awaitTermination()
            raise AssertionError("the query has ended by itself")
        time.sleep(_POLL_S)


def _batches_done(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return 0 if progress is None else int(progress["batchId"]) + 1


def calls_of(spans: Sequence[Span]) -> dict[str, float]:
    """What each call of Spark's takes, in milliseconds, and in it each thing that is waited for:
    ``commit`` and ``commit: metadata writes``. Medians. A process that commits makes the writer
    again, which is not what happens before the tasks: it is left out."""
    from benchmarks.timed_ledger import CALLS, COMMIT, PREPARE, WAITS

    took: dict[str, list[float]] = defaultdict(list)
    waits = [each for each in spans if each.part in WAITS]
    committing = {each.pid for each in spans if each.part == COMMIT}
    for call in spans:
        made_again = call.part == PREPARE and call.pid in committing
        if call.part in CALLS and not made_again:
            took[call.part].append(call.took_ms)
            inside = [each for each in waits if call.holds(each)]
            for part in WAITS:
                found = [each for each in inside if each.part == part]
                took[f"{call.part}: {part}"].append(_covered_ms(found))
    return {part: statistics.median(found) for part, found in took.items() if any(found)}


def _covered_ms(spans: Sequence[Span]) -> float:
    """How long at least one of them went on."""
    covered, end = 0, 0
    for each in sorted(spans, key=lambda one: one.began_ns):
        covered += max(0, each.ended_ns - max(end, each.began_ns))
        end = max(end, each.ended_ns)
    return covered / 1e6


if __name__ == "__main__":
    main(sys.argv[1:])
