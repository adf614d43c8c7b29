"""A job that copies a stream into Delta tables, and each table into another stream.

Usage: delta_times_job.py URI SOURCE TARGET DIRECTORY ZONE,ZONE... For each pair of zones the
session is in the first one while the table is written, and in the second one while it is read: into
TARGET-0 for the first pair, and so on. Prints, as a JSON list for each row of a table in the order
of ``n``: the number of the pair, n, the microseconds of ``at``, the texts of ``local`` and ``day``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from delta import configure_spark_with_delta_pip
from pyspark.sql import DataFrame, SparkSession

ZONE = "spark.sql.session.timeZone"


def session(directory: Path) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("times in Delta")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.python.authenticate.socketTimeout", "60s")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    made: SparkSession = configure_spark_with_delta_pip(builder).getOrCreate()
    return made


def copied(rows: DataFrame, to: str, checkpoint: Path, **options: str) -> None:
    """Copy what is there now."""
    writer = rows.writeStream.format(to).options(**options)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


def main() -> None:
    metadata, source, target, work, *pairs = sys.argv[1:]
    spark = session(Path(work))
    rows = spark.readStream.format("ledger").options(metadata=metadata, stream=source).load()
    for number, pair in enumerate(pairs):
        directory = Path(work) / str(number)
        table = str(directory / "table")
        written_in, read_in = pair.split(",")
        spark.conf.set(ZONE, written_in)
        copied(rows, "delta", directory / "to-delta", path=table)
        spark.conf.set(ZONE, read_in)
        shown = spark.read.format("delta").load(table).orderBy("n")
        for row in shown.selectExpr(
            "n", "unix_micros(at)", "CAST(local AS string)", "CAST(day AS string)"
        ).collect():
            print(json.dumps([number, *row]), flush=True)
        back = spark.readStream.format("delta").load(table)
        to = {"metadata": metadata, "stream": f"{target}-{number}"}
        copied(back, "ledger", directory / "to-ledger", **to)
    spark.stop()


if __name__ == "__main__":
    main()
