"""A Delta table becomes a stream, each row exactly once, also if the driver dies on the way.

    python examples/delta_to_ledger.py                        # starts a cluster of its own
    python examples/delta_to_ledger.py --metadata zk://host:2181/ledgers

A driver that dies may have committed its last micro-batch, which Spark then repeats. The stream
knows the last transaction of each sink and passes over the repetition. Needs delta-spark.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

import spark_ledger
from spark_ledger.local import LocalCluster

STREAM = "readings"


def copy(spark: SparkSession, uri: str, table: str, checkpoint: Path) -> None:
    """Append all rows of the table that the checkpoint does not know."""
    rows = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(table)
    writer = rows.writeStream.format("ledger").option("metadata", uri).option("stream", STREAM)
    # With a name of its own, a query that lost its checkpoint is refused instead of doubling rows.
    writer = writer.option("sinkId", "delta-copy").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def crash(checkpoint: Path) -> None:
    """What a driver leaves that dies behind its commit: Spark has not noted that it was done."""
    commits = checkpoint / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / f"{newest}").unlink()
    (commits / f".{newest}.crc").unlink()


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--metadata", help="URI of a running cluster; without it, one is started")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers run in it
    spark = configure_spark_with_delta_pip(  # fetches Delta's jars at the first start
        SparkSession.builder.master("local[2]")
        .appName("Delta to ledger")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.databricks.delta.snapshotPartitions", 2)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
    ).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.metadata:
            run(spark, arguments.metadata, Path(folder))
        else:
            with LocalCluster(bookies=3) as cluster:
                run(spark, cluster.uri, Path(folder))
        spark.stop()


if __name__ == "__main__":
    main()
