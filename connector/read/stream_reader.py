"""LedgerStreamReader: Spark's streaming read. Positions and plans are a ``Source``'s business.

One instance lives on the driver as long as the query runs; another is pickled into the tasks and
there only reads. Spark ends the driver's process with SIGTERM and does not call ``stop()``, so
SIGTERM is turned into a normal exit, which closes the connection.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from connector import sessions
from connector.options import ReadOptions
from connector.read.offsets import OffsetJson, made_again_error
from connector.read.open_source import check_schema, open_source
from connector.read.reading import read_partition
from connector.read.source import Source
from connector.retry import START_PATIENCE_S, patiently
from spark_ledger.errors import DataLossError, NoSuchStreamError, RetryableError

T = TypeVar("T")


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Follows a stream, or a raw ledger up to its last add confirmed."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._opened: Source | None = None
        self._is_pinned = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def _source(self) -> Source:
        if self._opened is None:
            _exit_on_sigterm()
            subject = self._options.subject
            self._opened = patiently(
                self._open, f"{subject}: opening it", patience_s=START_PATIENCE_S
            )
        return self._opened

    def _open(self) -> Source:
        check_schema(self._options, self._schema)
        return open_source(self._options)

    def _ask(self, question: Callable[[Source], T], what: str) -> T:
        """The source's answer; when the stream is gone, that of the one which has its name now."""
        what, source = f"{self._options.subject}: {what}", self._source
        try:
            return patiently(lambda: question(source), what)
        except NoSuchStreamError:
            self._opened = None
        source = patiently(self._of_same_name, what)
        return patiently(lambda: question(source), what)

    def _of_same_name(self) -> Source:
        """The source over the stream that has the name now, if the query may go on with it.

        Raises DataLossError if not, and RetryableError as long as there is none.
        """
        subject = self._options.subject
        try:
            open_source(self._options)
        except NoSuchStreamError as error:
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    f"{subject} was deleted while this query was reading it: stop the query; with "
                    "failOnDataLoss=false it goes on with a new stream of that name"
                ) from error
            raise RetryableError(f"{subject} was deleted, and there is no new one yet") from error
        if self._options.fail_on_data_loss:
            raise made_again_error(subject, "the position of the query")
        source = self._source
        if self._is_pinned:
            source.pin_target()
        return source

    def initialOffset(self) -> OffsetJson:
        """Where a new query starts."""
        return self._ask(lambda source: source.initial_offset(), "its start")

    def getDefaultReadLimit(self) -> ReadLimit:
        """A token that says "the limits of the options"; or that there are none.

        Spark cannot express several limits at once, so the real ones stay in the options.
        """
        limits = self._options.trigger
        return ReadAllAvailable() if limits.unlimited else ReadMaxBytes(limits.max_bytes or 1)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run."""
        self._ask(lambda source: source.pin_target(), "its end")
        self._is_pinned = True

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:
        """Where the next micro-batch ends."""
        unlimited = isinstance(limit, ReadAllAvailable)
        return self._ask(
            lambda source: source.latest_offset(start, unlimited=unlimited), "its newest rows"
        )

    def reportLatestOffset(self) -> OffsetJson | None:
        """The end of the stream, which with ``endOffset`` shows the lag in the query's progress."""
        return self._ask(lambda source: source.newest_offset(), "its end")

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        """The plan of a micro-batch."""
        return self._ask(lambda source: source.plan(start, end), "planning a micro-batch")

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition as Arrow batches; runs in a task."""
        return read_partition(self._options, self._schema, partition)

    def commit(self, end: OffsetJson) -> None:
        """Rows before ``end`` are done with. Deletes nothing: retention is the stream's."""
        self._source.forget(end)

    def stop(self) -> None:
        """Close the connection of this process."""
        if self._opened is not None:
            self._opened = None
            sessions.discard(self._options.connection)


def _exit_on_sigterm() -> None:
    """In the driver-side reader's process: let SIGTERM unwind the stack, so stop() is called."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:

        def leave(signal_number: int, frame: FrameType | None) -> None:
            raise SystemExit(128 + signal_number)

        signal.signal(signal.SIGTERM, leave)
