"""What a task did, in one log line and in a report to the query's listener.

The line goes to the logger ``spark_ledger.tasks`` at level INFO, and with the option ``taskLog`` to
the standard error of the process too, which is in the executor's log.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

from pyspark import TaskContext

from connector import sessions
from connector.garbage import set_aside
from connector.options import ConnectionOptions
from spark_ledger.client.caches import cache_sizes
from spark_ledger.spark.reports import Kind, Report, send

logger = logging.getLogger("spark_ledger.tasks")
logger.setLevel(logging.INFO)  # without a handler nothing below WARNING is shown all the same

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
RUN_ID_PROPERTY: Final = "spark.jobGroup.id"
"""Local properties of the task context, by Spark's own names, which are undocumented and the same
in 4.2 and 4.3. A streaming query runs its jobs in a job group named by its run id."""


class TaskWatch:
    """Counts what this process's client does from here to ``report``. A Python process runs one
    task at a time, so it is the task's."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._began = time.monotonic()
        self._before = sessions.counters(connection)

    def report(self, kind: Kind, *, rows: int, entries: int = 0, size_bytes: int = 0) -> Report:
        """The numbers of the task. Of a read, the client knows the entries and their bytes."""
        set_aside(kind)
        done = sessions.counters(self._connection).since(self._before)
        context, caches = TaskContext.get(), cache_sizes()
        batch = None if context is None else context.getLocalProperty(BATCH_ID_PROPERTY)
        return Report(
            batch_id=int(batch) if batch is not None and batch.isdigit() else -1,
            kind=kind,
            rows=rows,
            entries=done.entries_read if kind == "read" else entries,
            size_bytes=done.bytes_read if kind == "read" else size_bytes,
            seconds=time.monotonic() - self._began,
            requests=done.read_requests,
            failovers=done.read_failovers,
            speculative_reads=done.speculative_reads,
            ensemble_changes=done.ensemble_changes,
            cache_bytes=sum(each.size_bytes for each in caches),
            cache_bytes_max=sum(each.bytes_max for each in caches),
        )


def send_from_task(report: Report) -> None:
    """Tell the listener of the streaming query whose task runs here."""
    context = TaskContext.get()
    run_id = None if context is None else context.getLocalProperty(RUN_ID_PROPERTY)
    if run_id and report.batch_id >= 0:
        send(run_id, report)


def log_task(subject: str, where: str, report: Report, *, to_stderr: bool) -> None:
    """The line on a task. Counts that are 0 when all is well are said only when they are not."""
    context = TaskContext.get()
    task = "" if context is None else f" task {context.partitionId()}.{context.attemptNumber()}"
    batch = f" batch {report.batch_id}" if report.batch_id >= 0 else ""
    verb = "read" if report.kind == "read" else "wrote"
    words = [
        f"{subject}:{batch}{task} {verb} {report.rows} rows, {report.entries} entries, "
        f"{report.size_bytes} bytes in {report.seconds:.2f} s{where}"
    ]
    words += [
        f"{count} {name}"
        for count, name in (
            (report.requests, "requests"),
            (report.failovers, "failovers (a replica failed: see ledger bookies list)"),
            (report.speculative_reads, "speculative reads (see speculativeReadDelay)"),
            (report.ensemble_changes, "ensemble changes"),
        )
        if count
    ]
    line = ", ".join(words)
    logger.info("%s", line)
    if to_stderr:
        print(line, file=sys.stderr, flush=True)
