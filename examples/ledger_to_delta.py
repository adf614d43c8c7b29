"""A stream becomes two Delta tables, each row exactly once: a copy, and the newest row per key.

    python -m examples.ledger_to_delta                        # starts a cluster of its own
    python -m examples.ledger_to_delta --metadata zk://host:2181/ledgers

A driver that dies may have written its last micro-batch, which Spark then repeats. Delta passes
over the repetition by its number; the MERGE writes the same rows once more. Needs delta-spark.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ledger
from examples.on_delta import crash, main

STREAM = "orders"
COLUMNS: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("status", pa.string())]
CHANGES = [[(1, "new"), (2, "new"), (1, "paid")], [(2, "paid"), (3, "new"), (1, "sent")]]


def follow(spark: SparkSession, uri: str) -> DataFrame:
    """The stream; each row with its position."""
    reader = spark.readStream.format("ledger").option("metadata", uri).option("stream", STREAM)
    return reader.option("includeMetadata", True).option("maxRowsPerTrigger", 3).load()


def copy(orders: DataFrame, table: str, checkpoint: Path) -> None:
    """Append all rows that the checkpoint does not know."""

    def write(batch: DataFrame, batch_id: int) -> None:
        # A pair that was committed is passed over. A new checkpoint counts from 0 again, so it
        # needs another name: else Delta would take its rows for a repetition.
        rows = batch.drop("_ledger").write.format("delta").mode("append")
        rows.option("txnAppId", "orders-to-delta").option("txnVersion", batch_id).save(table)

    writer = orders.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def upsert(orders: DataFrame, table: str, checkpoint: Path) -> None:
    """Keep the newest row of each order."""

    def merge(batch: DataFrame, _: int) -> None:
        rows = batch.groupBy("id").agg(F.max_by("status", "_ledger").alias("status"))
        target = DeltaTable.createIfNotExists(batch.sparkSession).location(table)
        into = target.addColumns(rows.schema).execute().alias("old")
        matched = into.merge(rows.alias("new"), "old.id = new.id")
        matched.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    writer = orders.writeStream.foreachBatch(merge).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def run(spark: SparkSession, uri: str, folder: Path) -> None:
    with spark_ledger.connect(uri) as client:
        schema = pa.schema(COLUMNS)
        stream = client.create_stream(STREAM, schema)
        for rows in CHANGES:
            stream.append(pa.Table.from_pylist([{"id": i, "status": s} for i, s in rows], schema))
    for name, work in (("copied", copy), ("newest", upsert)):
        table, checkpoint = str(folder / name), folder / f"{name}-checkpoint"
        work(follow(spark, uri), table, checkpoint)
        crash(checkpoint)
        work(follow(spark, uri), table, checkpoint)
        found = spark.read.format("delta").load(table).orderBy("id", "status").collect()
        print(f"{name}: {', '.join(f'{row.id} {row.status}' for row in found)}")


if __name__ == "__main__":
    main(run, __doc__ or "")
