"""LedgerListener: logs a line for each micro-batch, and keeps the numbers for Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_ledger.spark.metrics import MetricsServer, QueryMetrics
from spark_ledger.spark.progress import QueryProgress, SourceProgress, progress_of
from spark_ledger.spark.reports import Inbox, Kind, Report

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger("spark_ledger.spark")


class LedgerListener(StreamingQueryListener):
    """Watches all streaming queries of a session: ``spark.streams.addListener(LedgerListener())``.

    ``log`` gets a line for each micro-batch that read a stream or wrote to one; by default the
    logger ``spark_ledger.spark`` gets it at level INFO. With ``port`` the numbers are served to
    Prometheus at ``http://host:port/metrics`` too; 0 takes a free port, see ``port``. ``close``
    stops that; to be told no more, remove the listener from the session.

    Raises ConfigurationError if the port cannot be had.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        log: Callable[[str], object] = logger.info,
    ) -> None:
        super().__init__()
        self._log = log
        self._inboxes: dict[str, Inbox] = {}
        self._metrics = QueryMetrics()
        self._server = None if port is None else MetricsServer(self._metrics, host, port)

    @property
    def port(self) -> int | None:
        """The port at which Prometheus finds the numbers, or None."""
        return None if self._server is None else self._server.port

    def metrics_text(self) -> str:
        """The numbers as Prometheus reads them; also without a port."""
        return self._metrics.text()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Open a socket for the reports of its tasks; the query runs once this has returned."""
        run_id = str(event.runId)
        self._inboxes[run_id] = Inbox(run_id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Log a micro-batch, and keep its numbers."""
        progress = progress_of(event.progress)
        inbox = self._inboxes.get(progress.run_id)
        reports = {} if inbox is None else inbox.take(progress.batch_id)
        if not progress.sources and not reports:
            return
        self._metrics.observe(progress, reports)
        self._log(batch_line(progress, reports))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing happened: the last values stay."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Close the socket of the run."""
        inbox = self._inboxes.pop(str(event.runId), None)
        if inbox is not None:
            inbox.close()

    def close(self) -> None:
        """Stop serving, and close the sockets. A second call is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        while self._inboxes:
            self._inboxes.popitem()[1].close()


def batch_line(progress: QueryProgress, reports: Mapping[Kind, Report]) -> str:
    """One line on a micro-batch: how long, how far behind, what the tasks did."""
    shares = ", ".join(f"{part} {share:.0%}" for part, share in progress.shares.items())
    parts = [
        f"query {progress.name or progress.query_id} batch {progress.batch_id}: "
        f"{progress.input_rows} rows in {progress.seconds:.2f} s" + (f" ({shares})" * bool(shares)),
        *map(_source_words, progress.sources),
        *(_task_words(reports[kind]) for kind in sorted(reports)),
    ]
    return "; ".join(parts)


def _source_words(source: SourceProgress) -> str:
    words = [f"{source.name} at {tuple(source.position)}"]
    if source.rows_behind is not None:
        words.append(f"{source.rows_behind} rows")
    if source.bytes_behind is not None:
        words.append(f"{source.bytes_behind} bytes")
    if source.seconds_behind is not None:
        words.append(f"{source.seconds_behind:.1f} s")
    return ", ".join(words) + " behind" * (len(words) > 1)


def _task_words(report: Report) -> str:
    """Counts that are 0 when all is well are said only when they are not."""
    words = [
        f"{report.kind} by {report.tasks} tasks: {report.rows} rows, {report.entries} entries, "
        f"{report.size_bytes} bytes in {report.seconds:.2f} s"
    ]
    if report.kind == "read":
        words.append(f"{report.requests} requests")
    else:
        words.append(f"commit {report.commit_seconds:.3f} s")
    for count, name in (
        (report.failovers, "failovers"),
        (report.speculative_reads, "speculative reads"),
        (report.ensemble_changes, "ensemble changes"),
    ):
        if count:
            words.append(f"{count} {name}")
    return ", ".join(words)
