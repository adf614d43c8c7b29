"""Triggers at their edges: more than one fetch, a server that lags, a limit that is not meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connector import retry
from connector.options import TriggerLimits
from connector.read import stream_source
from connector.read.planner import Backlog, shared_ends, trigger_end
from connector.read.stream_source import StreamSource
from spark_ledger.errors import ConfigurationError
from spark_ledger.stream.blocking import StreamConnection
from spark_ledger.stream.model import Head
from spark_ledger.types import Dlsn
from tests.unit.connector.fakes import FakeStream, make_segment
from tests.unit.connector.read.test_several import Query, soon
from tests.unit.connector.read.test_stream_source import drain, offset, planned, source
from tests.unit.connector.world import Clock, Cluster, cluster, table

__all__ = ["cluster", "soon"]


@pytest.mark.parametrize("start", [0, 3, 4])
def test_trigger_takes_more_segments_than_are_fetched_at_once(
    monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    monkeypatch.setattr(stream_source, "SEGMENTS_PER_FETCH", 4)
    made = FakeStream()
    for _ in range(30):
        made.grow((1,))
    reader = source(made, maxRowsPerTrigger="11")
    ends = list(range(start + 11, 30, 11))
    assert drain(reader, offset(start)) == [offset(end) for end in (*ends, 30)]
    assert made.fetches[:3] == [(at, at + 4) for at in range(start, start + 12, 4)]


@pytest.mark.parametrize(
    ("look", "found"),
    [
        (lambda reader: sum(len(p.plan.ranges) for p in planned(reader, offset(1), offset(4))), 3),
        (lambda reader: reader.latest_offset(offset(4), unlimited=False), offset(4)),
        (lambda reader: reader.backlog(offset(4)).end, Dlsn(4)),
    ],
)
def test_position_that_a_lagging_server_does_not_know_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, look: Callable[[StreamSource], object], found: object
) -> None:
    """After a restart another metadata server may answer. That it has the position from which a
    micro-batch is read says nothing of where it ends."""
    clock, made = Clock(), FakeStream()
    made.grow((1,), (1,))
    behind = made.head()
    made.grow((1,), (1,))
    ahead = made.head()

    def head() -> Head:
        return ahead if len(clock.pauses) > 2 else behind

    monkeypatch.setattr(made, "head", head)
    monkeypatch.setattr(retry, "time", clock)
    assert look(source(made)) == found


def test_part_of_a_limit_that_one_stream_leaves_is_shared_by_the_others() -> None:
    made = [[make_segment(0, (1,) * rows)] for rows in (30, 30, 1)]
    backlogs = [Backlog(Dlsn(0), Dlsn(1), lambda _at, one=one: one) for one in made]  # type: ignore[misc]
    ends = shared_ends(backlogs, TriggerLimits(max_rows=21))
    assert ends == [Dlsn(0, 10), Dlsn(0, 10), Dlsn(1)]


def test_rows_before_the_start_within_its_first_entry_count_for_no_limit() -> None:
    made = [make_segment(0, (3, 3, 3)), make_segment(1, (3,))]
    assert trigger_end(made, Dlsn(0, 0, 2), TriggerLimits(max_rows=10)) == Dlsn(2)
    assert trigger_end(made, Dlsn(0, 0, 2), TriggerLimits(max_rows=9)) == Dlsn(1)


@pytest.mark.parametrize(
    ("start", "end"), [(Dlsn(0), Dlsn(0, 2)), (Dlsn(0, 2), Dlsn(1)), (Dlsn(0, 2, 6), Dlsn(2))]
)
def test_bytes_of_an_entry_are_its_share_of_the_rows(start: Dlsn, end: Dlsn) -> None:
    """Those of the first segment take 30, 30 and 240; six of the last one's eight rows are read."""
    made = [make_segment(0, (1, 1, 8)), make_segment(1, (1,), 30), make_segment(2, (10,), 300)]
    assert trigger_end(made, start, TriggerLimits(max_bytes=100)) == end


def test_trigger_that_takes_all_waits_for_no_least_rows() -> None:
    made = FakeStream()
    made.grow((1, 1), (1,))
    reader = source(made, minRowsPerTrigger="100", maxRowsPerTrigger="200")
    assert reader.latest_offset(offset(0), unlimited=True) == offset(2)


def test_trigger_waits_for_what_lies_behind_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """One commit is news, however small it is."""
    made, waited = FakeStream(), list[int]()
    for _ in range(3):
        made.grow((1,))

    def wait_for_commit(*, after_segment: int, timeout_s: float) -> Head:
        waited.append(after_segment)
        return made.head()

    monkeypatch.setattr(made, "wait_for_commit", wait_for_commit)
    reader = source(made)
    for at in (0, 2, 3):
        reader.latest_offset(offset(at), unlimited=False)
    assert waited == [0, 2, 3]


def test_trigger_of_several_streams_that_takes_all_keeps_no_limit(cluster: Cluster) -> None:
    for name in "ab":
        cluster.create(*range(5), name=name)
    query = Query(maxRowsPerTrigger="2")
    end: Any = query.reader.latestOffset(query.at, ReadAllAvailable())
    assert {at["segment"] for at in end["streams"].values()} == {5}


def test_stream_of_a_pattern_that_is_deleted_while_it_is_listed_is_not_missed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1, name="s1")
    monkeypatch.setattr(StreamConnection, "stream_names", lambda _: ["s1", "s2"])
    assert Query(streamPattern="s.").rest() == {"s1": [1]}


@pytest.mark.parametrize("given", [{"stream": "a"}, {"streams": "a,b"}])
def test_delay_of_least_rows_goes_on_while_nothing_is_there(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """It counts from the last micro-batch, and not from the last look that found no row."""
    a, _ = cluster.create(1, name="a"), cluster.create(name="b")
    query = Query(minRowsPerTrigger="9", maxTriggerDelay="60s", **given)
    now = [1000.0]
    inner = query.reader._source
    for one in (inner, *getattr(inner, "_sources", {}).values()):
        monkeypatch.setattr(one, "_clock", lambda: now[0])
        monkeypatch.setattr(one, "_rows_held_since", now[0])
        monkeypatch.setattr(one, "_sleep", lambda _s: None)
    now[0] += 60
    assert query.trigger() is not None
    now[0] += 50
    assert query.trigger() is None, "nothing is there"
    a.append(table(2))
    now[0] += 10
    assert query.trigger() is not None


def test_checkpoint_of_one_stream_that_does_not_say_which_is_refused(cluster: Cluster) -> None:
    """Whichever of several was taken for it, rows of another would be left out or there twice."""
    for name in "ab":
        cluster.create(1, 2, name=name)
    with pytest.raises(ConfigurationError, match="name it too, or use a new checkpoint"):
        Query({"entry": 0, "segment": 1}).trigger()
