"""A Python program appends lines to a stream, a Spark query counts: what is the word of the day?

    python examples/word_of_the_day.py                        # starts a cluster of its own
    python examples/word_of_the_day.py --metadata zk://host:2181/ledgers

The query runs all the time. The producer uses no Spark; both are in one process for brevity.
"""

from __future__ import annotations

import argparse
import os
import re
import sys

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import spark_ledger
from spark_ledger.local import LocalCluster

STREAM = "lines"
SCHEMA = pa.schema([("day", pa.string()), ("line", pa.string())])
LINES = {
    "Monday": "Row, row, row your boat gently down the stream,\n"
    "merrily, merrily, merrily, merrily, life is but a dream.",
    "Tuesday": "Water, water, every where, and all the boards did shrink;\n"
    "water, water, every where, nor any drop to drink.",
}


def start_count(spark: SparkSession, uri: str) -> StreamingQuery:
    """Count the words of each day in the table word_counts, which follows the stream."""
    lines = spark.readStream.format("ledger").option("metadata", uri).option("stream", STREAM)
    words = lines.load().select("day", F.explode(F.split(F.lower("line"), r"\W+")).alias("word"))
    counts = words.where("word <> ''").groupBy("day", "word").count()
    writer = counts.writeStream.format("memory").queryName("word_counts")
    return writer.outputMode("complete").start()


def count_of(spark: SparkSession, day: str) -> DataFrame:
    return spark.table("word_counts").where(F.col("day") == day)


def run(spark: SparkSession, uri: str) -> None:
    with spark_ledger.connect(uri) as client:
        stream = client.create_stream(STREAM, SCHEMA, exist_ok=True)
        done = stream.last_transaction("producer")  # how far an earlier run came
        query = start_count(spark, uri)
        for number, (day, text) in enumerate(LINES.items()):
            rows = [{"day": day, "line": line} for line in text.splitlines()]
            table = pa.Table.from_pylist(rows, SCHEMA)
            if done is None or number > done.transaction_id:
                # The pair names a transaction: after an error it is safe to repeat the call.
                stream.append(table, sink_id="producer", transaction_id=number)

            words = len(re.findall(r"\w+", text))
            # A DataFrame of a memory table keeps the rows of its first action: make it each time.
            while sum(row["count"] for row in count_of(spark, day).collect()) < words:
                query.awaitTermination(1)  # raises if the query has failed
            (top,) = count_of(spark, day).orderBy(F.desc("count")).limit(1).collect()
            print(f"{day}: {top['word']}, {top['count']} times")
        query.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--metadata", help="URI of a running cluster; without it, one is started")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers run in it
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("word of the day")
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
