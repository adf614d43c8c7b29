"""The profiled Spark program: each job through the ledger, and beside it with ends that do nothing.

Run as ``python -m benchmarks.spark_profile_job JOB`` with a JSON ``Job``, in a process of its own.
The cases of a round take turns, so that all of them meet the same machine. One line per result.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from benchmarks.cpu_time import CpuMeter
from benchmarks.drivers import Profiled
from benchmarks.rows import BARE, NOOP, OURS, System
from benchmarks.spark_job import MICRO_BATCHES, Job, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

SMALL_BATCHES = 20
"""Micro-batches of one row, of which the first are not counted."""

WARM_BATCHES = 5
STARTS_MAX = 5
_NOT_STARTED = "failed to connect back"
_POLL_S = 0.1


class _Case(NamedTuple):
    work: str
    system: System
    run: Callable[[], None] | None
    query: Callable[[], StreamingQuery] | None = None
    """Instead of ``run``: a query of small micro-batches."""


class _Program:
    """One round of all cases. Names of streams and checkpoints have its number."""

    def __init__(self, spark: SparkSession, job: Job, schema: StructType, number: int) -> None:
        self._spark, self._job, self._schema, self._number = spark, job, schema, number
        self._files = len(list(Path(job.flights).glob("*.parquet")))

    def cases(self) -> list[_Case]:
        """In the order in which they run: what is read has been written before."""
        return [
            _Case("write", NOOP, lambda: self._done(self._written(self._parquet(), NOOP))),
            _Case("write", BARE, lambda: self._done(self._written(self._parquet(), BARE))),
            _Case("write", OURS, lambda: self._done(self._written(self._parquet(), OURS))),
            _Case("read", BARE, self._read_bare),
            _Case("read", OURS, self._read_ours),
            _Case("copy", BARE, lambda: self._done(self._written(self._bare(), BARE, "copy"))),
            _Case("copy", OURS, lambda: self._done(self._written(self._ours(), OURS, "copy"))),
            _Case("sink", NOOP, None, lambda: self._written(self._small(), NOOP, "small")),
            _Case("sink", BARE, None, lambda: self._written(self._small(), BARE, "small")),
            _Case("sink", OURS, None, lambda: self._written(self._small(), OURS, "small")),
            _Case("source", BARE, None, lambda: self._written(self._small(), NOOP, "again")),
            _Case("source", OURS, None, lambda: self._written(self._small_ours(), NOOP, "ours")),
        ]

    # -- sources -----------------------------------------------------------------------------------

    def _parquet(self) -> DataFrame:
        reader = self._spark.readStream.schema(self._schema)
        per_trigger = max(1, self._files // MICRO_BATCHES)
        return reader.option("maxFilesPerTrigger", per_trigger).parquet(self._job.flights)

    def _bare(self) -> DataFrame:
        per_trigger = max(1, self._files // MICRO_BATCHES)
        return self._of_bare(self._spark.readStream, files=self._files, per_trigger=per_trigger)

    def _small(self) -> DataFrame:
        stream = self._spark.readStream.option("rows", 1)
        return self._of_bare(stream, files=SMALL_BATCHES, per_trigger=1)

    def _of_bare(self, stream: DataStreamReader, *, files: int, per_trigger: int) -> DataFrame:
        stream = stream.format("bare").schema(self._schema).option("flights", self._job.flights)
        return stream.options(files=files, perTrigger=per_trigger).load()

    def _ours(self) -> DataFrame:
        share = -(-self._job.rows // MICRO_BATCHES)
        return self._of_ours("flights", share)

    def _small_ours(self) -> DataFrame:
        return self._of_ours("small", 1)

    def _of_ours(self, name: str, per_trigger: int) -> DataFrame:
        stream = self._spark.readStream.option("maxRowsPerTrigger", per_trigger)
        options = {"metadata": self._job.address, "stream": f"{name}-{self._number}"}
        return stream.format("ledger").options(**options).load()

    def _read_bare(self) -> None:
        reader = self._spark.read.format("bare").schema(self._schema)
        frame = reader.options(flights=self._job.flights, files=self._files).load()
        frame.write.format("noop").mode("overwrite").save()

    def _read_ours(self) -> None:
        options = {"metadata": self._job.address, "stream": f"flights-{self._number}"}
        frame = self._spark.read.format("ledger").options(**options).load()
        frame.write.format("noop").mode("overwrite").save()

    # -- sinks -------------------------------------------------------------------------------------

    def _written(self, frame: DataFrame, sink: System, name: str = "flights") -> StreamingQuery:
        job = self._job
        writer = frame.writeStream.format({NOOP: "noop", BARE: "bare"}.get(sink, "ledger"))
        if sink == OURS:
            writer = writer.options(metadata=job.address, stream=f"{name}-{self._number}")
        checkpoint = f"{job.work}/checkpoint-{name}-{sink.replace(' ', '-')}-{self._number}"
        writer = writer.option("checkpointLocation", checkpoint)
        return writer.trigger(availableNow=True).start()

    def _done(self, query: StreamingQuery) -> None:
        query.awaitTermination()


def main(arguments: list[str]) -> None:
    """Run all cases once to warm up, then ``rounds`` times."""
    from benchmarks.bare_spark import BareSource

    job = msgspec.json.decode(arguments[0], type=Job)
    spark: SparkSession = session(job)
    spark.dataSource.register(BareSource)
    try:
        schema = spark.read.parquet(job.flights).schema
        for number in range(job.rounds + 1):
            for case in _Program(spark, job, schema, number).cases():
                if number or case.run is not None:  # the others warm up by themselves
                    found = _patiently(case, job)
                if number:
                    print(msgspec.json.encode(found).decode(), flush=True)
    finally:
        spark.stop()


def _patiently(case: _Case, job: Job) -> Profiled:
    """Measure; once more where Spark has given up to wait for a Python process that starts, which
    it does after ten seconds. Then the query has not begun."""
    from pyspark.errors import StreamingQueryException

    for _ in range(STARTS_MAX - 1):
        try:
            return _measured(case, job)
        except StreamingQueryException as error:
            if _NOT_STARTED not in str(error):
                raise
    return _measured(case, job)


def _measured(case: _Case, job: Job) -> Profiled:
    if case.query is not None:
        return _small_batches(case, job, case.query)
    assert case.run is not None, "a case has one of both"
    meter = CpuMeter(job.bookie_pids)
    meter.start()
    started = time.perf_counter()
    case.run()
    seconds = time.perf_counter() - started
    return Profiled(case.work, case.system, job.rows, seconds, meter.finish())


def _small_batches(case: _Case, job: Job, start: Callable[[], StreamingQuery]) -> Profiled:
    """Micro-batches of one row, after the first ones. The meter runs from one of them to the end,
    so it has the end of the query in it, of which all cases have the same."""
    query = start()
    meter = CpuMeter(job.bookie_pids)
    while (last := _last_batch(query)) < WARM_BATCHES and query.isActive:
        time.sleep(_POLL_S)
    meter.start()
    query.awaitTermination()
    used = meter.finish()
    done = [p for p in query.recentProgress if p["numInputRows"] and p["batchId"] > last]
    assert len(done) >= SMALL_BATCHES // 2, f"{len(done)} micro-batches were counted"
    phases = {
        name: statistics.median(each["durationMs"].get(name, 0) for each in done)
        for name in sorted({key for each in done for key in each["durationMs"]})
    }
    seconds = phases.pop("triggerExecution") / 1e3 * len(done)
    return Profiled(case.work, case.system, len(done), seconds, used, phases)


def _last_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


if __name__ == "__main__":
    main(sys.argv[1:])
