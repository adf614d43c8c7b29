"""Reading many small commits, written by one task or by several at the same time.

``python -m benchmarks.small_commits`` makes streams of a fresh cluster in which every commit has a
segment of each task, and reads them whole, several times, each with a connection of its own: as
they were written, and once more when they are packed (rule T23).
"""

from __future__ import annotations

import time
from typing import NamedTuple

import click
import pyarrow as pa

import spark_ledger
from benchmarks.rows import median
from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import Stream

_SCHEMA = pa.schema([("number", pa.int64()), ("square", pa.int64())])
_ROWS_PER_SEGMENT = 10


class _Round(NamedTuple):
    """One read of a whole stream."""

    seconds: float
    processor_seconds: float
    """Of this process alone."""


@click.command()
@click.option("--commits", default=1000, show_default=True)
@click.option("--tasks", multiple=True, default=(1, 2, 8), show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(commits: int, tasks: tuple[int, ...], rounds: int) -> None:
    """Measure how fast streams of small commits are read."""
    with LocalCluster(bookies=3) as cluster:
        for count in tasks:
            name = f"of-{count}"
            with spark_ledger.connect(cluster.uri) as client:
                rows = _write(client.create_stream(name, schema=_SCHEMA), commits, count)
            _report(f"{commits:,} commits of {count} tasks, {rows:,} rows", cluster, name, rounds)
            with spark_ledger.connect(cluster.uri) as client, client.stream(name) as stream:
                started = time.perf_counter()
                packed = stream.optimize(entries_min=1)
                seconds = time.perf_counter() - started
            click.echo(f"  packed in {seconds:.3f} s: {packed[0].former_entries:,} entries")
            _report("  then", cluster, name, rounds)


def _report(title: str, cluster: LocalCluster, name: str, rounds: int) -> None:
    with spark_ledger.connect(cluster.uri) as client, client.stream(name) as stream:
        rows = stream.head().rows
    found = [_read(cluster.uri, name, rows) for _ in range(rounds)]
    click.echo(
        f"{title}: median {median(each.seconds for each in found):.3f} s, "
        f"fastest {min(each.seconds for each in found):.3f} s, "
        f"{min(each.processor_seconds for each in found):.3f} s of the reader's processor"
    )


def _write(stream: Stream, commits: int, tasks: int) -> int:
    """Make commits with a segment of each task, and return how many rows that were."""
    writers = [stream.writer() for _ in range(tasks)]
    row = 0
    for _ in range(commits):
        for writer in writers:
            numbers = range(row, row + _ROWS_PER_SEGMENT)
            writer.write(pa.table({"number": numbers, "square": [n * n for n in numbers]}, _SCHEMA))
            row += _ROWS_PER_SEGMENT
        stream.commit_segments([part for writer in writers for part in writer.finish()])
    for writer in writers:
        writer.close()
    return row


def _read(uri: str, name: str, rows: int) -> _Round:
    with spark_ledger.connect(uri) as client, client.stream(name) as stream:
        started, used = time.perf_counter(), time.process_time()
        following = 0
        for batch in stream.read():
            assert batch.column("number")[0].as_py() == following, "rows are in order"
            following += batch.num_rows
        assert following == rows, "all rows are there"
        return _Round(time.perf_counter() - started, time.process_time() - used)


if __name__ == "__main__":
    main()
