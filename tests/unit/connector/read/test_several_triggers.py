"""Triggers of several streams: pairs of limits, ends that are fixed, rows that go meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from connector.read import commit_cache
from spark_ledger.errors import DataLossError
from spark_ledger.limits.connector import LOOKS_BESIDE_TRUNCATIONS
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


@pytest.mark.parametrize("truncations", [1, 2, LOOKS_BESIDE_TRUNCATIONS])
def test_rows_truncated_while_a_trigger_is_shared_fail_or_are_skipped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, truncations: int
) -> None:
    """Each look at the commits is overtaken by one more truncation."""
    segments = commit_cache.CommitCache.segments
    pending: list[tuple[Any, int]] = []

    def beside(self: Any, first: int, end: int) -> Any:
        if pending:
            stream, at = pending.pop(0)
            stream.retention.truncate(Dlsn(at))
        return segments(self, first, end)

    monkeypatch.setattr(commit_cache.CommitCache, "segments", beside)
    for given in ({}, {"failOnDataLoss": "false"}):
        a = cluster.create(*range(9), name="a")
        cluster.create(10, name="b")
        query = Query(maxRowsPerTrigger="10", **given)
        pending += [(a, at) for at in range(2, 2 + truncations)]
        if given:
            left = list(range(1 + truncations, 9))
            assert query.trigger() == {"a": left, "b": [10]}
        else:
            with pytest.raises(DataLossError):
                query.trigger()
            assert len(pending) == truncations - 1, "the first one is the end"
            pending.clear()
        assert not pending


@pytest.mark.parametrize(("wanted", "planned"), [(1, 1), (3, 3), (4, 6), (6, 6), (7, 9)])
def test_least_partitions_of_several_streams_are_shared_by_them_rounded_up(
    cluster: Cluster, wanted: int, planned: int
) -> None:
    for name in "abc":
        cluster.create(*range(8), name=name)
    query = Query(streamPattern="[abc]", minPartitions=str(wanted))
    end = query.reader.latestOffset(query.at, query.limit)
    assert len(query.reader.partitions(query.at, end)) == planned
    assert query.rest() == {name: list(range(8)) for name in "abc"}


def test_commit_of_the_checkpoint_of_one_stream_is_taken(cluster: Cluster) -> None:
    """Spark repeats the commit of its last micro-batch after a restart."""
    cluster.create(1, 2, name="a")
    cluster.create(10, name="b")
    single = Query(stream="a")
    assert single.trigger() == {"s": [1, 2]}
    query = Query(single.at)
    query.reader.commit(single.at)
    assert query.rest() == {"b": [10]}


def test_micro_batch_of_a_stream_that_is_deleted_has_the_rows_of_the_others(
    cluster: Cluster,
) -> None:
    """It was planned before, and is repeated after a restart."""
    cluster.create(1, 2, name="a")
    cluster.create(10, name="b")
    query = Query(failOnDataLoss="false")
    start = query.at
    assert query.trigger() == {"a": [1, 2], "b": [10]}
    cluster.outside.delete_stream("b")
    assert query.planned(start, query.at) == {"a": [1, 2]}
    with pytest.raises(DataLossError, match="stream 'b'"):
        Query(query.at, streams="a").planned(start, query.at)


def test_stream_that_joins_begins_at_the_first_row_that_it_keeps(cluster: Cluster) -> None:
    """What was dropped before it came is no loss."""
    cluster.create(1, name="s1")
    query = Query(streamPattern="s.")
    assert query.trigger() == {"s1": [1]}
    cluster.create(2, 3, 4, name="s2").retention.truncate(Dlsn(2))
    assert query.trigger() == {}
    assert query.trigger() == {"s2": [4]}


def test_rows_of_a_micro_batch_count_from_where_it_begins_in_a_stream_made_again(
    cluster: Cluster,
) -> None:
    """And not from the position in the former one."""
    cluster.create(1, 2, 3, 4, name="a")
    cluster.create(10, name="b")
    query = Query(failOnDataLoss="false", maxRowsPerTrigger="4")
    query.rest()
    cluster.create(*range(20, 26), name="a")
    assert query.trigger() == {"a": [20, 21, 22, 23]}
    newest: Any = query.reader.reportLatestOffset()
    found = [(newest["streams"][n]["batchRows"], newest["streams"][n]["rowsBehind"]) for n in "ab"]
    assert found == [(4, 2), (0, 0)]


@pytest.mark.parametrize("gone", "ab")
def test_commit_of_a_micro_batch_whose_stream_is_gone_is_taken(cluster: Cluster, gone: str) -> None:
    """Spark repeats it after a restart, and there is nothing left to forget."""
    for name in "ab":
        cluster.create(1, name=name)
    query = Query(failOnDataLoss="false")
    assert query.trigger() == {"a": [1], "b": [1]}
    cluster.outside.delete_stream(gone)
    again = Query(query.at, failOnDataLoss="false")
    again.reader.commit(again.at)
    assert again.rest() == {}
    with pytest.raises(DataLossError, match=f"stream {gone!r}, which this query reads among"):
        Query(query.at, streamPattern="[ab]").trigger()


@pytest.mark.parametrize("gone", "ab")
def test_end_of_a_stream_that_is_deleted_in_this_moment_is_left_out(
    cluster: Cluster, gone: str
) -> None:
    cluster.create(1, 2, name="a")
    cluster.create(10, name="b")
    query = Query()
    assert query.trigger() == {"a": [1, 2], "b": [10]}
    cluster.outside.delete_stream(gone)
    newest: Any = query.reader.reportLatestOffset()
    assert list(newest["streams"]) == [name for name in "ab" if name != gone]
