"""What a reading task asks for as it was planned, and what it tells of itself at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from connector import retry, sessions, task_report
from connector.options import read_options
from connector.read import task, watched
from connector.read.partitions import (
    LedgerPartition,
    SeveralPartition,
    StreamPartition,
    StreamSpan,
)
from connector.read.task import _resized, read_partition
from connector.read.watched import read_watched, where
from connector.schema import LEDGER_SCHEMA
from spark_ledger.client.entry_batch import EntryBatch
from spark_ledger.errors import LedgerError, MetadataUnavailableError, NoSuchEntryError
from spark_ledger.limits import KIB
from spark_ledger.limits.connector import READS_LOGGED_MAX, RETRY_PAUSES_S
from spark_ledger.spark.reports import Report
from spark_ledger.stream.format.metadata_column import PositionedBatch
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.plan.balance import FirstRead, FirstReads
from spark_ledger.stream.plan.partitions import Plan, Span
from spark_ledger.types import BookieId, Dlsn, Entry, EntryId, LedgerId
from tests.unit.connector.fakes import make_segment
from tests.unit.connector.read.test_task import SCHEMA, batch
from tests.unit.connector.world import Clock, Task

ORDER = (BookieId("b2"), BookieId("b1"))
PLANNED = FirstReads(ORDER, (FirstRead(LedgerId(1), EntryId(40), ORDER[0], 77),))


class Asked:
    """A stream and a ledger of three rows, in batches of one; ``hints`` are whom they were asked
    to read from first, ``unconfirmed`` what a ledger was told of its range."""

    is_closed = False
    last_add_confirmed = 2

    metadata_away = False
    bookies_know = 2
    metadata = 1
    metadata_are = 1

    def __init__(self) -> None:
        self.hints: list[object] = []
        self.unconfirmed: list[bool] = []
        self.refreshed = 0

    def head(self) -> Any:
        return SimpleNamespace(earliest=Dlsn(0), earliest_commit=0)

    def refresh(self) -> None:
        self.refreshed += 1
        if self.metadata_away:
            raise MetadataUnavailableError("no ZooKeeper answered")
        self.metadata = self.metadata_are
        self.refresh_confirmed()

    def refresh_confirmed(self) -> None:
        self.last_add_confirmed = self.bookies_know

    def read_ranges(self, ranges: object, **how: Any) -> Iterator[PositionedBatch]:
        self.hints.append(how["replica_hint"])
        for number in range(3):
            rows = pa.record_batch({"a": [number]}, schema=how["schema"])
            yield PositionedBatch(Dlsn(number), LedgerId(1), number, 1000, rows)

    def read_commits(
        self, commits: object, start: object, end: object, **how: Any
    ) -> Iterator[PositionedBatch]:
        return self.read_ranges((), **how)

    def read_batches(self, first: int, last: int, **how: Any) -> Iterator[EntryBatch]:
        self.hints.append(how["replica_hint"])
        self.unconfirmed.append(how["unconfirmed"])
        for number in range(first, last + 1):
            yield EntryBatch.of(
                [Entry(LedgerId(5), EntryId(number), b"x", EntryId(number), number)]
            )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    monkeypatch.setattr(sessions, "present_stream", lambda options, name, stream_id: made)
    monkeypatch.setattr(sessions, "ledger_reader", lambda options, ledger_id: made)
    return made


def of_stream(reads: FirstReads) -> InputPartition:
    ranges = tuple(SegmentRange(make_segment(n, (1,)), (0, 0), (1, 0), 0, 0) for n in range(3))
    return StreamPartition("id", Plan(ranges, 5, reads))


def of_span(reads: FirstReads) -> InputPartition:
    return StreamSpan("id", Span(range(3), Dlsn(0), Dlsn(3), 5, reads))


def of_ledger(reads: FirstReads, last: int = 2) -> InputPartition:
    return LedgerPartition(LedgerId(5), EntryId(0), EntryId(last), 5, reads)


_KINDS = [(of_stream, "stream"), (of_span, "stream"), (of_ledger, "ledgerId")]


def read(kind: str, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    given = {"stream": "s"} if kind == "stream" else {"ledgerId": "5"}
    options = read_options({"metadata": "zk://h/l", **given}, streaming=True)
    schema: StructType = SCHEMA if kind == "stream" else LEDGER_SCHEMA
    return read_watched(options, schema, partition)


@pytest.mark.parametrize(("made", "kind"), _KINDS)
@pytest.mark.parametrize(("reads", "hint"), [(PLANNED, ORDER), (FirstReads(), 5)])
def test_task_asks_first_whom_its_plan_names(
    asked: Asked, made: Any, kind: str, reads: FirstReads, hint: object
) -> None:
    """Else all bookies but some idle, however well the driver has shared out the read."""
    assert sum(one.num_rows for one in read(kind, made(reads))) == 3
    assert asked.hints == [hint]


@pytest.mark.parametrize(
    ("last", "is_closed", "refreshes"), [(2, False, 0), (3, False, 1), (4, False, 1), (2, True, 0)]
)
def test_task_refreshes_a_reader_that_knows_less_than_the_driver(
    asked: Asked, last: int, is_closed: bool, refreshes: int
) -> None:
    asked.is_closed = is_closed
    assert len(list(read("ledgerId", of_ledger(FirstReads(), last)))) == 1
    assert (asked.refreshed, asked.unconfirmed) == (refreshes, [not is_closed])


@pytest.mark.parametrize(("bookies_know", "reads"), [(4, True), (5, True), (3, False)])
def test_task_learns_of_bookies_what_is_confirmed_while_the_metadata_are_away(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, bookies_know: int, reads: bool
) -> None:
    """As its driver has: else each micro-batch of a raw ledger fails though its bookies serve.
    Entries that none of those has which are known here are looked for again."""
    monkeypatch.setattr(task, "RETRY_IN_TASK_S", -1.0)
    asked.metadata_away, asked.bookies_know = True, bookies_know
    if reads:
        assert len(list(read("ledgerId", of_ledger(FirstReads(), 4)))) == 1
    else:
        with pytest.raises(MetadataUnavailableError):
            list(read("ledgerId", of_ledger(FirstReads(), 4)))
    assert asked.unconfirmed == [True] * reads


@pytest.mark.parametrize("tries", [1, 3])
@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("error", [MetadataUnavailableError, NoSuchEntryError])
def test_entry_is_not_called_lost_while_nobody_can_say_who_else_has_it(
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
    error: type[LedgerError],
    is_told: bool,
    tries: int,
) -> None:
    """Also where another task of the process has asked what is confirmed."""
    real, clock = asked.read_batches, Clock()

    def read_batches(first: int, _last: int, **how: Any) -> Iterator[EntryBatch]:
        yield from real(first, 2, **how)
        raise NoSuchEntryError("ledger 5: no bookie holds entry 3")

    monkeypatch.setattr(retry, "time", clock)
    monkeypatch.setattr(task, "RETRY_IN_TASK_S", sum(RETRY_PAUSES_S[: tries - 1]))
    monkeypatch.setattr(asked, "read_batches", read_batches)
    asked.metadata_away, asked.bookies_know = error is MetadataUnavailableError, 4
    asked.last_add_confirmed = 4 if is_told else 2
    with pytest.raises(error):
        list(read("ledgerId", of_ledger(FirstReads(), 4)))
    assert len(clock.pauses) == (tries - 1) * (error is MetadataUnavailableError)


def test_entry_is_read_of_those_that_the_metadata_name_by_now(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task of the process has learned of bookies what is confirmed, and not who has it."""
    real = asked.read_batches

    def read_batches(first: int, last: int, **how: Any) -> Iterator[EntryBatch]:
        if asked.metadata == 2:
            yield from real(first, last, **how)
        else:
            yield from real(first, 2, **how)
            raise NoSuchEntryError("ledger 5: no bookie holds entry 3")

    monkeypatch.setattr(asked, "read_batches", read_batches)
    asked.last_add_confirmed, asked.metadata_are = 4, 2
    given = list(read("ledgerId", of_ledger(FirstReads(), 4)))
    assert [row for each in given for row in each.column("entry_id").to_pylist()] == [0, 1, 2, 3, 4]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Report]]:
    """What listeners were sent: run and report. The task is one of micro-batch 7 of the run r."""
    found: list[tuple[str, Report]] = []
    monkeypatch.setattr(task_report, "TaskContext", Task(batch=7))
    monkeypatch.setattr(task_report, "send", lambda run, report: found.append((run, report)))
    monkeypatch.setattr(watched, "read_partition", lambda *given: iter([batch(1), batch(2)]))
    return found


