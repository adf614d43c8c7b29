"""Several streams in one query: a pattern that new streams join, and a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
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
