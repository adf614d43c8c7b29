"""The lag of a query: rows, bytes and seconds between where it is and the end."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest

from connector.option_parsers import PositionJson, parse_position
from connector.read import stream_source
from connector.read.lag import Lag, stream_lag
from connector.read.offsets import OffsetJson
from connector.read.stream_source import StreamSource
from spark_ledger.types import Dlsn
from tests.unit.connector.fakes import FakeStream
from tests.unit.connector.read.test_stream_source import offset, source


@pytest.fixture
def stream() -> FakeStream:
    made = FakeStream()
    made.grow((3, 3, 3), time_ms=1000)  # 9 rows, 300 bytes
    made.grow((3, 3), (5,), time_ms=2000)  # 11 rows, 300 bytes
    return made


@pytest.mark.parametrize(
    ("position", "lag"),
    [
        (Dlsn(0), Lag(20, 600, 4000)),
        (Dlsn(0, 1), Lag(17, 500, 4000)),
        (Dlsn(0, 1, 2), Lag(15, 400, 4000)),
        (Dlsn(1), Lag(11, 300, 3000)),
        (Dlsn(1, 1), Lag(8, 200, 3000)),
        (Dlsn(2), Lag(5, 100, 3000)),
    ],
)
def test_stream_lag_counts_what_lies_behind_the_position(
    stream: FakeStream, position: Dlsn, lag: Lag
) -> None:
    (commit,) = stream.commits_between(position.segment, position.segment + 1)
    assert stream_lag(stream.head(), position, commit, now_ms=5000) == lag


def test_stream_lag_with_a_clock_behind_the_writers_is_not_negative(stream: FakeStream) -> None:
    (commit,) = stream.commits_between(0, 1)
    assert stream_lag(stream.head(), Dlsn(0), commit, now_ms=10).milliseconds == 0


def report(reader: StreamSource) -> OffsetJson:
    newest = reader.newest_offset()
    assert newest is not None
    return newest


def test_newest_offset_says_what_waits_behind_the_planned_micro_batch(stream: FakeStream) -> None:
    reader = source(stream, maxRowsPerTrigger="9")
    assert report(reader) == offset(3), "nothing was planned yet"
    reader.latest_offset(offset(0), unlimited=False)
    newest = report(reader)
    assert (newest["name"], newest["rowsBehind"], newest["bytesBehind"]) == ("s", 11, 300)
    assert newest["millisBehind"] != 0
    reader.latest_offset(offset(1), unlimited=False)
    reader.latest_offset(offset(2), unlimited=False)
    newest = report(reader)
    assert newest == {
        **offset(3),
        "name": "s",
        "rowsBehind": 0,
        "bytesBehind": 0,
        "millisBehind": 0,
    }


def test_newest_offset_counts_the_rows_of_the_newest_micro_batch(stream: FakeStream) -> None:
    """Where several streams are read, Spark counts the rows of all of them together."""
    reader = source(stream)
    reader.pin_target()
    ends = [Dlsn(0), Dlsn(0, 1), Dlsn(1, 1), Dlsn(1, 1), Dlsn(3)]
    found = []
    for start, end in pairwise(ends):
        reader.ended_at(offset(start.segment, start.entry), start, end)
        newest = report(reader)
        found.append((newest["batchRows"], newest["rowsBehind"]))
    assert found == [(3, 17), (9, 8), (0, 8), (8, 0)]


def test_newest_offset_reads_no_commit_that_the_trigger_has_not_read() -> None:
    """Spark asks after each micro-batch, also of a query that is a day behind."""
    stream = FakeStream()
    for _ in range(3000):
        stream.grow((1,))
    reader = source(stream, maxRowsPerTrigger="9")
    reader.latest_offset(offset(0), unlimited=False)
    fetched = len(stream.fetches)
    assert report(reader)["rowsBehind"] == 2991
    assert len(stream.fetches) == fetched


def test_newest_offset_of_a_query_behind_a_truncation_counts_what_is_left(
    stream: FakeStream,
) -> None:
    reader = source(stream, maxRowsPerTrigger="6")
    reader.latest_offset(offset(0), unlimited=False)
    stream.truncate(Dlsn(2))
    assert report(reader)["rowsBehind"] == 5


def test_newest_offset_may_be_pasted_as_a_position(stream: FakeStream) -> None:
    reader = source(stream, maxRowsPerTrigger="9")
    reader.latest_offset(offset(0), unlimited=False)
    position = parse_position(json.dumps(report(reader)))
    assert isinstance(position, PositionJson)
    assert position.dlsn == Dlsn(3)


def test_lag_is_reckoned_by_the_clock_that_dates_commits(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = source(stream, maxRowsPerTrigger="9")
    reader.latest_offset(offset(0), unlimited=False)
    wall = SimpleNamespace(time_ns=lambda: 7_500_000_000)
    monkeypatch.setattr(stream_source, "time", wall)
    assert report(reader)["millisBehind"] == 5500, "the oldest row that waits is of 2 s"