@pytest.mark.parametrize(("taken", "rows"), [(1, 1), (2, 3), (None, 3)])
def test_reading_task_tells_the_listener_the_rows_that_it_gave(
    told: list[tuple[str, Report]], taken: int | None, rows: int
) -> None:
    """Also a task that Spark ends early, as under a limit."""
    given = read("stream", of_stream(FirstReads()))
    if taken is None:
        list(given)
    else:
        for _ in range(taken):
            next(given)
        given.close()  # type: ignore[attr-defined]
    assert [(run, each.batch_id, each.kind, each.rows) for run, each in told] == [
        ("r", 7, "read", rows)
    ]


def of_ledgers(*ledgers: int) -> StreamPartition:
    """Rows of a segment in each ledger: all entries of the first ones, one of the last."""
    last = len(ledgers) - 1
    ranges = [
        SegmentRange(
            replace(make_segment(n, (1, 1)), ledger_id=LedgerId(ledger)),
            (0, 1) if n == 0 else (0, 0),
            (1, 0) if n == last else (2, 0),
            0,
            0,
        )
        for n, ledger in enumerate(ledgers)
    ]
    return StreamPartition("id", Plan(tuple(ranges), 5, PLANNED))


SPAN = StreamSpan("id", Span(range(3), Dlsn(4, 1), Dlsn(7, 0, 2), 5, PLANNED))
MANY = FirstReads(
    ORDER,
    tuple(
        FirstRead(LedgerId(1), EntryId(n), BookieId(f"b{n}"), 10 + n)
        for n in range(READS_LOGGED_MAX + 1)
    ),
)


