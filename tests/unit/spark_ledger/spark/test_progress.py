"""``progress``: what Spark's JSON says, as values."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.spark import SourceProgress, progress
from spark_ledger.spark.progress import progress_of, time_shares
from spark_ledger.types import Dlsn

END = {"entry": 0, "segment": 12, "stream": "1f"}
NEWEST = {**END, "segment": 14, "name": "clicks"}
LAG = {"rowsBehind": 70, "bytesBehind": 900, "millisBehind": 1500}


def reported(*sources: dict[str, Any], **changes: Any) -> Any:
    values = {
        "id": "q1",
        "runId": "r1",
        "name": "copy",
        "batchId": 7,
        "timestamp": "2026-01-31T12:00:00.000Z",
        "numInputRows": 25,
        "durationMs": {
            "triggerExecution": 200,
            "addBatch": 120,
            "latestOffset": 20,
            "walCommit": 40,
        },
        "sources": list(sources),
        **changes,
    }
    return SimpleNamespace(json=json.dumps(values))


def stream(**changes: Any) -> dict[str, Any]:
    return {
        "startOffset": json.dumps({**END, "segment": 11}),
        "endOffset": json.dumps(END),
        "latestOffset": json.dumps({**NEWEST, **LAG}),
        "numInputRows": 25,
        **changes,
    }


def test_progress_before_the_first_micro_batch_is_none() -> None:
    assert progress(SimpleNamespace(lastProgress=None)) is None


def test_progress_of_a_query_over_a_stream_and_another_source() -> None:
    values = reported(stream(), {"endOffset": "25", "latestOffset": "31", "numInputRows": 6})
    found = progress(SimpleNamespace(lastProgress=values))
    assert found is not None
    assert (found.query_id, found.run_id, found.name, found.batch_id) == ("q1", "r1", "copy", 7)
    assert (found.seconds, found.input_rows) == (0.2, 25)
    assert found.shares == pytest.approx(
        {"planning": 0.1, "rows": 0.6, "checkpoint": 0.2, "other": 0.1}
    )
    assert found.sources == (SourceProgress("clicks", Dlsn(12), Dlsn(14), 25, 70, 900, 1.5),)


def test_progress_after_a_restart_does_not_know_the_lag() -> None:
    (found,) = progress_of(reported(stream(latestOffset=None))).sources
    assert found == SourceProgress("stream id 1f", Dlsn(12), Dlsn(12), 25, None, None, None)


def test_progress_of_several_streams_has_the_rows_of_each() -> None:
    end = {"streams": {"a": END, "b": {**END, "segment": 3}, "c": END}}
    newest = {
        "streams": {
            "a": {**NEWEST, **LAG, "name": "a", "batchRows": 20},
            "b": {**END, "segment": 3, "name": "b", "rowsBehind": 0, "batchRows": 5},
        }
    }
    source = stream(endOffset=json.dumps(end), latestOffset=json.dumps(newest))
    assert progress_of(reported(source)).sources == (
        SourceProgress("a", Dlsn(12), Dlsn(14), 20, 70, 900, 1.5),
        SourceProgress("b", Dlsn(3), Dlsn(3), 5, 0, None, None),
        SourceProgress("c", Dlsn(12), Dlsn(12), 0, None, None, None),
    )


def test_progress_of_a_raw_ledger_counts_entries() -> None:
    end = {"entry": 8, "ledger": 7}
    newest = {"entry": 10, "ledger": 7, "rowsBehind": 2}
    (found,) = progress_of(
        reported(stream(endOffset=json.dumps(end), latestOffset=json.dumps(newest)))
    ).sources
    assert found == SourceProgress("ledger 7", Dlsn(0, 8), Dlsn(0, 10), 25, 2, None, None)


@pytest.mark.parametrize(
    "end", [None, "", "no json", "7", "[]", '{"topic": {"0": 3}}', '{"entry": "3"}', '{"entry": 3}']
)
def test_progress_of_other_sources_is_left_out(end: str | None) -> None:
    assert progress_of(reported(stream(endOffset=end, latestOffset=end))).sources == ()


def test_time_shares_sum_up_to_1_even_if_the_parts_took_longer() -> None:
    assert time_shares({}, 0) == {}
    assert time_shares({"addBatch": 30, "walCommit": 10}, 20) == {
        "planning": 0.0,
        "rows": 0.75,
        "checkpoint": 0.25,
        "other": 0.0,
    }
