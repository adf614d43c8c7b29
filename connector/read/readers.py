"""LedgerBatchReader and LedgerStreamReader: the classes that Spark calls to read.

They hold the options and the schema. Positions and plans are the business of a ``Source``, the rows
of a partition that of ``task.read_partition``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NoReturn, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from connector import sessions
from connector.garbage import set_aside
from connector.options import ReadOptions
from connector.read.offsets import AnyOffset, FormerStreamError, recreated_error
from connector.read.source import Source, check_schema, open_source
from connector.read.watched import read_watched
from connector.retry import retry_transient
from connector.sentences import one_sentence
from spark_ledger.errors import (
    ConfigurationError,
    DataLossError,
    MetadataRestoredError,
    NoSuchStreamError,
    RetryableError,
)
from spark_ledger.limits.connector import RETRY_AT_START_S

T = TypeVar("T")


@one_sentence("partitions", "read")
class LedgerBatchReader(DataSourceReader):
    """Reads what is committed when the read is planned: a snapshot between two positions.

    Made in a planner process beside Spark's driver, which plans a DataFrame once (``partitions``),
    and pickled from there into the tasks (``read``).
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The plan between the starting and the ending position."""
        what = f"{self._options.subject}: planning a read"
        try:
            planned = retry_transient(self._plan, what, budget_s=RETRY_AT_START_S)
        except MetadataRestoredError:  # an earlier read of this process has seen what is lost now
            sessions.discard(self._options.connection)
            planned = retry_transient(self._plan, what, budget_s=RETRY_AT_START_S)
        set_aside("plan")
        return planned

    def _plan(self) -> list[InputPartition]:
        check_schema(self._options, self._schema)
        source = open_source(self._options, self._schema)
        return list(source.plan(source.initial_offset(is_kept=False), source.final_offset()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition as Arrow batches; runs in a task."""
        return read_watched(self._options, self._schema, partition)


