"""Triggers of several streams: pairs of limits, ends that are fixed, rows that go meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from connector.read import stream_source
from spark_ledger.errors import DataLossError
from spark_ledger.types import Dlsn
from tests.unit.connector.read.test_several import Query, soon
from tests.unit.connector.world import Cluster, cluster, table

__all__ = ["cluster", "soon"]


def test_delay_of_least_rows_counts_from_the_last_micro_batch_of_all(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = cluster.create(name="a"), cluster.create(name="b")
    query = Query(minRowsPerTrigger="3", maxTriggerDelay="60s")
    now, slept = [1000.0], list[float]()
    source = query.reader._source
    for name, value in {
        "_clock": lambda: now[0],
        "_sleep": slept.append,
        "_rows_held_since": now[0],
    }.items():
        monkeypatch.setattr(source, name, value)
    for row, (name, stream) in enumerate(2 * [("a", a), ("b", b)]):
        stream.append(table(row))
        now[0] += 59
        assert query.trigger() is None, "not yet"
        now[0] += 1
        assert query.trigger() == {name: [row]}, "sixty seconds are over"
    a.append(table(7))
    now[0] += 60 - 1 / 4096
    assert query.trigger() is None
    assert slept[-1] == 1 / 4096, "until the delay is over"


@pytest.mark.parametrize("given", [{}, {"maxRowsPerTrigger": "2"}])
def test_available_now_of_several_streams_waits_for_no_least_rows(
    cluster: Cluster, given: dict[str, str]
) -> None:
    cluster.create(1, 2, name="a")
    cluster.create(10, name="b")
    query = Query(minRowsPerTrigger="100" if not given else "2", maxTriggerDelay="1h", **given)
    query.reader.prepareForTriggerAvailableNow()
    assert query.rest() == {"a": [1, 2], "b": [10]}


def test_rows_truncated_while_a_trigger_is_shared_fail_or_are_skipped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = stream_source.CommitCache.segments
    pending: list[Any] = []

    def beside(self: Any, first: int, end: int) -> Any:
        while pending:
            pending.pop().retention.truncate(Dlsn(2))
        return segments(self, first, end)

    monkeypatch.setattr(stream_source.CommitCache, "segments", beside)
    for given in ({}, {"failOnDataLoss": "false"}):
        a = cluster.create(1, 2, 3, name="a")
        cluster.create(10, name="b")
        query = Query(maxRowsPerTrigger="10", **given)
        pending.append(a)
        if given:
            assert query.trigger() == {"a": [3], "b": [10]}
        else:
            with pytest.raises(DataLossError):
                query.trigger()
        assert not pending


def test_commit_of_the_checkpoint_of_one_stream_is_taken(cluster: Cluster) -> None:
    """Spark repeats the commit of its last micro-batch after a restart."""
    cluster.create(1, 2, name="a")
    cluster.create(10, name="b")
    single = Query(stream="a")
    assert single.trigger() == {"s": [1, 2]}
    query = Query(single.at)
    query.reader.commit(single.at)
    assert query.rest() == {"b": [10]}


def test_end_of_a_stream_that_is_deleted_in_this_moment_is_left_out(cluster: Cluster) -> None:
    cluster.create(1, 2, name="a")
    cluster.create(10, name="b")
    query = Query()
    assert query.trigger() == {"a": [1, 2], "b": [10]}
    cluster.outside.delete_stream("b")
    newest = query.reader.reportLatestOffset()
    assert newest is not None and list(newest["streams"]) == ["a"]  # type: ignore[arg-type]
