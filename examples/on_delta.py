"""What both Delta examples need: a session with Delta, a cluster, and the crash of a driver."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from spark_ledger.local import LocalCluster


def main(run: Callable[[SparkSession, str, Path], None], description: str) -> None:
    """Run an example on the cluster that ``--metadata`` names, or on one that is started for it."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--metadata", help="URI of a running cluster; without it, one is started")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers run in it
    spark = configure_spark_with_delta_pip(  # fetches Delta's jars at the first start
        SparkSession.builder.master("local[2]")
        .appName("ledger and Delta")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.databricks.delta.snapshotPartitions", 2)
        .config("spark.sql.shuffle.partitions", 2)
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


def crash(checkpoint: Path) -> None:
    """What a driver leaves that dies behind its last write: Spark has not noted it as done."""
    commits = checkpoint / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / f"{newest}").unlink()
    (commits / f".{newest}.crc").unlink()
