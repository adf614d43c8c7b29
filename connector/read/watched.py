"""A partition's rows as ``task.read_partition`` gives them, and at their end the task's report."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from connector import sessions
from connector.options import ReadOptions
from connector.read.partitions import (
    LedgerPartition,
    SeveralPartition,
    StreamPartition,
    StreamSpan,
)
from connector.read.task import read_partition
from connector.task_report import TaskWatch, log_task, send_from_task
from spark_ledger.errors import MetadataRestoredError
from spark_ledger.limits.connector import READS_LOGGED_MAX
from spark_ledger.stream.plan.balance import FirstReads


def read_watched(
    options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. A task that is ended early, as by a limit, reports what it read.

    One that finds that ZooKeeper was restored gives up its connection: the handles fail for good
    (rule T5), and Spark uses the process again.
    """
    watch = TaskWatch(options.connection)
    rows, is_restored = 0, False
    try:
        for batch in _batches(options, schema, partition):
            rows += batch.num_rows
            yield batch
    except MetadataRestoredError:
        is_restored = True
        raise
    finally:
        report = watch.report("read", rows=rows)
        send_from_task(report)
        log_task(options.subject, where(partition), report, to_stderr=options.task_log)
        if is_restored:  # behind the report, which has its counts from the connection
            sessions.discard(options.connection)


def _batches(
    options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SeveralPartition):
        yield from read_partition(options, schema, partition)
        return
    for name, part in partition.parts:
        yield from read_partition(options.of_stream(name), schema, part)


def where(partition: InputPartition) -> str:
    """Which part of the stream or ledger it is, and whom the plan asks for it, for the log."""
    if isinstance(partition, StreamPartition):
        first, last = partition.plan.ranges[0], partition.plan.ranges[-1]
        ledgers = sorted({each.segment.ledger_id for each in partition.plan.ranges})
        shown = ", ".join(map(str, ledgers[:3])) + ", ..." * (len(ledgers) > 3)
        return (
            f" from {(first.segment.number, *first.start)} to {(last.segment.number, *last.end)}, "
            f"ledger {shown}{_planned(partition.plan.reads)}"
        )
    if isinstance(partition, StreamSpan):
        span = partition.span
        return f" from {tuple(span.start)} to {tuple(span.end)}{_planned(span.reads)}"
    if isinstance(partition, SeveralPartition):
        return ";".join(f" of {name!r}{where(part)}" for name, part in partition.parts)
    if isinstance(partition, LedgerPartition):
        entries = f", entries {partition.first_entry} to {partition.last_entry}"
        return f"{entries}{_planned(partition.reads)}"
    return ""


def _planned(reads: FirstReads) -> str:
    """Which bookies the plan has the task ask first, and for how much. It may know better."""
    sizes = reads.bytes_by_bookie
    shown = [f"{size} bytes from {name}" for name, size in sizes.items()][:READS_LOGGED_MAX]
    more = ["..."] * (len(sizes) > READS_LOGGED_MAX)
    return f", planned {', '.join([*shown, *more])}" if shown else ""
