"""A job as users hand it to spark-submit: copy what is in one stream to another, and end."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    metadata, source, target, checkpoint, rows_per_batch = sys.argv[1:]
    spark = SparkSession.builder.appName("copy").getOrCreate()
    rows = (
        spark.readStream.format("ledger")
        .option("metadata", metadata)
        .option("stream", source)
        .option("maxRowsPerTrigger", rows_per_batch)
        .option("minPartitions", 2)
        .load()
    )
    query = (
        rows.writeStream.format("ledger")
        .option("metadata", metadata)
        .option("stream", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
