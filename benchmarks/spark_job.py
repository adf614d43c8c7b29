"""The measured Spark program: flights into a log, out of it, and from log to log.

Run as ``python -m benchmarks.spark_job JOB`` with a JSON ``Job``, in a process of its own. The same
program serves all systems; only the format and its options differ. One line per result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.cpu_time import CpuMeter
from benchmarks.drivers import CpuTime
from benchmarks.paths import ROOT
from benchmarks.rows import BARE, Round

MICRO_BATCHES = 4
PARTITIONS = 2


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run. ``address`` is a metadata URI, or Kafka's brokers; a bare source has none."""

    system: str
    address: str
    flights: str
    rows: int
    work: str
    rounds: int
    jars: list[str] = []
    bookie_pids: list[int] = []


class Log:
    """A log in one of the systems, as options of a reader or a writer."""

    def __init__(self, job: Job, name: str, schema: Any) -> None:
        self._job = job
        self.name = name
        self._schema = schema

    def write(self, stream: Any, checkpoint: str) -> None:
        """Stream the rows in until the source is exhausted."""
        from pyspark.sql import functions

        job = self._job
        if job.system == "kafka":
            stream = stream.select(functions.to_json(functions.struct("*")).alias("value"))
            options = {
                "kafka.bootstrap.servers": job.address,
                "kafka.acks": "all",
                "kafka.batch.size": "262144",
                "kafka.linger.ms": "5",
                "kafka.buffer.memory": "134217728",
                "topic": self.name,
            }
            writer = stream.writeStream.format("kafka").options(**options)
        elif job.system == BARE:
            writer = stream.writeStream.format("bare")
        else:
            options = {"metadata": job.address, "stream": self.name, "createStream": "true"}
            writer = stream.writeStream.format("ledger").options(**options)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()

    def read(self, spark: Any) -> Any:
        """Read all rows as a batch."""
        return self._rows(spark.read)

    def read_stream(self, spark: Any) -> Any:
        """Copy all rows as a stream, in micro-batches of a quarter each."""
        share = -(-self._job.rows // MICRO_BATCHES)
        limit = "maxOffsetsPerTrigger" if self._job.system == "kafka" else "maxRowsPerTrigger"
        return self._rows(spark.readStream.option(limit, share))

    def _rows(self, reader: Any) -> Any:
        from pyspark.sql import functions

        job = self._job
        if job.system == BARE:
            files = len(list(Path(job.flights).glob("*.parquet")))
            per_trigger = max(1, files // MICRO_BATCHES)
            options = {"flights": job.flights, "files": str(files), "perTrigger": str(per_trigger)}
            return reader.format("bare").schema(self._schema).options(**options).load()
        if job.system != "kafka":
            return reader.format("ledger").options(metadata=job.address, stream=self.name).load()
        options = {"kafka.bootstrap.servers": job.address, "subscribe": self.name}
        frame = reader.format("kafka").options(**options, startingOffsets="earliest").load()
        text = functions.col("value").cast("string")
        return frame.select(functions.from_json(text, self._schema).alias("row")).select("row.*")


def main(arguments: list[str]) -> None:
    """Run the job once to warm up, then ``rounds`` times."""
    job = msgspec.json.decode(arguments[0], type=Job)
    spark = session(job)
    if job.system == BARE:
        from benchmarks.bare_spark import BareSource

        spark.dataSource.register(BareSource)
    try:
        schema = spark.read.parquet(job.flights).schema
        _round(spark, job, schema, 0, counts=False)
        for number in range(1, job.rounds + 1):
            _round(spark, job, schema, number, counts=True)
    finally:
        spark.stop()


def session(job: Job) -> Any:
    """A local session with two cores, the same for every system."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")  # its lines have no end
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", f"{job.work}/local")
        .config("spark.sql.warehouse.dir", f"{job.work}/warehouse")
    )
    for name, value in _settings(ROOT / "conf" / "spark-defaults.conf"):
        builder = builder.config(name, value)
    if job.jars:
        builder = builder.config("spark.jars", ",".join(job.jars))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _settings(file: Path) -> Iterator[tuple[str, str]]:
    """The settings that users are told to use."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, value = line.split(maxsplit=1)
            yield name, value


def _round(spark: Any, job: Job, schema: Any, number: int, *, counts: bool) -> None:
    source, copy = (Log(job, f"{name}-{number}", schema) for name in ("flights", "copy"))
    files = len(list(Path(job.flights).glob("*.parquet")))

    def write() -> None:
        reader = spark.readStream.schema(schema)
        reader = reader.option("maxFilesPerTrigger", max(1, files // MICRO_BATCHES))
        source.write(reader.parquet(job.flights), f"{job.work}/write-{number}")

    def read() -> None:
        source.read(spark).write.format("noop").mode("overwrite").save()

    def stream_copy() -> None:
        copy.write(source.read_stream(spark), f"{job.work}/copy-{number}")

    for op, run in (("write", write), ("read", read), ("stream-copy", stream_copy)):
        _timed(job, op, run, counts=counts)
    if not counts and job.system != BARE:
        found = copy.read(spark).count()
        assert found == job.rows, f"{job.rows} flights were written, {found} arrived in the copy"


def _timed(job: Job, op: str, run: Callable[[], None], *, counts: bool) -> None:
    meter = CpuMeter(job.bookie_pids)
    meter.start()
    started = time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    used = meter.finish()
    if counts:
        _print(Round(op, job.rows, seconds))
        if job.bookie_pids:
            _print(CpuTime(cpu_of=op, cpu_seconds=used))


def _print(line: Round | CpuTime) -> None:
    print(msgspec.json.encode(line).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
