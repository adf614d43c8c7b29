"""The driver: numbers at a steady rate into a stream, every half second, until standard input ends.

python -m tests.endurance.query METADATA STREAM CHECKPOINT ROWS_PER_S
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

TRIGGER = "500 milliseconds"


def main() -> int:
    metadata, stream, checkpoint, rows_per_s = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.python.authenticate.socketTimeout", "60s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    numbers = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", rows_per_s)
        .option("numPartitions", 2)
        .load()
        .select("value")
    )
    query = (
        numbers.writeStream.format("ledger")
        .option("metadata", metadata)
        .option("stream", stream)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=TRIGGER)
        .start()
    )
    sys.stdin.read()
    query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
