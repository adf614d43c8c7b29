"""The driver: numbers at a steady rate into a stream, every half second, until standard input ends.

python -m tests.endurance.query METADATA STREAM CHECKPOINT ROWS_PER_S
"""

from __future__ import annotations

import select
import sys

from pyspark.sql import SparkSession

TRIGGER = "500 milliseconds"
LOOK_S = 1.0


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
    ended = False
    while query.isActive and not ended:
        ended = bool(select.select([sys.stdin], [], [], LOOK_S)[0])  # nothing is ever written to it
    failed = not ended  # a process beside the driver was killed: a worker of no task
    query.stop()
    spark.stop()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
