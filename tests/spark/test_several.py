"""Several streams in one query: a pattern that new streams join, and a column that routes rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_ledger.spark import progress
from tests.spark.conftest import Lab

Until = Callable[[Callable[[], bool], str], None]


def test_pattern_is_followed_over_new_streams_and_a_restart(lab: Lab, until: Until) -> None:
    first, second = (lab.another() for _ in range(2))
    prefix = f"{lab.name}-"
    first.name, second.name = f"{prefix}a", f"{prefix}b"
    first.numbers(0, 3)
    pattern = {"stream": None, "streamPattern": f"{prefix}.*", "includeMetadata": True}
    rows: dict[str, list[int]] = {}

    def keep(batch: Any, number: int) -> None:
        for row in batch.collect():
            rows.setdefault(row["_ledger"]["stream"], []).append(row["id"])

    def start(**trigger: Any) -> Any:
        writer = lab.follow(**pattern).writeStream.foreachBatch(keep)
        return writer.option("checkpointLocation", lab.checkpoint).trigger(**trigger).start()

    query = start(processingTime="0 seconds")
    try:
        until(lambda: rows.get(first.name) == [0, 1, 2], "the rows that were there")
        second.numbers(10, 13)
        until(lambda: rows.get(second.name) == [10, 11, 12], "the rows of the new stream")
        last = progress(query)
        assert last is not None
        assert {source.name for source in last.sources} == {first.name, second.name}
    finally:
        query.stop()
    second.numbers(13, 15)
    query = start(availableNow=True)
    assert query.awaitTermination(60)
    assert rows == {first.name: [0, 1, 2], second.name: [10, 11, 12, 13, 14]}
    offset = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert offset["streams"][second.name]["segment"] == 2
    read = lab.read(**{**pattern, "streamPattern": None, "streams": f"{first.name},{second.name}"})
    assert sorted(row.id for row in read.collect()) == [0, 1, 2, 10, 11, 12, 13, 14]


def test_rows_are_routed_and_a_repeated_micro_batch_changes_nothing(lab: Lab) -> None:
    lab.numbers(0, 20, partitions=2)
    prefix = f"{lab.name}-"
    routed = lab.follow().selectExpr("id", f"concat('{prefix}', id % 2) AS topic")
    route: dict[str, Any] = {"stream": None, "routeColumn": "topic"}
    query = lab.sink(routed, **route).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    lab.numbers(20, 30)
    for made in (Path(lab.checkpoint) / "commits").glob("*0*"):
        made.unlink()  # as if the driver had ended before it noted the micro-batch
    query = lab.sink(routed, **route).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    both = {"stream": None, "streamPattern": f"{prefix}.*", "includeMetadata": True}
    rows = lab.read(**both).select("id", "_ledger.stream").collect()
    assert sorted(row.id for row in rows) == list(range(30))
    assert {(row.id % 2, row.stream) for row in rows} == {(n, f"{prefix}{n}") for n in range(2)}
    batch = lab.spark.range(30, 32).selectExpr("id", f"concat('{prefix}', id % 2) AS topic")
    lab.append(batch, **route)
    assert lab.read(**both).count() == 32
