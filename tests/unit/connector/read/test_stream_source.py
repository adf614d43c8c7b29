"""StreamSource: where a query starts and ends, triggers, lost data, repeated micro-batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from connector.options import read_options
from connector.read import stream_source
from connector.read.commit_cache import CommitCache
from connector.read.offsets import CheckpointOffset, OffsetJson
from connector.read.partitions import StreamPartition
from connector.read.stream_source import StreamSource
from spark_ledger.errors import ConfigurationError, DataLossError
from spark_ledger.types import Dlsn
from tests.unit.connector.fakes import At, FakeStream


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def source(stream: FakeStream, *, clock: Clock | None = None, **options: str) -> StreamSource:
    batch = {"endingPosition", "endingTimestamp"} & set(options)
    checked = read_options({"metadata": "zk://h/l", "stream": "s", **options}, streaming=not batch)
    return StreamSource(checked, stream, clock=clock or Clock(), sleep=lambda s: None)  # type: ignore[arg-type]


def offset(segment: int, entry: int = 0, stream: str = "fake", **slot: int) -> OffsetJson:
    return At({"entry": entry, "segment": segment, **slot, "stream": stream})


def planned(
    reader: StreamSource, start: CheckpointOffset, end: CheckpointOffset
) -> list[StreamPartition]:
    found = reader.plan(start, end)
    return [partition for partition in found if isinstance(partition, StreamPartition)]


def drain(reader: StreamSource, start: OffsetJson) -> list[OffsetJson]:
    """The ends of all triggers until nothing is left."""
    ends = []
    while (end := reader.latest_offset(start, unlimited=False)) != start:
        ends.append(end)
        start = end
    return ends


@pytest.fixture
def stream() -> FakeStream:
    made = FakeStream()
    made.grow((3, 3, 3), time_ms=1000)
    made.grow((3, 3), (5,), time_ms=2000)
    return made


def test_initial_offset_is_the_starting_position(stream: FakeStream) -> None:
    assert source(stream).initial_offset() == offset(0)
    assert source(stream, startingPosition="latest").initial_offset() == offset(3)
    for text, expected in {
        '{"segment": 1}': offset(1),
        '{"segment": 0, "entry": 2}': offset(0, 2),
        '{"segment": 0, "entry": 2, "slot": 1}': offset(0, 2, slot=1),
        '{"segment": 0, "entry": 0, "slot": 3}': offset(0, 1),
        '{"segment": 0, "entry": 2, "slot": 3}': offset(1),
        '{"segment": 0, "entry": 3}': offset(1),
        '{"segment": 0, "entry": 9}': offset(1),
        '{"segment": 3}': offset(3),
    }.items():
        assert source(stream, startingPosition=text).initial_offset() == expected, text


def test_offset_as_starting_position_is_the_row_with_so_many_before(stream: FakeStream) -> None:
    for rows_before, expected in {
        0: offset(0),
        2: offset(0, 0, slot=2),
        3: offset(0, 1),
        9: offset(1),
        13: offset(1, 1, slot=1),
        15: offset(2),
        19: offset(2, 0, slot=4),
        20: offset(3),
    }.items():
        text = f'{{"offset": {rows_before}}}'
        assert source(stream, startingPosition=text).initial_offset() == expected, text
        if rows_before:
            assert source(stream, endingPosition=text).final_offset() == expected, text


def test_offset_behind_the_last_row_is_refused(stream: FakeStream) -> None:
    with pytest.raises(ConfigurationError, match="startingPosition 21 lies behind the end, 20"):
        source(stream, startingPosition='{"offset": 21}').initial_offset()
    with pytest.raises(ConfigurationError, match="endingPosition 21 lies behind the end, 20"):
        source(stream, endingPosition='{"offset": 21}').final_offset()
    with pytest.raises(
        ConfigurationError, match=r"\(0, 1, 0\) lies before startingPosition \(1, 0,"
    ):
        source(
            stream, startingPosition='{"offset": 9}', endingPosition='{"offset": 3}'
        ).final_offset()


def test_offset_of_a_truncated_row_fails_or_moves_to_the_earliest(
    stream: FakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.truncate(Dlsn(1))
    with pytest.raises(DataLossError, match="the row with the offset 8 was truncated"):
        source(stream, startingPosition='{"offset": 8}').initial_offset()
    lenient = source(stream, startingPosition='{"offset": 8}', failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert lenient.initial_offset() == offset(1)
    assert "the row with the offset 8 was truncated" in caplog.text


def test_end_at_a_truncated_row_fails_or_is_an_empty_read(
    stream: FakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.truncate(Dlsn(1))
    for start in ({}, {"startingPosition": '{"offset": 3}'}):
        given = {**start, "endingPosition": '{"offset": 8}'}
        with pytest.raises(DataLossError, match="the row with the offset 8 was truncated"):
            source(stream, clock=Clock(), **given).final_offset()
        lenient = source(stream, clock=Clock(), **given, failOnDataLoss="false")
        with caplog.at_level(logging.WARNING):
            begin, end = lenient.initial_offset(), lenient.final_offset()
        assert begin == end == offset(1)
        assert lenient.plan(begin, end) == []
    assert "8 was truncated; endingPosition is the first row kept" in caplog.text


@pytest.mark.parametrize("option", ["startingPosition", "endingPosition"])
def test_row_that_is_truncated_while_it_is_looked_for_is_as_one_of_before(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    find = stream.position_of_row

    def truncated(row: int) -> Dlsn:
        stream.truncate(Dlsn(1))
        return find(row)

    monkeypatch.setattr(stream, "position_of_row", truncated)
    given = {option: '{"offset": 8}', "failOnDataLoss": "false"}
    lenient = source(stream, clock=Clock(), **given)
    is_start = option == "startingPosition"
    assert (lenient.initial_offset() if is_start else lenient.final_offset()) == offset(1)


def test_initial_offset_is_resolved_once(stream: FakeStream) -> None:
    reader = source(stream, startingPosition="latest")
    before = reader.initial_offset()
    stream.grow((1,))
    assert reader.initial_offset() == before == offset(3)


def test_initial_offset_by_timestamp(stream: FakeStream) -> None:
    for time_ms, expected in {"0": 0, "1000": 0, "1001": 1, "2000": 1, "2001": 3}.items():
        assert source(stream, startingTimestamp=time_ms).initial_offset() == offset(expected)
    with pytest.raises(
        ConfigurationError, match="startingTimestamp = 999999999999999 lies in the fu"
    ):
        source(stream, startingTimestamp="999999999999999").initial_offset()


def test_initial_offset_behind_the_end_is_refused(stream: FakeStream) -> None:
    with pytest.raises(ConfigurationError, match=r"startingPosition \(4, 0, 0\) lies behind"):
        source(stream, startingPosition='{"segment": 4}').initial_offset()


def test_initial_offset_that_was_truncated_fails_or_moves_to_the_earliest(
    stream: FakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.truncate(Dlsn(1, 1))
    with pytest.raises(
        DataLossError, match=r"lies before the first row kept.*failOnDataLoss=false"
    ):
        source(stream, startingPosition='{"segment": 0}').initial_offset()
    lenient = source(stream, startingPosition='{"segment": 0}', failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert lenient.initial_offset() == offset(1, 1)
    assert "lies before the first row kept" in caplog.text
    assert source(stream).initial_offset() == offset(1, 1)


def test_final_offset_is_the_ending_position(stream: FakeStream) -> None:
    assert source(stream, endingPosition="latest").final_offset() == offset(3)
    assert source(stream, endingPosition='{"segment": 1, "entry": 1}').final_offset() == offset(
        1, 1
    )
    assert source(stream, endingTimestamp="2000").final_offset() == offset(1)
    with pytest.raises(ConfigurationError, match="lies behind"):
        source(stream, endingPosition='{"segment": 4}').final_offset()
    with pytest.raises(ConfigurationError, match="endingPosition = 'earliest'"):
        source(stream, endingPosition="earliest").final_offset()
    with pytest.raises(ConfigurationError, match=r"\(1, 0, 0\) lies before startingPosition"):
        source(
            stream, startingPosition='{"segment": 2}', endingPosition='{"segment": 1}'
        ).final_offset()


def test_latest_offset_without_limits_is_the_end(stream: FakeStream) -> None:
    assert source(stream).latest_offset(offset(0), unlimited=False) == offset(3)


def test_latest_offset_with_limits_cuts_at_entries(stream: FakeStream) -> None:
    limited = source(stream, maxRowsPerTrigger="6")
    assert drain(limited, offset(0)) == [offset(0, 2), offset(1, 1), offset(2), offset(3)]
    by_bytes = source(stream, maxBytesPerTrigger="200")
    assert drain(by_bytes, offset(0)) == [offset(0, 2), offset(1, 1), offset(3)]


def test_latest_offset_unlimited_ignores_limits(stream: FakeStream) -> None:
    limited = source(stream, maxRowsPerTrigger="6")
    assert limited.latest_offset(offset(0), unlimited=True) == offset(3)


def test_latest_offset_of_idle_stream_waits_and_is_the_start(stream: FakeStream) -> None:
    reader = source(stream)
    start = offset(3)
    assert reader.latest_offset(start, unlimited=False) == start
    assert stream.waits == 1


def test_latest_offset_after_pin_target_stops_there(stream: FakeStream) -> None:
    reader = source(stream, maxRowsPerTrigger="6", minRowsPerTrigger="5")
    reader.pin_target()
    stream.grow((7,))
    assert drain(reader, offset(0))[-1] == offset(3)
    assert stream.waits == 0
    newest = reader.newest_offset()
    assert newest is not None
    assert offset(4) == {key: newest[key] for key in offset(4)}
    assert newest["rowsBehind"] == 7


def test_latest_offset_with_minimum_rows_waits_for_rows_or_the_delay(stream: FakeStream) -> None:
    clock = Clock()
    reader = source(stream, clock=clock, minRowsPerTrigger="25", maxTriggerDelay="0.01s")
    assert reader.latest_offset(offset(0), unlimited=False) == offset(0)
    stream.grow((5,))
    assert reader.latest_offset(offset(0), unlimited=False) == offset(4)
    stream.grow((5,))
    assert reader.latest_offset(offset(4), unlimited=False) == offset(4)
    clock.now += 1
    assert reader.latest_offset(offset(4), unlimited=False) == offset(5)


def test_plan_is_repeatable_and_complete(stream: FakeStream) -> None:
    plans = planned(source(stream, minPartitions="3"), offset(0, 1), offset(3))
    again = planned(source(stream, minPartitions="3"), offset(0, 1), offset(3))
    assert plans == again
    assert len(plans) == 3
    assert sum(part.rows for one in plans for part in one.plan.ranges) == 6 + 6 + 5


def test_plan_of_empty_range_has_no_partitions(stream: FakeStream) -> None:
    assert source(stream).plan(offset(1), offset(1)) == []


def test_rows_truncated_under_a_query_fail_or_are_skipped(stream: FakeStream) -> None:
    strict, lenient = source(stream), source(stream, failOnDataLoss="false")
    stream.truncate(Dlsn(2))
    with pytest.raises(DataLossError, match="position of the checkpoint"):
        strict.latest_offset(offset(0), unlimited=False)
    with pytest.raises(DataLossError, match="position of the checkpoint"):
        strict.plan(offset(0), offset(3))
    assert lenient.latest_offset(offset(0), unlimited=False) == offset(3)
    (plan,) = planned(lenient, offset(0), offset(3))
    assert [part.segment.number for part in plan.plan.ranges] == [2]
    assert lenient.plan(offset(0), offset(1)) == []


def test_rows_truncated_while_they_are_planned_fail_or_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The truncation comes between the look at the head and the look at the commits."""
    asks: list[Callable[[StreamSource], object]] = [
        lambda reader: reader.plan(offset(0), offset(3)),
        lambda reader: reader.latest_offset(offset(0), unlimited=False),
    ]
    for ask in asks:
        for lenient in (True, False):
            made = FakeStream()
            for _ in range(3):
                made.grow((1, 1))
            inner = made.commits_between

            def beside(first: int, end: int, made: Any = made, inner: Any = inner) -> Any:
                if made.head().earliest == Dlsn(0, 0, 0):
                    made.truncate(Dlsn(2))
                    raise DataLossError("segment 0 was truncated")
                return inner(first, end)

            monkeypatch.setattr(made, "commits_between", beside)
            reader = source(
                made, maxRowsPerTrigger="5", failOnDataLoss="false" if lenient else "true"
            )
            if lenient:
                assert ask(reader)
            else:
                with pytest.raises(DataLossError):
                    ask(reader)


