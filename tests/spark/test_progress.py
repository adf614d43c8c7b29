"""A running query is watched: its progress as a value, the listener's lines and numbers."""

from __future__ import annotations

from collections.abc import Callable

from spark_ledger.spark import LedgerListener, progress
from tests.spark.conftest import Lab

Until = Callable[[Callable[[], bool], str], None]


def test_query_tells_rows_lag_and_what_its_tasks_did(lab: Lab, until: Until) -> None:
    for first in range(0, 60, 10):
        lab.numbers(first, first + 10)
    target = lab.another()
    lines: list[str] = []
    listener = LedgerListener(log=lines.append)
    lab.spark.streams.addListener(listener)
    try:
        frame = lab.follow(maxRowsPerTrigger=20)
        query = target.sink(frame, stream=target.name).trigger(availableNow=True).start()
        assert query.awaitTermination(60), "the query did not end"
        until(lambda: len(lines) >= 3, "a line for each micro-batch")
        page = listener.metrics_text()
    finally:
        lab.spark.streams.removeListener(listener)
        listener.close()
    last = progress(query)
    assert last is not None
    (source,) = last.sources
    assert (source.name, source.position, source.end) == (lab.name, (6, 0, 0), (6, 0, 0))
    assert (source.rows, source.rows_behind, source.bytes_behind) == (20, 0, 0)
    assert 0.99 < sum(last.shares.values()) < 1.01
    for line, end, behind in zip(lines, (2, 4, 6), (40, 20, 0), strict=True):
        assert f"; {lab.name} at ({end}, 0, 0), {behind} rows, " in line
    assert all("; read by 1 tasks: 20 rows, 2 entries, " in line for line in lines), lines
    assert all("; write by 1 tasks: 20 rows, 1 entries, " in line for line in lines), lines
    of_query = f'query="{query.id}"'
    assert f'spark_ledger_source_rows_total{{{of_query},stream="{lab.name}"}} 60' in page
    assert f'spark_ledger_task_rows_total{{{of_query},kind="read"}} 60' in page
    assert f'spark_ledger_task_entries_total{{{of_query},kind="write"}} 3' in page
