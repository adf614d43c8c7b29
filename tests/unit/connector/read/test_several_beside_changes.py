"""SeveralSource beside streams that come and go: whom it waits for, lists, and warns of."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from connector import several
from connector.read import several_source
from spark_ledger.errors import ConfigurationError
from spark_ledger.stream.blocking import Stream, StreamConnection
from tests.unit.connector.read.test_several import Query, soon
from tests.unit.connector.world import Cluster, cluster, table

__all__ = ["cluster", "soon"]


def move(query: Query) -> None:
    """A trigger of the source process alone: planners warn too, and each is a process."""
    query.at = query.reader.latestOffset(query.at, query.limit)


class Waits:
    """What a query waited for: stream and segment of each, or nothing for a mere pause."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[list[tuple[str, int]]] = []

        def wait_for_any(
            _connection: StreamConnection, after: Iterable[tuple[Stream, int]], _timeout_s: float
        ) -> None:
            self.waits.append([(stream.name, segment) for stream, segment in after])

        monkeypatch.setattr(StreamConnection, "wait_for_any", wait_for_any)

    def watch(self, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(query.reader._source, "_sleep", lambda _s: self.waits.append([]))

    def take(self) -> list[list[tuple[str, int]]]:
        taken, self.waits = self.waits, []
        return taken


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)


def test_trigger_waits_for_news_of_each_stream_and_for_nothing_it_need_not(
    cluster: Cluster, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1, 2, name="s1")
    query = Query(streamPattern="s.", failOnDataLoss="false")
    waits.watch(query, monkeypatch)
    assert query.trigger() == {"s1": [1, 2]}
    waits.take()
    query.trigger()
    assert waits.take() == [[("s1", 2)]]
    cluster.create(3, name="s2")
    query.trigger()
    assert waits.take() == [], "a stream joins: that is the news"
    query.trigger()
    assert waits.take() == [[("s1", 2), ("s2", 0)]]
    cluster.create(4, name="s1")
    query.trigger()
    query.trigger()
    waits.take()
    query.trigger()
    assert waits.take() == [[("s1", 1), ("s2", 1)]], "the position in the new stream"
    query.reader.prepareForTriggerAvailableNow()
    query.trigger()
    assert waits.take() == [], "a run that has its end waits for nothing"


def test_trigger_without_a_stream_pauses(
    cluster: Cluster, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it asks for the list of streams without end."""
    cluster.create(1, name="s1")
    query = Query(streamPattern="s.", failOnDataLoss="false")
    move(query)
    cluster.outside.delete_stream("s1")
    move(query)
    waits.watch(query, monkeypatch)
    waits.take()
    move(query)
    assert waits.take() == [[]]


def test_position_in_a_former_stream_is_not_waited_behind(
    cluster: Cluster, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one has fewer segments, and its rows would come late."""
    cluster.create(1, 2, 3, name="a")
    cluster.create(10, name="b")
    before = Query(failOnDataLoss="false")
    assert before.trigger() == {"a": [1, 2, 3], "b": [10]}
    cluster.create(4, name="a")
    query = Query(before.at, failOnDataLoss="false")
    waits.watch(query, monkeypatch)
    waits.take()
    move(query)
    assert waits.take() == [[("b", 1)]]


def test_streams_are_listed_no_more_often_than_they_have_to_be(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_source, "STREAMS_LISTED_S", 10.0)
    cluster.create(1, name="s1")
    listed: list[float] = []
    now = [100.0]
    query = Query(streamPattern="s.")
    monkeypatch.setattr(query.reader._source, "_clock", lambda: now[0])
    monkeypatch.setattr(query.reader._source, "_listed_s", now[0])
    names = StreamConnection.stream_names

    def stream_names(self: StreamConnection) -> list[str]:
        listed.append(now[0])
        return names(self)

    monkeypatch.setattr(StreamConnection, "stream_names", stream_names)
    for at in (109.0, 110.0, 111.0, 119.0, 120.0, 121.0):
        now[0] = at
        move(query)
    assert listed == [110.0, 120.0]


@pytest.mark.parametrize("comes_later", [False, True])
def test_pattern_that_too_many_streams_fit_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, comes_later: bool
) -> None:
    monkeypatch.setattr(several, "STREAMS_PER_READ_MAX", 2)
    for name in ("s1", "s2"):
        cluster.create(1, name=name)
    query = Query(streamPattern="s.") if comes_later else None
    cluster.create(1, name="s3")
    with pytest.raises(ConfigurationError, match=r"3 streams that fit 's\.': one read takes 2"):
        (query or Query(streamPattern="s.")).trigger()


def _warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(one.levelno == logging.WARNING for one in caplog.records)


def test_stream_that_goes_is_warned_of_once_and_again_when_it_goes_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create(1, name="a")
    cluster.create(10, name="b")
    query = Query(failOnDataLoss="false")
    counts = []
    for _ in range(2):
        move(query)
        move(query)
        cluster.outside.delete_stream("b")
        for _ in range(3):
            move(query)
        counts.append(_warnings(caplog))
        cluster.create(20, name="b")
    assert counts == [1, 2]


def test_stream_that_is_left_is_warned_of_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    a = cluster.create(1, name="a")
    cluster.create(10, name="b")
    before = Query()
    before.trigger()
    cluster.create(5, name="c")
    query = Query(before.at, streams="a,c", failOnDataLoss="false")
    caplog.clear()
    for row in (2, 3):
        a.append(table(row))
        query.reader.latestOffset(before.at, query.limit)
    assert _warnings(caplog) == 1 and "stream 'b' too" in caplog.text


def test_beginning_of_several_streams_is_resolved_once(cluster: Cluster) -> None:
    """Spark may ask again: what has joined since begins behind the first micro-batch."""
    cluster.create(1, name="s1")
    query = Query(streamPattern="s.")
    cluster.create(2, name="s2")
    query.reader.latestOffset(query.at, query.limit)
    assert query.reader.initialOffset() == query.at
