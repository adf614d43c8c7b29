"""A job as users hand it to spark-submit: copy what is in one stream to another, and end.

Usage: copy_job.py URI SOURCE TARGET CHECKPOINT ROWS_PER_BATCH [FAULTS], the last as in ``faulty``.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    metadata, source, target, checkpoint, rows_per_batch, *faults = sys.argv[1:]
    spark = SparkSession.builder.appName("copy").getOrCreate()
    name, given = "ledger", {"metadata": metadata}
    if faults:
        from tests.spark.faulty import FaultyDataSource

        spark.dataSource.register(FaultyDataSource)
        name, given = FaultyDataSource.name(), {"metadata": metadata, "faults": faults[0]}
    rows = (
        spark.readStream.format(name)
        .options(**given, stream=source, maxRowsPerTrigger=rows_per_batch, minPartitions=2)
        .load()
    )
    query = (
        rows.writeStream.format(name)
        .options(**given, stream=target, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
