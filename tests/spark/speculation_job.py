"""A job of which one task is slow, so that Spark has a second attempt of it run beside the first.

Usage: speculation_job.py URI SOURCE DIRECTORY. For each kind of write and each pace of
``slow_attempts`` it copies the stream SOURCE, in four partitions, to a stream ``copied-KIND-PACE``.
The attempts meet in the directory of that name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.spark.slow_attempts import PACES, SlowDataSource

BATCH, STREAMING = "batch", "streaming"
KINDS: Final = (BATCH, STREAMING)
PARTITIONS: Final = 4
TARGETS: Final = tuple((kind, pace, f"copied-{kind}-{pace}") for kind in KINDS for pace in PACES)


def main() -> None:
    metadata, source, directory = sys.argv[1:]
    spark = SparkSession.builder.appName("speculation").getOrCreate()
    spark.dataSource.register(SlowDataSource)
    given = {"metadata": metadata, "stream": source, "minPartitions": str(PARTITIONS)}
    for kind, pace, target in TARGETS:
        meeting = Path(directory) / target
        meeting.mkdir()
        options = {
            "metadata": metadata,
            "stream": target,
            "entryBytes": "1k",  # a part of the rows is appended before the task has seen all
            "attempts": str(meeting),
            "pace": pace,
        }
        if kind == BATCH:
            rows = spark.read.format("ledger").options(**given).load()
            rows.write.format(SlowDataSource.name()).options(**options).mode("append").save()
        else:
            followed = spark.readStream.format("ledger").options(**given).load()
            query = (
                followed.writeStream.format(SlowDataSource.name())
                .options(**options, checkpointLocation=str(meeting / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        print(f"copied to {target}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
