"""The numbers of all queries of a listener, and the page on which Prometheus finds them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.spark import METRICS_QUERIES_MAX
from spark_ledger.spark.progress import QueryProgress
from spark_ledger.spark.reports import Kind, Report


class Metric(NamedTuple):
    """What is served under a name. ``kind`` is Prometheus' ``counter`` or ``gauge``."""

    kind: str
    help: str


METRICS: Final = {
    "spark_ledger_query_batch": Metric("gauge", "the number of the last micro-batch"),
    "spark_ledger_query_input_rows_total": Metric("counter", "rows read, from all sources"),
    "spark_ledger_query_batch_seconds": Metric("gauge", "how long the last micro-batch took"),
    "spark_ledger_query_seconds_total": Metric(
        "counter", "seconds spent, by part: planning, rows, checkpoint, other"
    ),
    "spark_ledger_source_rows_total": Metric("counter", "rows read of a stream"),
    "spark_ledger_source_behind_rows": Metric("gauge", "rows committed and not read yet"),
    "spark_ledger_source_behind_bytes": Metric("gauge", "their bytes, as stored"),
    "spark_ledger_source_behind_seconds": Metric("gauge", "how long the oldest of them waits"),
    "spark_ledger_tasks_total": Metric("counter", "tasks that reported, by kind: read, write"),
    "spark_ledger_task_rows_total": Metric("counter", "their rows"),
    "spark_ledger_task_entries_total": Metric("counter", "their entries"),
    "spark_ledger_task_bytes_total": Metric("counter", "the bytes of these entries, as stored"),
    "spark_ledger_task_seconds_total": Metric("counter", "how long the tasks took, together"),
    "spark_ledger_read_requests_total": Metric("counter", "requests to replicas"),
    "spark_ledger_read_failovers_total": Metric("counter", "requests after a replica failed"),
    "spark_ledger_speculative_reads_total": Metric(
        "counter", "requests because a replica was slow"
    ),
    "spark_ledger_ensemble_changes_total": Metric("counter", "failed bookies that were replaced"),
    "spark_ledger_commit_seconds_total": Metric("counter", "how long the commits took"),
    "spark_ledger_task_cache_bytes": Metric(
        "gauge", "what the caches of a worker hold, of the one that holds most"
    ),
    "spark_ledger_task_cache_bytes_max": Metric("gauge", "what its caches may hold at most"),
}

_OF_TASKS: Final = {
    "spark_ledger_tasks_total": "tasks",
    "spark_ledger_task_rows_total": "rows",
    "spark_ledger_task_entries_total": "entries",
    "spark_ledger_task_bytes_total": "size_bytes",
    "spark_ledger_task_seconds_total": "seconds",
    "spark_ledger_read_requests_total": "requests",
    "spark_ledger_read_failovers_total": "failovers",
    "spark_ledger_speculative_reads_total": "speculative_reads",
    "spark_ledger_ensemble_changes_total": "ensemble_changes",
    "spark_ledger_commit_seconds_total": "commit_seconds",
    "spark_ledger_task_cache_bytes": "cache_bytes",
    "spark_ledger_task_cache_bytes_max": "cache_bytes_max",
}

_Series = tuple[str, tuple[tuple[str, str], ...]]


class QueryMetrics:
    """The newest values by query. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, dict[_Series, float]] = {}
        """By the query's id, which a restart keeps; the one that was seen last is the last one."""

    def observe(self, progress: QueryProgress, reports: Mapping[Kind, Report]) -> None:
        """Take in a micro-batch."""
        with self._lock:
            values = self._queries.pop(progress.query_id, {})
            self._queries[progress.query_id] = values
            while len(self._queries) > METRICS_QUERIES_MAX:
                del self._queries[next(iter(self._queries))]
            reads = {source.name for source in progress.sources}
            if all(source.is_named for source in progress.sources):  # else it may be one of them
                for series in [each for each in values if _is_left_behind(each, reads)]:
                    del values[series]
            for name, labels, value in _values(progress, reports):
                key = (name, tuple({"query": _label(progress), **labels}.items()))
                is_sum = METRICS[name].kind == "counter"
                values[key] = value + (values.get(key, 0.0) if is_sum else 0.0)

    def text(self) -> str:
        """The page, in Prometheus' text format."""
        with self._lock:
            series = [item for values in self._queries.values() for item in values.items()]
        lines = []
        for name, metric in METRICS.items():
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
            for (of, labels), value in series:
                if of == name:
                    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
                    lines.append(f"{name}{{{shown}}} {value:.15g}")
        return "\n".join([*lines, ""])


def _is_left_behind(series: _Series, reads: set[str]) -> bool:
    """Whether it is the gauge of a stream that is none of those that the query reads."""
    name, labels = series
    stream = dict(labels).get("stream")
    return stream is not None and stream not in reads and METRICS[name].kind == "gauge"


def _values(
    progress: QueryProgress, reports: Mapping[Kind, Report]
) -> Iterator[tuple[str, dict[str, str], float]]:
    yield "spark_ledger_query_batch", {}, progress.batch_id
    yield "spark_ledger_query_input_rows_total", {}, progress.input_rows
    yield "spark_ledger_query_batch_seconds", {}, progress.seconds
    for part, share in progress.shares.items():
        yield "spark_ledger_query_seconds_total", {"part": part}, share * progress.seconds
    for source in progress.sources:
        of = {"stream": source.name}
        yield "spark_ledger_source_rows_total", of, source.rows
        if source.rows_behind is not None:
            yield "spark_ledger_source_behind_rows", of, source.rows_behind
        if source.bytes_behind is not None:
            yield "spark_ledger_source_behind_bytes", of, source.bytes_behind
        if source.seconds_behind is not None:
            yield "spark_ledger_source_behind_seconds", of, source.seconds_behind
    for kind, report in reports.items():
        for name, attribute in _OF_TASKS.items():
            yield name, {"kind": kind}, getattr(report, attribute)


def _label(progress: QueryProgress) -> str:
    return progress.name or progress.query_id


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsServer:
    """Serves the page at ``/metrics``, in a thread of its own."""

    def __init__(self, metrics: QueryMetrics, host: str, port: int) -> None:
        class Page(BaseHTTPRequestHandler):
            """Answers with the page."""

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "the numbers are at /metrics")
                    return
                body = metrics.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing of each visit."""

        try:
            self._server = ThreadingHTTPServer((host, port), Page)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"LedgerListener cannot serve metrics at {host}:{port} ({error}): give another "
                "port, 0 for any that is free, or none"
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        """The port that it listens on."""
        threading.Thread(
            target=self._server.serve_forever, name="ledger-metrics", daemon=True
        ).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
