"""A Delta table becomes a stream, each row exactly once, also if the driver dies on the way.

    python -m examples.delta_to_ledger                        # starts a cluster of its own
    python -m examples.delta_to_ledger --metadata zk://host:2181/ledgers

A driver that dies may have committed its last micro-batch, which Spark then repeats. The stream
knows the last transaction of each sink and passes over the repetition. Needs delta-spark.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import spark_ledger
from examples.on_delta import crash, main

STREAM = "readings"


def copy(spark: SparkSession, uri: str, table: str, checkpoint: Path) -> None:
    """Append all rows of the table that the checkpoint does not know."""
    rows = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(table)
    writer = rows.writeStream.format("ledger").option("metadata", uri).option("stream", STREAM)
    # With a name of its own, a query that lost its checkpoint is refused instead of doubling rows.
    writer = writer.option("sinkId", "delta-copy").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def run(spark: SparkSession, uri: str, folder: Path) -> None:
    table, checkpoint = str(folder / "table"), folder / "checkpoint"
    for first in (0, 10):
        numbers = spark.range(first, first + 10, 1, 1)
        numbers.write.format("delta").mode("append").save(table)
    copy(spark, uri, table, checkpoint)
    crash(checkpoint)
    spark.range(20, 30, 1, 1).write.format("delta").mode("append").save(table)
    copy(spark, uri, table, checkpoint)
    with spark_ledger.connect(uri) as client:
        stream = client.stream(STREAM)
        ids = [row["id"] for batch in stream.read() for row in batch.to_pylist()]
        last = stream.last_transaction("delta-copy")
    print(f"{len(ids)} rows, {len(set(ids))} of them different; {stream.name}: {last}")


if __name__ == "__main__":
    main(run, __doc__ or "")