@pytest.mark.parametrize(
    ("partition", "line"),
    [
        (
            of_ledgers(9, 7, 9),
            " from (0, 0, 1) to (2, 1, 0), ledger 7, 9, planned 77 bytes from b2",
        ),
        (of_ledgers(1, 2, 3), " from (0, 0, 1) to (2, 1, 0), ledger 1, 2, 3, planned 77"),
        (of_ledgers(4, 3, 2, 1), " from (0, 0, 1) to (3, 1, 0), ledger 1, 2, 3, ..., planned 77"),
        (SPAN, " from (4, 1, 0) to (7, 0, 2), planned 77 bytes from b2"),
        (of_ledger(FirstReads()), ", entries 0 to 2"),
        (
            SeveralPartition((("a", SPAN), ("b", of_ledgers(8)))),
            " of 'a' from (4, 1, 0) to (7, 0, 2), planned 77 bytes from b2; "
            "of 'b' from (0, 0, 1) to (0, 1, 0), ledger 8, planned 77 bytes from b2",
        ),
        (InputPartition(None), ""),
    ],
)
def test_line_on_a_task_says_what_it_was_to_read_from_whom(
    partition: InputPartition, line: str
) -> None:
    assert where(partition).startswith(line)


def test_line_on_a_task_names_no_more_bookies_than_people_read() -> None:
    said = where(of_ledger(MANY)).partition(", planned ")[2].split(", ")
    most = [f"{10 + n} bytes from b{n}" for n in range(READS_LOGGED_MAX, -1, -1)]
    assert said == [*most[:-1], "..."]
    few = FirstReads(ORDER, MANY.parts[1:])
    said = where(of_ledger(few)).partition(", planned ")[2].split(", ")
    assert said == most[:-1]


def test_batches_without_rows_are_left_out_and_sizes_count_anew_behind_a_cut() -> None:
    assert list(_resized([batch(0), batch(0)])) == []
    sizes = [900, 5000, *[200] * 5]
    *_, last = _resized(batch(1, size * KIB) for size in sizes)
    assert last.num_rows == 5, "what was given before the large one does not fill the next"


def test_read_of_another_kind_has_no_rows() -> None:
    options = read_options({"metadata": "zk://h/l", "stream": "s"}, streaming=True)
    assert list(read_partition(options, SCHEMA, InputPartition(None))) == []
