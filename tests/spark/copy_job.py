"""A job as users hand it to spark-submit: copy what is in one stream to another, and end.

Usage: copy_job.py URI SOURCE TARGET CHECKPOINT ROWS_PER_BATCH [FAULTS], the last as in ``faulty``.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    metadata, source, target, checkpoint, rows_per_batch, *faults = sys.argv[1:]
    spark = SparkSession.builder.appName("copy").getOrCreate()
    rows = (
        spark.readStream.format("ledger")
        .option("metadata", metadata)
        .option("stream", source)
        .option("maxRowsPerTrigger", rows_per_batch)
        .option("minPartitions", 2)
        .load()
    )
    writer = rows.writeStream.format("ledger")
    if faults:
        from tests.spark.faulty import FaultyDataSource

        spark.dataSource.register(FaultyDataSource)
        writer = rows.writeStream.format("ledger_faulty").option("faults", faults[0])
    query = (
        writer.option("metadata", metadata)
        .option("stream", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
