"""What tasks and commits tell of themselves: each number is that of its own task, and told once."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from connector import sessions, task_report
from connector.task_report import TaskWatch, log_task, send_from_task
from connector.write import routed, writers
from spark_ledger.client.caches import CacheSize
from spark_ledger.client.counters import ClientCounters
from spark_ledger.spark.reports import Report
from tests.unit.connector.world import (
    ROWS,
    Cluster,
    Task,
    cluster,
    copied,
    micro_batch,
    table,
    to_read,
    to_write,
)
from tests.unit.connector.write import test_routed

__all__ = ["cluster"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Report]]:
    """What listeners were sent: run and report. A commit takes two seconds, and nothing else."""
    found: list[tuple[str, Report]] = []
    now = [100.0]

    def slow(kind: type) -> None:
        commit = kind._commit  # type: ignore[attr-defined]

        def slowly(self: Any, *given: Any) -> None:
            commit(self, *given)
            now[0] += 2

        monkeypatch.setattr(kind, "_commit", slowly)

    for module in (writers, routed):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(module, "send", lambda run, report: found.append((run, report)))
    slow(writers.LedgerStreamWriter)
    slow(routed.RoutedStreamWriter)
    monkeypatch.setattr(task_report, "send", lambda run, report: found.append((run, report)))
    return found


def test_commit_of_a_micro_batch_tells_what_its_tasks_wrote_and_how_long_it_took(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, Report]]
) -> None:
    cluster.create()
    monkeypatch.setattr(task_report, "TaskContext", Task(batch=3, run="run"))
    micro_batch(monkeypatch, 3, 1, 2, run="run")
    ((run, report),) = told
    assert (run, report.kind, report.batch_id, report.tasks) == ("run", "write", 3, 1)
    assert (report.rows, report.entries, report.commit_seconds) == (2, 1, 2.0)
    assert report.size_bytes > 16


def test_commit_to_several_streams_tells_what_all_tasks_wrote_to_all_of_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, Report]]
) -> None:
    monkeypatch.setattr(task_report, "TaskContext", Task(batch=4, run="run"))
    test_routed.micro_batch(monkeypatch, 4, [("x", 1), ("y", 2)], [("x", 3)], run="run")
    ((run, report),) = told
    assert (run, report.batch_id, report.tasks, report.rows) == ("run", 4, 2, 3)
    assert (report.entries, report.commit_seconds) == (3, 2.0)


@pytest.mark.parametrize("route", [False, True])
def test_task_that_writes_tells_all_entries_and_bytes_of_its_segments(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, Report]], route: bool
) -> None:
    monkeypatch.setattr(task_report, "TaskContext", Task(run="run"))
    small = {"entryBytes": "1024"}
    if route:
        rows = [(name, row) for name in "xy" for row in range(1000)]
        test_routed.micro_batch(monkeypatch, 0, rows, run="run", **small)
    else:
        monkeypatch.setattr(writers, "TaskContext", Task(run="run"))
        writer = writers.LedgerStreamWriter(to_write(True, **small), ROWS, overwrite=False)
        message = copied(writer).write(iter(table(*range(2000)).to_batches()))
        copied(writer).commit([message], 0)
    ((_, report),) = told
    written = [cluster.stream(name).commit(0) for name in ("xy" if route else "s")]
    segments = [segment for commit in written for segment in commit.segments]
    assert len(segments) == len(written) and report.rows == 2000
    assert report.entries == sum(each.entries for each in segments) > 5 * len(segments)
    assert report.size_bytes == sum(each.size_bytes for each in segments)


BEFORE = ClientCounters(*range(100, 108))
AFTER = ClientCounters(*[number + 10**place for place, number in enumerate(range(100, 108))])


@pytest.mark.parametrize(
    ("kind", "entries", "size_bytes"), [("read", 1000, 10_000), ("write", 5, 6)]
)
def test_report_has_what_was_done_since_its_task_began(
    monkeypatch: pytest.MonkeyPatch, kind: str, entries: int, size_bytes: int
) -> None:
    """The client of a process has worked for other tasks before."""
    counters = iter([BEFORE, AFTER])
    monkeypatch.setattr(sessions, "counters", lambda _options: next(counters))
    monkeypatch.setattr(task_report, "TaskContext", Task(batch=7))
    caches = [CacheSize("one", 1, 3, 30), CacheSize("two", 2, 4, 40)]
    monkeypatch.setattr(task_report, "cache_sizes", lambda: caches)
    clock = iter([100.0, 102.5])
    monkeypatch.setattr(task_report, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    watch = TaskWatch(to_read().connection)
    report = watch.report(kind, rows=4, entries=5, size_bytes=6)  # type: ignore[arg-type]
    assert (report.batch_id, report.kind, report.rows, report.seconds) == (7, kind, 4, 2.5)
    assert (report.entries, report.size_bytes) == (entries, size_bytes)
    assert (report.requests, report.failovers, report.speculative_reads) == (1, 10, 100)
    assert report.ensemble_changes == 100_000
    assert (report.cache_bytes, report.cache_bytes_max) == (7, 70)


@pytest.mark.parametrize(
    ("batch", "is_told"), [("7", True), ("0", True), (None, False), ("", False)]
)
def test_task_of_no_micro_batch_tells_no_listener(
    monkeypatch: pytest.MonkeyPatch,
    told: list[tuple[str, Report]],
    batch: str | None,
    is_told: bool,
) -> None:
    """A job of a batch read may have a group of that name too."""
    given = {task_report.BATCH_ID_PROPERTY: batch, task_report.RUN_ID_PROPERTY: "run"}
    context = SimpleNamespace(getLocalProperty=given.get)
    monkeypatch.setattr(task_report, "TaskContext", SimpleNamespace(get=lambda: context))
    send_from_task(TaskWatch(to_read().connection).report("read", rows=1))
    assert len(told) == is_told


def test_line_on_a_task_names_what_went_wrong_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_report, "TaskContext", Task(2, attempt=1))
    well = Report(batch_id=7, kind="read", rows=3, entries=2, size_bytes=1, seconds=0.5)
    ill = Report(batch_id=-1, kind="write", failovers=4, speculative_reads=5, ensemble_changes=6)
    with caplog.at_level(logging.INFO):
        log_task("stream 's'", " here", well, to_stderr=False)
        assert capsys.readouterr().err == ""
        log_task("stream 's'", "", ill, to_stderr=True)
    first, second = [one.getMessage() for one in caplog.records]
    assert first == ("stream 's': batch 7 task 2.1 read 3 rows, 2 entries, 1 bytes in 0.50 s here")
    assert second.startswith("stream 's': task 2.1 wrote 0 rows")
    assert "4 failovers" in second and "5 speculative reads" in second
    assert second.endswith("6 ensemble changes")
    assert capsys.readouterr().err == second + "\n"
    caplog.clear()
    with caplog.at_level(logging.INFO):
        log_task("stream 's'", "", well.__replace__(batch_id=0), to_stderr=False)
    assert caplog.records[0].getMessage().startswith("stream 's': batch 0 task 2.1 read")
