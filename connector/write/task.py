"""What a writing task does on an executor: append its partition, and report the segments.

What a task writes is in no commit, so nobody can see it. Only what ``TaskWritten`` names can become
visible; an attempt that fails or loses leaves entries behind that no commit ever names (rule T1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from connector import sessions
from connector.options import WriteOptions
from connector.retry import RetryBudget
from connector.task_report import (
    BATCH_ID_PROPERTY,
    QUERY_ID_PROPERTY,
    RUN_ID_PROPERTY,
    TaskWatch,
    log_task,
)
from spark_ledger.errors import (
    ConfigurationError,
    EntryTooLargeError,
    FencedError,
    LedgerClosedError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    RetryableError,
    SchemaMismatchError,
)
from spark_ledger.limits.connector import RETRY_IN_TASK_S, TASK_KEPT_BYTES_MAX
from spark_ledger.spark.reports import Report
from spark_ledger.stream.model import Segment

T = TypeVar("T")

TRANSIENT_ERRORS: Final = (
    RetryableError,
    OutcomeUnknownError,
    NotEnoughBookiesError,
    FencedError,
    LedgerClosedError,
)
"""Errors that a new attempt, which uses a new ledger, may not meet. It does not matter if entries
of the failed attempt were stored after all: no commit names them."""


# -- who the task is -------------------------------------------------------------------------------


class TaskIdentity(NamedTuple):
    """A task attempt of one micro-batch of one query run. Lives in the task only."""

    query_id: str
    run_id: str
    batch_id: int
    partition: int
    attempt: int


def streaming_task(context: TaskContext | None) -> TaskIdentity:
    """The identity of the running streaming task; ``context`` is ``TaskContext.get()``.

    Spark passes none of this to ``write()``, so it comes from the task's local properties.

    Raises ConfigurationError if there is no task or a property is missing: it is never guessed.
    """
    if context is None:
        raise ConfigurationError("the ledger sink writes inside Spark tasks only")
    query_id = _property(context, QUERY_ID_PROPERTY)
    batch_id = _property(context, BATCH_ID_PROPERTY)
    run_id = _property(context, RUN_ID_PROPERTY)
    if not batch_id.isdigit():
        raise ConfigurationError(
            f"the task property {BATCH_ID_PROPERTY} is {batch_id!r}, not a batch number: this "
            "version of Spark is not supported (pyspark 4.2 and 4.3 are)"
        )
    return TaskIdentity(
        query_id, run_id, int(batch_id), context.partitionId(), context.attemptNumber()
    )


def _property(context: TaskContext, name: str) -> str:
    value = context.getLocalProperty(name)
    if not value:
        raise ConfigurationError(
            f"Spark did not set the task property {name}, without which a micro-batch cannot be "
            "written exactly once: this version of Spark is not supported (pyspark 4.2 and 4.3 are)"
        )
    return str(value)


# -- what the task tells the driver ----------------------------------------------------------------


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What one task attempt wrote. Pickled: made in the task, read in the commit process.

    Only segments that a message names can become visible, and only in the stream with that id: a
    later stream of the same name has other schemas (rule T7).

    ``query_id``, ``run_id`` and ``batch_id`` are those of the micro-batch; in a batch write they
    are empty and -1.
    """

    partition: int
    attempt: int
    stream_id: str
    segments: tuple[Segment, ...] = ()
    query_id: str = ""
    run_id: str = ""
    batch_id: int = -1
    report: Report | None = None
    """What the task did; of no meaning for the commit."""


def written_by_tasks(messages: Iterable[WriterCommitMessage | None]) -> list[TaskWritten]:
    """The messages of the tasks, by partition. Spark gives None for a task that sent none.

    One for each partition: of attempts that ran again, or beside one another, Spark lets one
    commit, and hands over its message alone (rule T1).
    """
    written: list[TaskWritten] = []
    for message in messages:
        if message is not None:
            assert isinstance(message, TaskWritten), "the tasks ran this connector's writer"
            written.append(message)
    written.sort(key=lambda message: message.partition)
    assert all(a.partition < b.partition for a, b in pairwise(written)), (
        "two attempts of one partition: their rows would be there twice (rule T1)"
    )
    return written


def segments_by_partition(messages: Iterable[WriterCommitMessage | None]) -> tuple[Segment, ...]:
    """All segments in the order of the partitions, which becomes their order in the stream."""
    return tuple(segment for message in written_by_tasks(messages) for segment in message.segments)


