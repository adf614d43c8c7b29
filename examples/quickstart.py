"""Spark writes a table to a stream and reads it back: all rows, their positions, the newest rows.

python examples/quickstart.py                        # starts a cluster of its own
python examples/quickstart.py --metadata zk://host:2181/ledgers
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from pyspark.sql import SparkSession

from spark_ledger.local import LocalCluster

MONDAY = [("Bergen", 9.5), ("Lisbon", 24.0), ("Cairo", 33.5)]
TUESDAY = [("Bergen", 8.0), ("Lisbon", 25.5)]
SCHEMA = "city string, celsius double"


def run(spark: SparkSession, uri: str) -> None:
    options = {"metadata": uri, "stream": "weather"}

    # The first write makes the stream: three copies of each entry, acknowledged by two bookies.
    # "overwrite" drops what an earlier run has left there. Each write is one commit.
    monday = spark.createDataFrame(MONDAY, SCHEMA).coalesce(1)
    monday.write.format("ledger").options(**options).mode("overwrite").save()
    tuesday = spark.createDataFrame(TUESDAY, SCHEMA).coalesce(1)
    tuesday.write.format("ledger").options(**options).mode("append").save()

    weather = spark.read.format("ledger").options(**options)
    print(f"{weather.load().count()} rows")

    # The position of each row: a stream is a sequence of segments, a segment is a sequence of
    # entries, and an entry holds rows in slots.
    with_position = weather.option("includeMetadata", True).load()
    for row in with_position.orderBy("_ledger.segment", "_ledger.entry", "_ledger.slot").collect():
        position = row["_ledger"]
        print(
            f"commit {position.commit} segment {position.segment} entry {position.entry} "
            f"slot {position.slot} in ledger {position.ledger_id}: {row.city} {row.celsius}"
        )

    # A read may start at a position: here, at the last segment.
    start = json.dumps({"segment": position.segment})
    newest = weather.option("startingPosition", start).load()
    print(f"{newest.count()} rows from {start} on")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--metadata", help="URI of a running cluster; without it, one is started")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers run in it
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("quickstart")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    if arguments.metadata:
        run(spark, arguments.metadata)
    else:
        with LocalCluster(bookies=3) as cluster:
            run(spark, cluster.uri)
    spark.stop()


if __name__ == "__main__":
    main()
