"""The driver of many queries, until standard input ends.

python -m tests.endurance.many_queries METADATA DIRECTORY QUERIES ROWS_PER_S TRIGGER_MS ZONE

Every second query writes numbers with their times, at a steady rate, to a stream of its own; the
one behind it copies that stream to another. They start one after the other. Each line of standard
output is JSON: what the driver says of its memory (``heap_bytes``, ``batches``), and at the end
what Spark finds in each stream.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import TYPE_CHECKING, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.endurance.rows import COPIES, NUMBERS, Found

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

HEAP: Final = "1g"
JAVA_OPTIONS: Final = f"-XX:+UseSerialGC -Xms{HEAP} -XX:+AlwaysPreTouch -XX:TieredStopAtLevel=1"
"""All of the heap is resident from the start, so what grows is something else."""

LOOK_S: Final = 1.0
TELL_S: Final = 10.0
STARTS_MAX: Final = 5


class Program:
    """The queries of one session."""

    def __init__(self, spark: SparkSession, arguments: list[str]) -> None:
        self._spark = spark
        self._metadata, self._directory, queries, self._rows_per_s, self._trigger_ms = arguments
        self._wanted = int(queries)
        self.queries: list[StreamingQuery] = []

    def start(self) -> None:
        """All of them, each once the one before has done a micro-batch: many Python processes
        that start at once take longer than Spark waits for one."""
        for number in range(self._wanted):
            self.queries.append(self._started(number))

    def _started(self, number: int) -> StreamingQuery:
        for _ in range(STARTS_MAX - 1):
            try:
                return self._tried(number)
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):
                    raise
        return self._tried(number)

    def _tried(self, number: int) -> StreamingQuery:
        pair, is_copy = divmod(number, 2)
        rows = self._followed(NUMBERS.format(pair)) if is_copy else self._counted()
        target = (COPIES if is_copy else NUMBERS).format(pair)
        query = (
            rows.writeStream.format("ledger")
            .options(metadata=self._metadata, stream=target)
            .option("checkpointLocation", f"{self._directory}/{target}")
            .trigger(processingTime=f"{self._trigger_ms} milliseconds")
            .start()
        )
        while not _batches(query):
            if not query.isActive:
                query.awaitTermination()
                raise AssertionError("the query has ended by itself")
            time.sleep(LOOK_S / 4)
        return query

    def _counted(self) -> DataFrame:
        rate = self._spark.readStream.format("rate").option("numPartitions", 1)
        return rate.option("rowsPerSecond", self._rows_per_s).load()

    def _followed(self, stream: str) -> DataFrame:
        options = {"metadata": self._metadata, "stream": stream}
        return self._spark.readStream.format("ledger").options(**options).load()

    def tell(self) -> None:
        """Say what the driver holds."""
        jvm = self._spark._jvm
        assert jvm is not None, "a session has a JVM"
        jvm.java.lang.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        held = runtime.totalMemory() - runtime.freeMemory()
        batches = sum(map(_batches, self.queries))
        print(json.dumps({"heap_bytes": held, "batches": batches}), flush=True)

    def end(self) -> None:
        """Stop them: first who write numbers, then who copy these, once all are copied."""
        for query in self.queries[::2]:
            query.stop()
        for query in self.queries[1::2]:
            query.processAllAvailable()
            query.stop()

    def found(self) -> list[Found]:
        """What Spark reads in each stream, in this session's zone."""
        names = [
            (COPIES if number % 2 else NUMBERS).format(number // 2)
            for number in range(self._wanted)
        ]
        return [self._found(name) for name in names]

    def _found(self, stream: str) -> Found:
        options = {"metadata": self._metadata, "stream": stream}
        rows = self._spark.read.format("ledger").options(**options).load()
        row = rows.selectExpr(
            "count(*)",
            "count(DISTINCT value)",
            "min(unix_micros(timestamp))",
            "max(unix_micros(timestamp))",
        ).first()
        assert row is not None, "an aggregate has a row"
        return Found(stream, *row)


def _batches(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return 0 if progress is None else int(progress["batchId"]) + 1


def main() -> int:
    *arguments, zone = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("many queries")
        .config("spark.driver.memory", HEAP)
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.python.authenticate.socketTimeout", "60s")
        .config("spark.sql.session.timeZone", zone)
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # What Spark keeps of jobs that are done, for a page that nobody looks at.
        .config("spark.ui.retainedJobs", "20")
        .config("spark.ui.retainedStages", "20")
        .config("spark.ui.retainedTasks", "100")
        .config("spark.sql.ui.retainedExecutions", "20")
        .config("spark.sql.streaming.numRecentProgressUpdates", "5")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    program = Program(spark, arguments)
    program.start()
    told = 0.0
    while all(query.isActive for query in program.queries):
        if time.monotonic() >= told + TELL_S:
            told = time.monotonic()
            program.tell()
        if select.select([sys.stdin], [], [], LOOK_S)[0]:  # nothing is ever written to it
            program.end()
            print(json.dumps({"found": [each._asdict() for each in program.found()]}), flush=True)
            spark.stop()
            return 0
    for query in program.queries:
        print(query.exception(), file=sys.stderr)
    spark.stop()
    return 1


if __name__ == "__main__":
    sys.exit(main())
