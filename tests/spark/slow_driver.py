"""A driver that stops half way through a micro-batch: one query for each step, held there.

Usage: slow_driver.py URI SOURCE DIRECTORY, where the directory has one of its own for each step,
with the faults and the checkpoint. Ends when all queries have ended, and writes what they ended
with to ``ends.json``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.faulty import STEPS, FaultyDataSource


def main() -> None:
    metadata, source, directory = sys.argv[1:]
    spark = SparkSession.builder.appName("slow driver").getOrCreate()
    spark.dataSource.register(FaultyDataSource)
    queries = {}
    for step in STEPS:
        given = {"metadata": metadata, "faults": f"{directory}/{step}"}
        reader = spark.readStream.format("ledger_faulty").options(**given).option("stream", source)
        rows = reader.option("maxRowsPerTrigger", 10).load()
        writer = rows.writeStream.format("ledger_faulty").options(**given)
        writer = writer.option("checkpointLocation", f"{directory}/{step}/checkpoint")
        queries[step] = writer.option("stream", f"{source}-{step}").start()
    ends = {}
    for step, query in queries.items():
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination()
        ends[step] = str(query.exception())
    Path(directory, "ends.json").write_text(json.dumps(ends))
    spark.stop()


if __name__ == "__main__":
    main()
