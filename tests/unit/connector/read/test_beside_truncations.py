"""StreamSource while rows go: what is lost ends the query, what was dropped is told once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from connector.read.stream_source import StreamSource
from spark_ledger.errors import DataLossError
from spark_ledger.stream.model import Head
from spark_ledger.types import Dlsn
from tests.unit.connector.fakes import FakeStream
from tests.unit.connector.read.test_stream_source import Clock, offset, source


@pytest.fixture
def stream() -> FakeStream:
    made = FakeStream()
    for _ in range(5):
        made.grow((1, 1))
    return made


class LosesRows:
    """Commits that cannot be read, however often; at first rows are truncated as well."""

    def __init__(self, stream: FakeStream, truncations: int) -> None:
        self._stream, self._truncations = stream, truncations
        self.looks = 0

    def __call__(self, first: int, end: int) -> Any:
        self.looks += 1
        assert self.looks < 20, "what is lost is asked for again and again"
        if self.looks <= self._truncations:
            self._stream.truncate(Dlsn(self.looks))
        raise DataLossError("a page of manifests is lost")


_LOOKS: list[Callable[[StreamSource], object]] = [
    lambda reader: reader.plan(offset(0), offset(5)),
    lambda reader: reader.latest_offset(offset(0), unlimited=False),
]


@pytest.mark.parametrize("truncations", [0, 1, 2])
@pytest.mark.parametrize("look", _LOOKS)
def test_lost_rows_end_the_query_though_truncated_ones_may_be_left_out(
    stream: FakeStream,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[StreamSource], object],
    truncations: int,
) -> None:
    loses = LosesRows(stream, truncations)
    monkeypatch.setattr(stream, "commits_between", loses)
    with pytest.raises(DataLossError, match="page of manifests"):
        look(source(stream, maxRowsPerTrigger="3", failOnDataLoss="false"))
    assert loses.looks == truncations + 1, "one more for each truncation"


@pytest.mark.parametrize("look", _LOOKS)
def test_rows_truncated_between_two_looks_at_the_head_are_left_out(
    stream: FakeStream,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[StreamSource], object],
) -> None:
    """What is compared is the head by which the commits were chosen, and not one read since."""
    head, commits = stream.head, stream.commits_between
    heads: list[Head] = []

    def overtaken() -> Head:
        heads.append(head())
        if len(heads) == 1:
            stream.truncate(Dlsn(3))
        return heads[-1]

    def commits_between(first: int, end: int) -> Any:
        if first < head().earliest.segment:
            raise DataLossError(f"segment {first} was truncated")
        return commits(first, end)

    reader = source(stream, maxRowsPerTrigger="99", failOnDataLoss="false")
    monkeypatch.setattr(stream, "wait_for_commit", lambda **_how: None)
    monkeypatch.setattr(stream, "head", overtaken)
    monkeypatch.setattr(stream, "commits_between", commits_between)
    assert look(reader)
    assert heads[0].earliest == Dlsn(0) and heads[-1].earliest == Dlsn(3)


def test_truncation_is_warned_of_once_for_each_position(
    stream: FakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    """Each trigger looks again at where it begins, and so does each plan."""
    reader = source(stream, failOnDataLoss="false")
    warned = []
    with caplog.at_level(logging.WARNING):
        for earliest, at in ((2, 0), (2, 0), (3, 0), (4, 1), (4, 1)):
            stream.truncate(Dlsn(earliest))
            reader.latest_offset(offset(at), unlimited=False)
            reader.plan(offset(at), offset(5))
            warned.append(len(caplog.records))
    assert warned == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("end", ['{"segment": 0}', '{"segment": 0, "entry": 1}'])
def test_ending_position_that_was_truncated_asks_for_no_commit(
    stream: FakeStream, end: str
) -> None:
    stream.truncate(Dlsn(2))
    reader = source(stream, endingPosition=end)
    assert reader.final_offset() in (offset(0), offset(0, 1))
    assert not stream.fetches


@pytest.mark.parametrize(
    "end", ['{"segment": 0, "entry": 2}', '{"segment": 0, "entry": 1, "slot": 1}', '{"segment": 1}']
)
def test_ending_position_has_one_spelling_and_is_no_end_before_its_start(
    stream: FakeStream, end: str
) -> None:
    reader = source(stream, startingPosition='{"segment": 1}', endingPosition=end)
    assert reader.final_offset() == offset(1) == reader.initial_offset()


@pytest.mark.parametrize("left_s", [1 / 4096, 1e-6])
def test_trigger_with_too_few_rows_waits_no_longer_than_its_delay(
    stream: FakeStream, left_s: float
) -> None:
    slept: list[float] = []
    clock = Clock()
    reader = source(stream, clock=clock, minRowsPerTrigger="99", maxTriggerDelay="60s")
    reader._sleep = slept.append
    clock.now += 60 - left_s
    assert reader.latest_offset(offset(0), unlimited=False) == offset(0)
    assert slept == [pytest.approx(left_s)]


def test_backlog_of_a_run_that_has_its_end_never_leads_behind_or_before_it(
    stream: FakeStream,
) -> None:
    """Of several streams: a start behind its end would be the end of the micro-batch, and rows
    would come twice or never."""
    reader = source(stream, failOnDataLoss="false")
    reader.pin_target()
    stream.grow((1, 1))
    ahead = reader.backlog(offset(6))
    assert (ahead.start, ahead.end) == (Dlsn(6), Dlsn(6)), "the checkpoint is ahead of the run"
    stream.truncate(Dlsn(6))
    dropped = reader.backlog(offset(1))
    assert (dropped.start, dropped.end) == (Dlsn(5), Dlsn(5)), "all of the run is dropped"


def test_newest_offset_beside_a_truncation_is_the_end_without_a_lag(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for people: the next trigger says what was lost, and ends the query or does not."""
    reader = source(stream)
    reader.latest_offset(offset(0), unlimited=False)
    stream.grow((1,))
    monkeypatch.setattr(stream, "commits_between", LosesRows(stream, 1))
    assert reader.newest_offset() == offset(6)
