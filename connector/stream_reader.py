"""LedgerStreamReader: Spark's streaming read. Positions and plans are a ``Source``'s business.

One instance lives on the driver as long as the query runs; another is pickled into the tasks and
there only reads. Spark ends the driver's process with SIGTERM and does not call ``stop()``, so
SIGTERM is turned into a normal exit, which closes the connection.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from connector import sessions
from connector.access import check_schema, open_source
from connector.options import ReadOptions
from connector.patience import START_PATIENCE_S, patiently
from connector.reading import read_partition
from connector.source import Source


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Follows a stream, or a raw ledger up to its last add confirmed."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._opened: Source | None = None

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

    def initialOffset(self) -> dict[str, int]:
        """Where a new query starts."""
        source = self._source
        return patiently(source.initial_offset, f"{self._options.subject}: its start")

    def getDefaultReadLimit(self) -> ReadLimit:
        """A token that says "the limits of the options"; or that there are none.

        Spark cannot express several limits at once, so the real ones stay in the options.
        """
        limits = self._options.trigger
        return ReadAllAvailable() if limits.unlimited else ReadMaxBytes(limits.max_bytes or 1)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run."""
        source = self._source
        patiently(source.pin_target, f"{self._options.subject}: its end")

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Where the next micro-batch ends."""
        source, unlimited = self._source, isinstance(limit, ReadAllAvailable)
        return patiently(
            lambda: source.latest_offset(start, unlimited=unlimited),
            f"{self._options.subject}: its newest rows",
        )

    def reportLatestOffset(self) -> dict[str, int] | None:
        """The end of the stream, which with ``endOffset`` shows the lag in the query's progress."""
        source = self._source
        return patiently(source.newest_offset, f"{self._options.subject}: its end")

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The plan of a micro-batch."""
        source = self._source
        return patiently(
            lambda: source.plan(start, end), f"{self._options.subject}: planning a micro-batch"
        )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition as Arrow batches; runs in a task."""
        return read_partition(self._options, self._schema, partition)

    def commit(self, end: dict[str, int]) -> None:
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
