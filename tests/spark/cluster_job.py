"""A job as users hand it to spark-submit: writes a stream, reads it, copies it as a query, counts.

Usage: cluster_job.py URI STREAM CHECKPOINT ROWS [register]. The rows are written by four tasks.
Prints ``counted ROWS SUM`` of the copy. It imports nothing of the package, so Spark has to find it;
with ``register`` it tells Spark, as a package that comes with ``--py-files`` needs it.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    metadata, stream, checkpoint, rows, *register = sys.argv[1:]
    spark = SparkSession.builder.appName("cluster job").getOrCreate()
    if register:
        from connector import register as register_source

        register_source(spark)
    given = {"metadata": metadata}
    frame = spark.range(0, int(rows), 1, 4)
    frame.write.format("ledger").options(**given, stream=stream).mode("append").save()
    copied = spark.readStream.format("ledger").options(**given, stream=stream, minPartitions=4)
    query = (
        copied.load()
        .writeStream.format("ledger")
        .options(**given, stream=f"{stream}-copy", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copy = spark.read.format("ledger").options(**given, stream=f"{stream}-copy").load()
    count, total = copy.selectExpr("count(*)", "sum(id)").first() or (0, 0)
    print(f"counted {count} {total}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