def test_latest_offset_with_limits_after_truncation_starts_at_the_earliest(
    stream: FakeStream,
) -> None:
    lenient = source(stream, failOnDataLoss="false", maxRowsPerTrigger="5")
    stream.truncate(Dlsn(2))
    assert drain(lenient, offset(0)) == [offset(3)]


RECREATED = (
    r"stream 's' was deleted and created again.*Use a new checkpoint location; "
    r"or set failOnDataLoss=false"
)


def test_recreated_stream_fails_or_starts_at_its_earliest(
    stream: FakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = source(stream), source(stream, failOnDataLoss="false")
    before = offset(2, stream="former")
    with pytest.raises(DataLossError, match=RECREATED):
        strict.latest_offset(before, unlimited=False)
    with pytest.raises(DataLossError, match=RECREATED):
        strict.plan(before, offset(3))
    with pytest.raises(DataLossError, match=RECREATED):
        strict.plan(before, offset(3, stream="former"))
    with caplog.at_level(logging.WARNING):
        assert lenient.latest_offset(before, unlimited=False) == offset(3)
    assert "was deleted and created again" in caplog.text
    (plan,) = planned(lenient, before, offset(3))
    assert [part.segment.number for part in plan.plan.ranges] == [0, 1, 2]
    assert lenient.plan(offset(0, stream="former"), before) == []
    lenient.forget(before)


def test_latest_offset_with_limits_in_recreated_stream_starts_at_the_earliest(
    stream: FakeStream,
) -> None:
    lenient = source(stream, failOnDataLoss="false", maxRowsPerTrigger="6")
    ends = drain(lenient, offset(7, stream="former"))
    assert ends == [offset(0, 2), offset(1, 1), offset(2), offset(3)]


def test_latest_offset_of_empty_recreated_stream_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lenient, before = source(FakeStream(), failOnDataLoss="false"), offset(7, stream="former")
    with caplog.at_level(logging.WARNING):
        assert lenient.latest_offset(before, unlimited=False) == before
        assert lenient.latest_offset(before, unlimited=False) == before
    assert len(caplog.records) == 1


def test_offset_without_id_is_of_this_stream(stream: FakeStream) -> None:
    reader, start = source(stream), {"entry": 0, "segment": 1}
    assert reader.latest_offset(start, unlimited=False) == offset(3)
    (plan,) = planned(reader, start, {"entry": 0, "segment": 2})
    assert [part.segment.number for part in plan.plan.ranges] == [1]


def test_option_position_with_stream_id_must_be_of_this_stream(stream: FakeStream) -> None:
    ours = '{"entry": 2, "segment": 0, "stream": "fake"}'
    former = ours.replace("fake", "x")
    bounded = source(stream, startingPosition=ours, endingPosition=ours)
    assert bounded.initial_offset() == offset(0, 2) == bounded.final_offset()
    with pytest.raises(ConfigurationError, match="startingPosition: the position is one of the st"):
        source(stream, startingPosition=former).initial_offset()
    with pytest.raises(ConfigurationError, match="endingPosition: the position is one of the str"):
        source(stream, endingPosition=former).final_offset()


def test_position_that_the_head_never_reaches_is_refused(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_source, "METADATA_LAG_S", -1.0)
    reader = source(stream)
    with pytest.raises(ConfigurationError, match="new checkpoint"):
        reader.plan(offset(7), offset(9))
    with pytest.raises(ConfigurationError, match="new checkpoint"):
        reader.latest_offset(offset(7), unlimited=False)


def test_commit_cache_fetches_once_and_forgets() -> None:
    made = FakeStream()
    for _ in range(10):
        made.grow((1,), (1,))
    cache = CommitCache(made)  # type: ignore[arg-type]
    assert [c.number for c in cache.between(3, 7)] == [1, 2, 3]
    assert [c.number for c in cache.between(4, 6)] == [2]
    assert [c.number for c in cache.between(4, 20)] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert [s.number for s in cache.segments(15, 17)] == [15, 16]
    assert made.fetches == [(3, 7), (8, 20)]
    cache.forget_before(9)  # the commit from 8 on goes behind its last segment
    assert [s.number for s in cache.segments(9, 11)] == [9, 10]
    assert len(made.fetches) == 2
    assert [c.number for c in cache.between(0, 2)] == [0]
    assert made.fetches[-1] == (0, 2)
    assert cache.between(5, 5) == []


def test_latest_offset_far_behind_fetches_only_what_a_trigger_needs() -> None:
    made = FakeStream()
    for _ in range(3000):
        made.grow((10,))
    assert source(made, maxRowsPerTrigger="50").latest_offset(offset(0), unlimited=False) == offset(
        5
    )
    assert made.fetches == [(0, 1024)]


def test_timestamp_between_the_last_commit_and_now_is_the_end(stream: FakeStream) -> None:
    now_ms = int(time.time() * 1000)
    assert source(stream, startingTimestamp=str(now_ms - 1000)).initial_offset() == offset(3)
    with pytest.raises(ConfigurationError, match="lies in the future"):
        source(stream, startingTimestamp=str(now_ms + 60_000)).initial_offset()


def test_timestamp_in_the_future_is_shown_as_a_time_and_its_zone_is_explained(
    stream: FakeStream,
) -> None:
    with pytest.raises(ConfigurationError, match=r"2999-01-01T00:00:00\+00:00.*timeZone"):
        source(stream, startingTimestamp="2999-01-01").initial_offset()


def test_ending_timestamp_in_the_future_is_the_end_as_for_kafka(stream: FakeStream) -> None:
    now_ms = int(time.time() * 1000)
    for ending in (str(now_ms + 3_600_000), "2999-01-01"):
        assert source(stream, endingTimestamp=ending).final_offset() == offset(3)
    stream.grow((1,), time_ms=now_ms + 7_200_000)  # by a clock ahead
    assert source(stream, endingTimestamp=str(now_ms + 7_200_000)).final_offset() == offset(3)


def test_timestamp_of_a_commit_made_by_a_clock_ahead_is_known(stream: FakeStream) -> None:
    ahead_ms = int(time.time() * 1000) + 3_600_000
    stream.grow((1,), time_ms=ahead_ms)
    assert source(stream, startingTimestamp=str(ahead_ms)).initial_offset() == offset(3)
    with pytest.raises(ConfigurationError, match="lies in the future"):
        source(stream, startingTimestamp=str(ahead_ms + 1)).initial_offset()


def test_plan_that_ends_within_a_segment_has_its_rows() -> None:
    made = FakeStream()
    for _ in range(3):
        made.grow((3, 3))
    plans = planned(source(made), offset(0, 1), offset(2, 1))
    assert [part.rows for one in plans for part in one.plan.ranges] == [3, 6, 3]
    plans = planned(source(made), offset(2), offset(2, 0, slot=2))
    assert [part.rows for one in plans for part in one.plan.ranges] == [2]


def test_plan_behind_a_truncation_asks_for_no_truncated_commit() -> None:
    made = FakeStream()
    for _ in range(9):
        made.grow((1,))
    lenient = source(made, failOnDataLoss="false")
    assert len(lenient.plan(offset(0), offset(2))) == 1
    made.truncate(Dlsn(6))
    (plan,) = planned(lenient, offset(2), offset(8))
    assert [part.segment.number for part in plan.plan.ranges] == [6, 7]


def test_commit_cache_keeps_nothing_that_the_query_has_passed() -> None:
    made = FakeStream()
    for _ in range(100):
        made.grow((1,))
    reader = source(made, maxRowsPerTrigger="10")
    start = reader.initial_offset()
    while (end := reader.latest_offset(start, unlimited=False)) != start:
        reader.plan(start, end)
        reader.forget(end)
        start = end
    assert reader._commits._commits == []
    assert len(made.fetches) <= 20
