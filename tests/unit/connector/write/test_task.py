"""The writing task: which task it is, what it reports, and how transient errors are retried."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import TaskContext

from connector import retry, sessions
from connector.options import write_options
from connector.write import task
from connector.write.task import (
    TaskIdentity,
    TaskWritten,
    segments_by_partition,
    streaming_task,
    write_segments,
)
from spark_ledger.errors import (
    BookieUnavailableError,
    ConfigurationError,
    EnsembleLostError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerError,
    LedgerTakenOverError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    SchemaMismatchError,
)
from spark_ledger.stream.model import Segment
from tests.unit.connector.fakes import make_segment

PROPERTIES = {
    "sql.streaming.queryId": "q",
    "streaming.sql.batchId": "7",
    "spark.jobGroup.id": "r",
}


def context(properties: dict[str, str]) -> TaskContext:
    fake = SimpleNamespace(
        getLocalProperty=properties.get, partitionId=lambda: 3, attemptNumber=lambda: 1
    )
    return cast("TaskContext", fake)


def test_streaming_task_is_known_from_task_properties() -> None:
    assert streaming_task(context(PROPERTIES)) == TaskIdentity("q", "r", 7, 3, 1)


@pytest.mark.parametrize("missing", sorted(PROPERTIES))
def test_streaming_task_without_a_property_names_it(missing: str) -> None:
    rest = {name: value for name, value in PROPERTIES.items() if name != missing}
    with pytest.raises(ConfigurationError, match=missing):
        streaming_task(context(rest))


def test_streaming_task_outside_a_task_or_without_batch_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="inside Spark tasks"):
        streaming_task(None)
    with pytest.raises(ConfigurationError, match="not a batch number"):
        streaming_task(context({**PROPERTIES, "streaming.sql.batchId": "x"}))


def test_segments_by_partition_are_in_partition_order() -> None:
    one, two, three = (make_segment(0, (n,)) for n in (1, 2, 3))
    messages = [
        TaskWritten(2, 0, "id", (three,)),
        None,
        TaskWritten(0, 1, "id", (one, two)),
        TaskWritten(1, 0, "id"),
    ]
    assert segments_by_partition(messages) == (one, two, three)


def test_segments_of_two_attempts_of_a_partition_are_not_committed() -> None:
    rows = make_segment(0, (1,))
    with pytest.raises(AssertionError, match="there twice"):
        segments_by_partition([TaskWritten(1, 0, "id", (rows,)), TaskWritten(1, 1, "id", (rows,))])


class FakeWriter:
    """Raises given errors: at the n-th call of ``write``, or (n = -1) at ``finish``."""

    def __init__(self) -> None:
        self.errors: list[tuple[int, LedgerError]] = []
        self.rows: list[int] = []
        self.abandoned = 0
        self._calls = 0

    def _call(self, number: int) -> None:
        if self.errors and self.errors[0][0] == number:
            raise self.errors.pop(0)[1]

    def write(self, batch: Any, *, merge_schema: object) -> None:
        assert merge_schema is None
        self._call(self._calls)
        self._calls += 1
        self.rows += batch.column(0).to_pylist()

    def finish(self) -> list[Segment]:
        self._call(-1)
        return [make_segment(0, (len(self.rows),))]

    def abandon(self) -> None:
        self.abandoned += 1
        self.rows, self._calls = [], 0


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> FakeWriter:
    made = FakeWriter()
    monkeypatch.setattr(sessions, "segment_writer", lambda *given, **named: made)
    monkeypatch.setattr(retry, "RETRY_PAUSES_S", (0.0,))
    return made


def batches() -> Iterator[Any]:
    for first in (0, 10, 10, 20):
        yield pa.record_batch({"id": pa.array(range(first, first + (10 if first != 10 else 5)))})


ALL = [*range(10), *range(10, 15), *range(10, 15), *range(20, 30)]


def write() -> tuple[Segment, ...]:
    options = write_options({"metadata": "zk://h/l", "stream": "s"}, streaming=True)
    return write_segments(options, "id", batches(), None)


@pytest.mark.parametrize("call", [-1, 0, 1, 3])
@pytest.mark.parametrize(
    "kind",
    [
        BookieUnavailableError,
        NotEnoughBookiesError,
        EnsembleLostError,
        LedgerTakenOverError,
        LedgerClosedError,
        OutcomeUnknownError,
    ],
)
def test_write_segments_after_transient_errors_writes_all_rows_again(
    writer: FakeWriter, call: int, kind: type[LedgerError]
) -> None:
    writer.errors = [(call, kind("down")), (2, kind("down again"))]
    (segment,) = write()
    assert writer.rows == ALL and segment.rows == len(ALL)
    assert writer.abandoned == 2


def test_write_segments_too_large_to_keep_raises(
    writer: FakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "TASK_KEPT_BYTES_MAX", 150)
    writer.errors = [(1, EnsembleLostError("down"))]
    assert write() and writer.abandoned == 1, "two batches are small enough"
    writer.abandon()
    writer.errors = [(3, EnsembleLostError("down"))]
    with pytest.raises(EnsembleLostError):
        write()
    monkeypatch.setattr(task, "TASK_KEPT_BYTES_MAX", 79)
    writer.errors = [(0, EnsembleLostError("down"))]
    with pytest.raises(EnsembleLostError):  # the first batch alone
        write()


def test_partition_without_rows_opens_no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of the empty tasks of a query would make a ledger."""
    monkeypatch.setattr(sessions, "segment_writer", None)
    options = write_options({"metadata": "zk://h/l", "stream": "s"}, streaming=True)
    empty = pa.record_batch({"id": pa.array([], pa.int64())})
    for given in ([], [empty], [empty, empty]):
        assert write_segments(options, "id", iter(given), None) == ()


def test_write_segments_with_lasting_error_raises(
    writer: FakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.errors = [(1, SchemaMismatchError("never"))]
    with pytest.raises(SchemaMismatchError):
        write()
    writer.errors = [(1, EntryTooLargeError("row 7 takes too many bytes"))]
    with pytest.raises(EntryTooLargeError, match=r"^stream 's': row 7 takes"):
        write()
    monkeypatch.setattr(task, "RETRY_IN_TASK_S", -1.0)
    writer.errors = [(1, NotEnoughBookiesError("for good"))]
    with pytest.raises(NotEnoughBookiesError, match="for good"):
        write()
    assert writer.abandoned == 3 and not writer.rows