@one_sentence(
    "initialOffset",
    "prepareForTriggerAvailableNow",
    "latestOffset",
    "reportLatestOffset",
    "partitions",
    "read",
    "commit",
)
class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a stream, or a raw ledger up to its last add confirmed.

    One instance lives in the source process beside Spark's driver as long as the query runs, and
    keeps its ``Source``. Others are made in planner processes and pickled into the tasks, where
    they only ``read``; a ``Source`` is never pickled.

    Raises DataLossError (from every method of the source process) if rows that the query has to
    read next are gone and failOnDataLoss is true.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._opened: Source | None = None
        self._is_pinned = False
        self._has_begun = False
        self._started_at: AnyOffset | None = None
        """Where the query starts, if Spark had to ask: then its checkpoint has no start."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}

    @property
    def _source(self) -> Source:
        if self._opened is None:
            _exit_on_sigterm()
            subject = self._options.subject
            self._opened = retry_transient(
                self._open, f"{subject}: opening it", budget_s=RETRY_AT_START_S
            )
        return self._opened

    def _open(self) -> Source:
        check_schema(self._options, self._schema)
        return open_source(self._options, self._schema)

    def _ask(self, question: Callable[[Source], T], what: str) -> T:
        """The source's answer. If its stream was deleted, or was so before this process opened it,
        the answer of the stream that has the name now."""
        operation, source = f"{self._options.subject}: {what}", self._source
        try:
            return retry_transient(lambda: question(source), operation)
        except NoSuchStreamError as error:
            self._opened = None
            may_fit = isinstance(error, FormerStreamError)
        source = retry_transient(lambda: self._source_of_new_stream(may_fit=may_fit), operation)
        return retry_transient(lambda: question(source), operation)

    def _source_of_new_stream(self, *, may_fit: bool) -> Source:
        """The source of the stream that has the name now, if the query may go on with it.
        ``may_fit``: the query's position may be one of that stream, which it tells itself.

        Raises DataLossError if it may not, RetryableError if there is no such stream yet.
        """
        subject = self._options.subject
        try:
            open_source(self._options)
        except NoSuchStreamError as error:
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    f"{subject} was deleted while this query was reading it: the query ends; with "
                    "failOnDataLoss=false it goes on with a new stream of that name"
                ) from error
            raise RetryableError(f"{subject} was deleted, and there is no new one yet") from error
        if self._options.fail_on_data_loss and not may_fit:
            raise recreated_error(subject, "the position of the query")
        source = self._source
        if self._is_pinned:
            source.pin_target()
        return source

    def initialOffset(self) -> AnyOffset:
        """Where a query starts whose checkpoint does not know it: a new one, or one that repeats
        its first micro-batch."""
        self._started_at = self._ask(
            lambda source: source.initial_offset(), "finding where it starts"
        )
        return self._started_at

    def _start_moves(self) -> bool:
        return self._options.start_may_move and self._ask(
            lambda source: source.start_moves(), "finding where it starts"
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Whether the options have limits. Spark hands the answer back to ``latestOffset``.

        Spark cannot express several limits at once, so the numbers stay in the options.
        """
        limits = self._options.trigger
        return ReadAllAvailable() if limits.unlimited else ReadMaxBytes(limits.max_bytes or 1)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run."""
        self._ask(lambda source: source.pin_target(), "finding where it ends")
        self._is_pinned = True

    def latestOffset(self, start: AnyOffset, limit: ReadLimit) -> AnyOffset:
        """Where the next micro-batch ends.

        The first one of a query whose start moves is empty (rule T31): Spark's checkpoint holds
        where it ends, and when it is repeated after a restart, Spark asks for the start anew.
        The options are not asked where a query starts that goes on: what they name may be gone, or
        be where the checkpoint ends.
        """
        begins, self._has_begun = not self._has_begun, True
        if begins and start == self._started_at and self._start_moves():
            return start
        unlimited = isinstance(limit, ReadAllAvailable)
        return self._ask(
            lambda source: source.latest_offset(start, unlimited=unlimited),
            "finding its newest rows",
        )

    def reportLatestOffset(self) -> AnyOffset | None:
        """The end of the stream, which with ``endOffset`` shows the lag in the query's progress."""
        return self._ask(lambda source: source.newest_offset(), "finding where it ends")

    def partitions(self, start: AnyOffset, end: AnyOffset) -> Sequence[InputPartition]:
        """The plan of a micro-batch."""
        self._has_begun = True  # planned before any end was asked for: a micro-batch is repeated
        return self._ask(lambda source: source.plan(start, end), "planning a micro-batch")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition as Arrow batches; runs in a task."""
        return read_watched(self._options, self._schema, partition)

    def commit(self, end: AnyOffset) -> None:
        """Rows before ``end`` are done with. Deletes nothing: retention is the stream's."""
        self._source.forget(end)

    def stop(self) -> None:
        """Close the connection of this process."""
        if self._opened is not None:
            self._opened = None
            sessions.discard(self._options.connection)


@one_sentence(
    "initialOffset",
    "prepareForTriggerAvailableNow",
    "latestOffset",
    "getDefaultReadLimit",
    "reportLatestOffset",
    "partitions",
    "read",
)
class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a query whose options are wrong: says so when it is first asked.

    Spark's runner that gets no reader at all fails a second time when it wants to stop that, so
    the user would see both tracebacks, and the sentence between them.
    """

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def _refuse(self, *given: object, **named: object) -> NoReturn:
        raise self._error

    initialOffset = prepareForTriggerAvailableNow = latestOffset = _refuse
    getDefaultReadLimit = reportLatestOffset = partitions = read = _refuse


def _exit_on_sigterm() -> None:
    """Turn SIGTERM into a normal exit of the source process.

    Spark ends that process with SIGTERM. An exit by exception unwinds the stack to Spark's runner,
    which calls ``stop()``, and that closes the connection.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:

        def leave(signal_number: int, frame: FrameType | None) -> None:
            raise SystemExit(128 + signal_number)

        signal.signal(signal.SIGTERM, leave)
