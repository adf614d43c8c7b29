"""What a trigger finds new: rows that come while it waits, and none behind a store of before."""

from __future__ import annotations

import time
from typing import Any

import pytest

from connector.read.stream_source import StreamSource
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.connector import METADATA_LAG_S
from spark_ledger.stream.blocking import StreamConnection
from spark_ledger.stream.model import Head
from tests.unit.connector.fakes import FakeStream
from tests.unit.connector.read.test_ledger_source import Clock, Ledger, offset, source
from tests.unit.connector.read.test_several import Query, soon
from tests.unit.connector.world import Cluster, cluster, table, to_read

__all__ = ["cluster", "soon"]


@pytest.mark.parametrize("ahead", ["a", "b"])
def test_checkpoint_ahead_of_one_of_several_streams_is_refused_and_not_waited_for(
    cluster: Cluster, ahead: str
) -> None:
    """The metadata are of a backup: the query would stand still, and later pass rows over."""
    cluster.create(1, 2, name="a")
    cluster.create(3, 4, name="b")
    query = Query()
    assert query.rest() == {"a": [1, 2], "b": [3, 4]}
    reached: Any = query.at
    ends: dict[str, Any] = reached["streams"]
    for segments, is_refused in ((2, False), (3, True)):
        at = {"streams": {**ends, ahead: {**ends[ahead], "segment": segments}}}
        restarted = Query(at, failOnDataLoss="false")
        if not is_refused:
            assert restarted.trigger() is None
            continue
        with pytest.raises(ConfigurationError, match=f"'{ahead}'.*lies behind the end.*older one"):
            restarted.trigger()
        assert 0 < sum(cluster.clock.pauses) <= METADATA_LAG_S, "a server may only lag"


@pytest.mark.parametrize("limit", ["", "1"])
def test_entries_that_come_while_a_trigger_waits_are_taken_by_it(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Else each row waits for one trigger more than it has to."""
    ledger, pauses = Ledger(1, 1), []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        ledger.sizes += [1, 1]

    monkeypatch.setattr(time, "sleep", sleep)
    options: dict[str, Any] = {"maxRowsPerTrigger": limit} if limit else {}
    reader = source(ledger, Clock(), **options)
    assert reader.latest_offset(offset(2), unlimited=False) == offset(3 if limit else 4)
    assert len(pauses) == 1
    assert reader.latest_offset(offset(3), unlimited=False) == offset(4)
    assert len(pauses) == 1, "something is there: no wait"


@pytest.mark.parametrize("limits", [{}, {"maxRowsPerTrigger": "2"}, {"minRowsPerTrigger": "3"}])
def test_rows_that_are_committed_while_a_trigger_waits_are_taken_by_it(
    limits: dict[str, str],
) -> None:
    """What is known of the stream is of after the wait."""

    class Growing(FakeStream):
        def wait_for_commit(self, *, after_segment: int, timeout_s: float) -> Head:
            if self.waits == 1:
                self.grow((1,), (1,), (1,))
            return super().wait_for_commit(after_segment=after_segment, timeout_s=timeout_s)

    stream = Growing()
    stream.grow((1,))
    reader = StreamSource(to_read(**limits), stream)  # type: ignore[arg-type]
    start = reader.initial_offset()
    if not limits.get("minRowsPerTrigger"):
        end = reader.latest_offset(start, unlimited=False)
        assert end["segment"] == 1
    else:
        stream.waits, end = 1, start
    taken = reader.latest_offset(end, unlimited=False)["segment"]
    assert taken == (3 if "maxRowsPerTrigger" in limits else 4)


@pytest.mark.parametrize("grown", ["a", "b"])
def test_rows_that_come_to_one_of_several_streams_in_the_wait_are_taken_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, grown: str
) -> None:
    streams = {name: cluster.create(1, name=name) for name in "ab"}
    query = Query()
    assert query.rest() == {"a": [1], "b": [1]}
    waits: list[float] = []

    def wait_for_any(_connection: StreamConnection, _after: Any, timeout_s: float) -> None:
        waits.append(timeout_s)
        streams[grown].append(table(2))

    monkeypatch.setattr(StreamConnection, "wait_for_any", wait_for_any)
    assert query.trigger() == {grown: [2]}
    assert len(waits) == 1


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_lag_of_the_other_streams_is_told_while_one_goes(cluster: Cluster, gone: str) -> None:
    """Whichever of them it is: the query's progress has the ends of those that are there."""
    streams = {name: cluster.create(1, name=name) for name in "abc"}
    query = Query(streams="a,b,c", failOnDataLoss="false")
    query.reader.latestOffset(query.at, query.limit)
    for stream in streams.values():
        stream.append(table(2))
    cluster.outside.delete_stream(gone)
    newest: Any = query.reader.reportLatestOffset()
    assert set(newest["streams"]) == set("abc") - {gone}
    assert {each["rowsBehind"] for each in newest["streams"].values()} == {1}
