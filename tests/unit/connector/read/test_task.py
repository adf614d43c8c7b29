"""The reading task: sizes of batches, metadata, lost rows, outages, raw entries."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from connector import retry, sessions
from connector.options import read_options
from connector.read import task
from connector.read.partitions import LedgerPartition, StreamPartition
from connector.read.source import check_schema
from connector.read.task import _resized, ranges_after, read_partition
from connector.read.watched import read_watched
from connector.schema import LEDGER_SCHEMA, METADATA_TYPE, read_schema
from spark_ledger.client.entry_batch import EntryBatch
from spark_ledger.errors import (
    BookieUnavailableError,
    DataLossError,
    NoSuchStreamError,
    SchemaMismatchError,
)
from spark_ledger.limits import KIB, MIB
from spark_ledger.limits.connector import RETRY_IN_TASK_S
from spark_ledger.stream.format.metadata_column import PositionedBatch
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.plan.balance import FirstRead, FirstReads
from spark_ledger.stream.plan.partitions import Plan
from spark_ledger.types import BookieId, Dlsn, Entry, EntryId, LedgerId
from tests.unit.connector.fakes import make_segment

SCHEMA = StructType([StructField("a", LongType())])
WITH_METADATA = StructType(
    [StructField("_ledger", METADATA_TYPE, False), StructField("a", LongType())]
)


def batch(rows: int, size: int = 8) -> pa.RecordBatch:
    return pa.record_batch({"a": pa.array([b"x" * size] * rows, pa.binary())})


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(10, 8)] * 5, [50]),
        ([(1, 600 * KIB)] * 4, [2, 2]),
        ([(8, MIB)], [1] * 8),
        ([(9, 500 * KIB), (1, 8)], [2, 2, 2, 2, 1, 1]),
        ([(1, 8), (8, MIB), (1, 8)], [1, *[1] * 8, 1]),
        ([], []),
    ],
)
def test_resized_joins_small_batches_and_cuts_large_ones(
    sizes: list[tuple[int, int]], expected: list[int]
) -> None:
    given = [batch(rows, size) for rows, size in sizes]
    made = list(_resized(given))
    assert [one.num_rows for one in made] == expected
    assert pa.Table.from_batches(made, batch(0).schema) == pa.Table.from_batches(
        given, batch(0).schema
    )


class FakeStream:
    """Delivers a row for each segment; those before ``earliest`` are gone."""

    def __init__(self, earliest: int = 0, damaged: int = -1) -> None:
        self._earliest = earliest
        self._damaged = damaged
        self._losses = 0

    def head(self) -> Any:
        return SimpleNamespace(earliest=Dlsn(self._earliest))

    def read_ranges(
        self, ranges: Any, *, schema: Any, replica_hint: int, where: Any
    ) -> Iterator[PositionedBatch]:
        for part in ranges:
            number = part.segment.number
            if number < self._earliest or number == self._damaged:
                self._losses += 1
                assert self._losses < 10, "what is lost is asked for again and again"
                raise DataLossError(f"segment {number} is gone")
            rows = pa.record_batch({"a": [number]}, schema=schema)
            yield PositionedBatch(Dlsn(number), LedgerId(1), 10 + number, 1000, rows)


def numbers(
    monkeypatch: pytest.MonkeyPatch, stream: FakeStream, schema: StructType = SCHEMA, **given: str
) -> pa.Table:
    monkeypatch.setattr(sessions, "present_stream", lambda options, name, stream_id: stream)
    options = read_options({"metadata": "zk://h/l", "stream": "s", **given}, streaming=True)
    ranges = tuple(SegmentRange(make_segment(n, (1,)), (0, 0), (1, 0), 0, 0) for n in range(4))
    partition = StreamPartition("id", Plan(ranges, 0))
    return pa.Table.from_batches(read_partition(options, schema, partition), read_schema(schema))


def test_read_partition_gives_rows_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbers(monkeypatch, FakeStream()).column("a").to_pylist() == [0, 1, 2, 3]


def test_task_asks_the_planned_bookies_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Hinted(FakeStream):
        hints: ClassVar[list[Any]] = []

        def read_ranges(self, ranges: Any, **how: Any) -> Iterator[PositionedBatch]:
            self.hints.append(how["replica_hint"])
            return super().read_ranges(ranges, **how)

    monkeypatch.setattr(sessions, "present_stream", lambda options, name, stream_id: Hinted())
    options = read_options({"metadata": "zk://h/l", "stream": "s"}, streaming=True)
    ranges = (SegmentRange(make_segment(3, (1,)), (0, 0), (1, 0), 0, 0),)
    order = (BookieId("b2"), BookieId("b1"))
    reads = FirstReads(order, (FirstRead(LedgerId(1), EntryId(40), order[0], 77),))
    with caplog.at_level(logging.INFO):
        for plan in (Plan(ranges, 5, reads), Plan(ranges, 5)):
            assert list(read_watched(options, SCHEMA, StreamPartition("id", plan)))
    assert Hinted.hints == [order, 5]
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.INFO]
    assert len(lines) == 2, "one for each task"
    place = " from (3, 0, 0) to (3, 1, 0), ledger "
    assert all(line.startswith("stream 's': read 1 rows, ") and place in line for line in lines)
    assert lines[0].endswith(", planned 77 bytes from b2") and "planned" not in lines[1]


def test_metadata_column_is_where_it_was_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    table = numbers(monkeypatch, FakeStream(), WITH_METADATA, includeMetadata="true")
    assert table.column_names == ["_ledger", "a"]
    column = table.column("_ledger").to_pylist()
    assert [one and one["commit"] for one in column] == [10, 11, 12, 13]
    assert {one and one["commit_time"] for one in column} == {datetime.fromtimestamp(1, UTC)}


def test_truncated_rows_fail_or_are_skipped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLossError):
        numbers(monkeypatch, FakeStream(earliest=2))
    with caplog.at_level(logging.WARNING):
        table = numbers(monkeypatch, FakeStream(earliest=2), failOnDataLoss="false")
    assert table.column("a").to_pylist() == [2, 3]
    assert "segment 0 is gone" in caplog.text


def test_stream_deleted_under_a_task_fails_or_ends_the_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Deleted(FakeStream):
        def read_ranges(self, ranges: Any, **how: Any) -> Iterator[PositionedBatch]:
            yield from super().read_ranges(ranges[:2], **how)
            raise NoSuchStreamError("it is gone")

    with pytest.raises(DataLossError, match="stream 's' was deleted after this read was planned"):
        numbers(monkeypatch, Deleted())
    with caplog.at_level(logging.WARNING):
        table = numbers(monkeypatch, Deleted(), failOnDataLoss="false")
    assert table.column("a").to_pylist() == [0, 1]
    assert "was deleted after this read was planned" in caplog.text


def test_lost_rows_that_were_not_truncated_always_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataLossError, match="segment 2"):
        numbers(monkeypatch, FakeStream(damaged=2), failOnDataLoss="false")
    with pytest.raises(DataLossError, match="segment 3"):
        numbers(monkeypatch, FakeStream(earliest=1, damaged=3), failOnDataLoss="false")


class FlakyStream(FakeStream):
    """Fails now and then; delivers two entries of three rows for each segment, in pieces."""

    segments: ClassVar[tuple[int, ...]] = (1,)
    """Those behind the first."""

    def __init__(self, failures: list[int]) -> None:
        super().__init__()
        self.failures = failures

    def read_ranges(
        self, ranges: Any, *, schema: Any, replica_hint: int, where: Any
    ) -> Iterator[PositionedBatch]:
        budget = self.failures.pop(0) if self.failures else 1000
        for part in ranges:
            number = part.segment.number
            for entry, slot in sorted((e, s) for e in (0, 1) for s in (0, 2)):
                rows = 2 if slot == 0 else 1
                start = max(slot, part.start[1]) if entry == part.start[0] else slot
                if entry < part.start[0] or start >= slot + rows:
                    continue
                if budget == 0:
                    raise BookieUnavailableError("all replicas are down")
                budget -= 1
                values = [100 * number + 10 * entry + row for row in range(start, slot + rows)]
                batch = pa.record_batch({"a": values}, schema=schema)
                yield PositionedBatch(Dlsn(number, entry, start), LedgerId(1), 0, 1000, batch)


def flaky(
    monkeypatch: pytest.MonkeyPatch, failures: list[int], made: type[FlakyStream] = FlakyStream
) -> list[int | None]:
    monkeypatch.setattr(sessions, "present_stream", lambda options, name, stream_id: made(failures))
    monkeypatch.setattr(retry, "RETRY_PAUSES_S", (0.0,))
    options = read_options({"metadata": "zk://h/l", "stream": "s"}, streaming=True)
    ranges = (
        SegmentRange(make_segment(0, (3, 3)), (0, 1), (2, 0), 0, 0),
        *(SegmentRange(make_segment(n, (3, 3)), (0, 0), (2, 0), 0, 0) for n in made.segments),
    )
    batches = read_partition(options, SCHEMA, StreamPartition("id", Plan(ranges, 0)))
    return pa.Table.from_batches(batches, read_schema(SCHEMA)).column("a").to_pylist()


@pytest.mark.parametrize("delivered", range(9))
def test_stream_read_after_outages_loses_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, delivered: int
) -> None:
    wanted = [1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112]
    assert flaky(monkeypatch, [delivered]) == wanted
    assert flaky(monkeypatch, [delivered, 0, 1, 0]) == wanted


class SkippingStream(FlakyStream):
    """A condition skips all segments but the last and the one before it."""

    segments = (1, 2, 3)

    def read_ranges(self, ranges: Any, **how: Any) -> Iterator[PositionedBatch]:
        left = [part for part in ranges if part.segment.number >= 2]
        return super().read_ranges(left, **how)


@pytest.mark.parametrize("delivered", range(9))
def test_outage_behind_segments_that_were_skipped_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, delivered: int
) -> None:
    wanted = [100 * n + 10 * entry + row for n in (2, 3) for entry in (0, 1) for row in (0, 1, 2)]
    assert flaky(monkeypatch, [delivered], SkippingStream) == wanted
    assert flaky(monkeypatch, [delivered, 0, 1, 0], SkippingStream) == wanted


def test_stream_read_through_many_outages_counts_each_from_its_own_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task reads for hours: outages that are over do not add up."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now

    def sleep(seconds: float) -> None:
        clock.now += RETRY_IN_TASK_S * 0.9

    clock.sleep = sleep
    monkeypatch.setattr(retry, "time", clock)
    assert flaky(monkeypatch, [1, 1, 1, 1, 1]) == [1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112]


def test_ranges_after_asks_for_no_entry_that_was_delivered() -> None:
    ranges = (
        SegmentRange(make_segment(0, (3, 3)), (0, 1), (2, 0), 0, 0),
        SegmentRange(make_segment(1, (3, 3)), (0, 0), (1, 2), 0, 0),
    )
    left: tuple[SegmentRange, ...] = ranges
    starts = []
    for position, rows in [
        (Dlsn(0, 0, 1), 1),
        (Dlsn(0, 0, 2), 1),
        (Dlsn(0, 1, 0), 3),
        (Dlsn(1, 0, 0), 3),
        (Dlsn(1, 1, 0), 2),
    ]:
        left = ranges_after(left, position, rows)
        starts.append([(part.segment.number, part.start) for part in left])
    assert starts == [
        [(0, (0, 2)), (1, (0, 0))],
        [(0, (1, 0)), (1, (0, 0))],
        [(1, (0, 0))],
        [(1, (1, 0))],
        [],
    ]


def test_stream_read_in_lasting_outage_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "RETRY_IN_TASK_S", -1.0)
    with pytest.raises(BookieUnavailableError, match="all replicas are down"):
        flaky(monkeypatch, [3])


def test_read_partition_of_an_empty_read_gives_nothing() -> None:
    options = read_options({"metadata": "zk://h/l", "stream": "s"}, streaming=False)
    assert list(read_partition(options, SCHEMA, InputPartition(None))) == []


class FakeReader:
    """A ledger whose last add confirmed is known only after a refresh."""

    is_closed = False
    last_add_confirmed = 3
    refreshed = 0

    def refresh(self) -> None:
        self.refreshed += 1

    def read_batches(self, first: int, last: int, *, unconfirmed: bool, replica_hint: int) -> Any:
        assert unconfirmed, "the driver vouches for them"
        assert first <= last, "what is read is not read again"
        for low in range(first, last + 1, 3):
            ids = map(EntryId, range(low, min(low + 3, last + 1)))
            yield EntryBatch.of([Entry(LedgerId(5), n, b"%d" % n, n, n) for n in ids])


class FlakyReader(FakeReader):
    """Fails after so many entries, and when it is asked for the last add confirmed."""

    def __init__(self, failures: list[int]) -> None:
        self._failures = failures

    def refresh(self) -> None:
        super().refresh()
        if self.refreshed % 2:
            raise BookieUnavailableError("all bookies are down")

    def read_batches(self, first: int, last: int, *, unconfirmed: bool, replica_hint: int) -> Any:
        budget = self._failures.pop(0) if self._failures else 1 << 30
        for batch in super().read_batches(
            first, last, unconfirmed=unconfirmed, replica_hint=replica_hint
        ):
            if budget < len(batch):
                if budget > 0:
                    yield batch.between(batch.first_entry, batch.first_entry + budget - 1)
                raise BookieUnavailableError("all replicas are down")
            budget -= len(batch)
            yield batch
        if budget == 0:
            raise BookieUnavailableError("behind the last entry")


def raw_ids(monkeypatch: pytest.MonkeyPatch, failures: list[int]) -> list[int | None]:
    reader = FlakyReader(failures)
    monkeypatch.setattr(sessions, "ledger_reader", lambda options, ledger_id: reader)
    monkeypatch.setattr(retry, "RETRY_PAUSES_S", (0.0,))
    options = read_options({"metadata": "zk://h/l", "ledgerId": "5"}, streaming=True)
    partition = LedgerPartition(LedgerId(5), EntryId(2), EntryId(11), 0)
    batches = read_partition(options, LEDGER_SCHEMA, partition)
    return pa.Table.from_batches(batches).column("entry_id").to_pylist()


@pytest.mark.parametrize("delivered", range(11))
def test_raw_read_after_outages_loses_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, delivered: int
) -> None:
    assert raw_ids(monkeypatch, [delivered]) == list(range(2, 12))
    assert raw_ids(monkeypatch, [delivered, 0, 4, 0]) == list(range(2, 12))


def test_raw_read_in_lasting_outage_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "RETRY_IN_TASK_S", -1.0)
    with pytest.raises(BookieUnavailableError, match="are down"):
        raw_ids(monkeypatch, [3])


def test_raw_read_gives_all_entries_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = FakeReader()
    monkeypatch.setattr(sessions, "ledger_reader", lambda options, ledger_id: reader)
    options = read_options({"metadata": "zk://h/l", "ledgerId": "5"}, streaming=True)
    partition = LedgerPartition(LedgerId(5), EntryId(2), EntryId(5000), 0)
    made = list(read_partition(options, LEDGER_SCHEMA, partition))
    assert reader.refreshed == 1
    table = pa.Table.from_batches(made)
    assert table.schema.equals(read_schema(LEDGER_SCHEMA))
    assert table.column("entry_id").to_pylist() == list(range(2, 5001))
    assert table.column("payload").to_pylist()[7] == b"9"


@pytest.mark.parametrize(
    "names", [["payload"], ["entry_id", "ledger_id"], ["payload", "entry_id", "ledger_id"]]
)
def test_raw_read_gives_the_columns_that_were_declared_in_their_order(
    monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    monkeypatch.setattr(sessions, "ledger_reader", lambda options, ledger_id: FakeReader())
    options = read_options({"metadata": "zk://h/l", "ledgerId": "5"}, streaming=True)
    declared = StructType([LEDGER_SCHEMA[name] for name in names])
    check_schema(options, declared)
    partition = LedgerPartition(LedgerId(5), EntryId(2), EntryId(4), 0)
    rows = pa.Table.from_batches(read_partition(options, declared, partition)).to_pylist()
    whole = {"ledger_id": 5, "entry_id": 2, "payload": b"2"}
    assert (len(rows), list(rows[0].items())) == (3, [(name, whole[name]) for name in names])


@pytest.mark.parametrize(
    "wrong", [StructField("a", LongType()), StructField("payload", LongType(), False)]
)
def test_column_that_no_raw_ledger_has_is_refused_beside_those_that_it_has(
    wrong: StructField,
) -> None:
    options = read_options({"metadata": "zk://h/l", "ledgerId": "5"}, streaming=True)
    with pytest.raises(SchemaMismatchError, match="ledger 5: a raw ledger has the schema"):
        check_schema(options, StructType([LEDGER_SCHEMA["entry_id"], wrong]))
