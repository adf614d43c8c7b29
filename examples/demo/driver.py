"""One Spark driver of the demonstration, a process of its own so that it can be killed.

    python -m examples.demo.driver write --metadata URI --stream NAME --from DIR --checkpoint DIR
    python -m examples.demo.driver read|batch --metadata URI --stream NAME --to DIR ...

It prints a line of JSON for each micro-batch that was committed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

READ_ROWS_PER_TRIGGER = 40_000


def session() -> SparkSession:
    """Spark in this process, on two cores. Nothing is registered: installing was enough."""
    spark = (
        SparkSession.builder.master("local[2,4]")
        .appName("spark-ledger demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write(spark: SparkSession, options: argparse.Namespace) -> None:
    """Parquet files -> stream, one file a micro-batch, until all files are written."""
    schema = spark.read.parquet(options.source).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(options.source)
    query = (
        files.writeStream.format("ledger")
        .option("metadata", options.metadata)
        .option("stream", options.stream)
        .option("ensembleSize", 3)
        .option("writeQuorum", 3)
        .option("ackQuorum", 2)
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    follow(query)


def stream_frame(reader: DataStreamReader, options: argparse.Namespace) -> DataFrame:
    """The stream with the position of each row."""
    return (
        reader.format("ledger")
        .option("metadata", options.metadata)
        .option("stream", options.stream)
        .option("includeMetadata", "true")
        .option("maxRowsPerTrigger", READ_ROWS_PER_TRIGGER)
        .load()
    )


def read(spark: SparkSession, options: argparse.Namespace) -> None:
    """Stream -> Parquet files, as a stream."""
    query = (
        stream_frame(spark.readStream, options)
        .writeStream.format("parquet")
        .option("path", options.target)
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    follow(query)


def batch(spark: SparkSession, options: argparse.Namespace) -> None:
    """Stream -> Parquet files, as a batch."""
    frame = (
        spark.read.format("ledger")
        .option("metadata", options.metadata)
        .option("stream", options.stream)
        .option("includeMetadata", "true")
        .load()
    )
    frame.limit(1).collect()  # starts Python workers, which are not measured
    begin = time.monotonic()
    frame.write.parquet(options.target)
    seconds = time.monotonic() - begin
    rows = spark.read.parquet(options.target).count()
    print(json.dumps({"batch": 0, "rows": rows, "seconds": seconds}), flush=True)


def follow(query: StreamingQuery) -> None:
    """Print every micro-batch once it is committed, until the query ends.

    Raises StreamingQueryException if the query fails.
    """
    seen = -1
    while True:
        active = query.isActive
        for progress in query.recentProgress:
            if progress["batchId"] > seen and progress["numInputRows"]:
                seen = progress["batchId"]
                seconds = progress["durationMs"]["triggerExecution"] / 1000
                line = {"batch": seen, "rows": progress["numInputRows"], "seconds": seconds}
                print(json.dumps(line), flush=True)
        if not active:
            query.awaitTermination()
            return
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("job", choices=["write", "read", "batch"])
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--from", dest="source")
    parser.add_argument("--to", dest="target")
    parser.add_argument("--checkpoint")
    options = parser.parse_args()
    {"write": write, "read": read, "batch": batch}[options.job](session(), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