def report_of_all(messages: Iterable[TaskWritten]) -> Report | None:
    """What the tasks of a commit did, together."""
    total: Report | None = None
    for message in messages:
        if message.report is not None:
            total = message.report if total is None else total.plus(message.report)
    return total


# -- appending -------------------------------------------------------------------------------------


class Written(NamedTuple):
    """What a task appended, and its report."""

    segments: tuple[Segment, ...]
    report: Report


def write_watched(
    options: WriteOptions,
    stream_id: str,
    batches: Iterator[pa.RecordBatch],
    new_columns: pa.Schema | None,
) -> Written:
    """``write_segments``, with a line in the log. Its time has the work of the query in it that
    makes the rows."""
    watch = TaskWatch(options.connection)
    segments = write_segments(options, stream_id, batches, new_columns)
    report = watch.report(
        "write",
        rows=sum(segment.rows for segment in segments),
        entries=sum(segment.entries for segment in segments),
        size_bytes=sum(segment.size_bytes for segment in segments),
    )
    ledgers = ", ".join(map(str, sorted({segment.ledger_id for segment in segments})))
    where = f" to ledger {ledgers}" * bool(segments)
    log_task(f"stream {options.stream!r}", where, report, to_stderr=options.task_log)
    return Written(segments, report)


def write_segments(
    options: WriteOptions,
    stream_id: str,
    batches: Iterator[pa.RecordBatch],
    new_columns: pa.Schema | None,
) -> tuple[Segment, ...]:
    """Append the rows and wait until they are confirmed. Without rows no entry is written.

    ``new_columns`` are those of the DataFrame, if the commit adds what the stream lacks of them.

    The writer is this process's and keeps its ledger open for the next task. Only the segments
    returned here can be committed; what a failed attempt wrote stays invisible. A partition that
    is small enough to keep in memory is written again after a transient error. A larger one fails
    the task, and Spark runs the task again.

    Raises the error of the last attempt.
    """
    return written_with_retries(
        f"stream {options.stream!r}",
        batches,
        lambda rows: _write_once(options, stream_id, rows, new_columns),
        (),
    )


def written_with_retries(
    subject: str,
    batches: Iterator[pa.RecordBatch],
    write_once: Callable[[Iterable[pa.RecordBatch]], T],
    nothing: T,
) -> T:
    """What ``write_once`` makes of the batches, which is repeated as ``write_segments`` says;
    ``nothing`` without rows."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return nothing
    rows = _RepeatableBatches(first, batches)
    budget = RetryBudget(f"{subject}: writing", RETRY_IN_TASK_S)
    while True:
        try:
            return write_once(rows)
        except TRANSIENT_ERRORS as error:
            if not rows.is_repeatable:
                raise
            budget.pause_or_raise(error)
        except (EntryTooLargeError, SchemaMismatchError) as error:
            if str(error).startswith("stream "):
                raise
            raise type(error)(f"{subject}: {error}") from error


def _write_once(
    options: WriteOptions,
    stream_id: str,
    rows: Iterable[pa.RecordBatch],
    new_columns: pa.Schema | None,
) -> tuple[Segment, ...]:
    writer = sessions.segment_writer(
        options.connection,
        options.stream,
        stream_id,
        compression=options.compression,
        entry_bytes=options.entry_bytes,
    )
    try:
        for batch in rows:
            writer.write(batch, merge_schema=new_columns)
        return tuple(writer.finish())
    except BaseException:
        writer.abandon()
        raise


class _RepeatableBatches:
    """The batches of a task, which may be iterated again while all that were taken from Spark fit
    in ``TASK_KEPT_BYTES_MAX``."""

    def __init__(self, first: pa.RecordBatch, following: Iterator[pa.RecordBatch]) -> None:
        self._following = following
        self._kept = [first]
        self._kept_bytes = first.nbytes

    @property
    def is_repeatable(self) -> bool:
        """Whether an iteration would begin with the first batch again."""
        return self._kept_bytes <= TASK_KEPT_BYTES_MAX

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from tuple(self._kept)
        for batch in self._following:
            self._kept_bytes += batch.nbytes
            if self.is_repeatable:
                self._kept.append(batch)
            else:
                self._kept.clear()
            yield batch
