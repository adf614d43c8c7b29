"""The profiled Spark program: each job through the ledger, and beside it with ends that do nothing.

Run as ``python -m benchmarks.spark_profile_job JOB`` with a JSON ``Job``, in a process of its own.
The cases of a round take turns, so that all of them meet the same machine. One line per result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from benchmarks.cpu_time import CpuMeter
from benchmarks.drivers import Profiled
from benchmarks.rows import BARE, NOOP, OURS, System
from benchmarks.spark_job import MICRO_BATCHES, Job, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

T = TypeVar("T")

STARTS_MAX: Final = 5
_NOT_STARTED: Final = "failed to connect back"


class _Case(NamedTuple):
    work: str
    system: System
    run: Callable[[], None]


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
        ]

    # -- sources -----------------------------------------------------------------------------------

    def _parquet(self) -> DataFrame:
        reader = self._spark.readStream.schema(self._schema)
        per_trigger = max(1, self._files // MICRO_BATCHES)
        return reader.option("maxFilesPerTrigger", per_trigger).parquet(self._job.flights)

    def _bare(self) -> DataFrame:
        stream = self._spark.readStream.format("bare").schema(self._schema)
        options = {"files": self._files, "perTrigger": max(1, self._files // MICRO_BATCHES)}
        return stream.options(flights=self._job.flights, **options).load()

    def _ours(self) -> DataFrame:
        share = -(-self._job.rows // MICRO_BATCHES)
        stream = self._spark.readStream.format("ledger").option("maxRowsPerTrigger", share)
        options = {"metadata": self._job.address, "stream": f"flights-{self._number}"}
        return stream.options(**options).load()

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
                found = patiently(partial(_measured, case, job))
                if number:
                    print(msgspec.json.encode(found).decode(), flush=True)
    finally:
        spark.stop()


def patiently(measure: Callable[[], T]) -> T:
    """What is measured; once more where Spark has given up to wait for a Python process that
    starts, which it does after ten seconds. Then the query has not begun."""
    from pyspark.errors import StreamingQueryException

    for _ in range(STARTS_MAX - 1):
        try:
            return measure()
        except StreamingQueryException as error:
            if _NOT_STARTED not in str(error):
                raise
    return measure()


def _measured(case: _Case, job: Job) -> Profiled:
    meter = CpuMeter(job.bookie_pids)
    meter.start()
    started = time.perf_counter()
    case.run()
    seconds = time.perf_counter() - started
    return Profiled(case.work, case.system, job.rows, seconds, meter.finish())


if __name__ == "__main__":
    main(sys.argv[1:])
