"""LedgerBatchWriter: Spark's batch write, one commit per write.

With ``txnAppId`` and ``txnVersion`` a write happens at most once: a version that is not above the
newest committed one of the application is skipped with a warning, as Delta does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.types import StructType

from connector import sessions
from connector.options import WriteOptions
from connector.retry import patiently
from connector.write.messages import TaskWritten, in_partition_order
from connector.write.writing import prepare_stream, write_segments
from spark_ledger.errors import ConflictError

_LOG: Final = logging.getLogger(__name__)


class LedgerBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Appends the rows of a DataFrame; with mode overwrite they replace what the stream holds."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._stream_id = prepare_stream(options, schema)
        self._skipped = self._is_done()

    def _is_done(self) -> bool:
        """Whether the application has committed this version, or a later one, already."""
        application, version = self._options.transaction_app, self._options.transaction_version
        if application is None or version is None:
            return False
        record = patiently(
            lambda: self._stream().last_transaction(application),
            f"stream {self._options.stream!r}: the last transaction of {application!r}",
        )
        if record is None or record.transaction_id < version:
            return False
        _LOG.warning(
            "stream %r: the write of txnAppId %r with txnVersion %d is skipped, because txnVersion "
            "%d was committed before; to write these rows, use a higher txnVersion",
            self._options.stream,
            application,
            version,
            record.transaction_id,
        )
        return True

    def _stream(self) -> Any:
        options = self._options
        return sessions.stream(options.connection, options.stream, self._stream_id)

    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        """Append a partition; runs in a task. A skipped write only drains its input, because Spark
        throws away the Python processes of a task that leaves some of it."""
        context = TaskContext.get()
        assert context is not None, "Spark calls write() in a task"
        stream_id = self._stream_id
        segments = () if self._skipped else write_segments(self._options, stream_id, iterator)
        for _ in iterator:
            pass
        return TaskWritten(context.partitionId(), context.attemptNumber(), stream_id, segments)

    def commit(self, messages: Sequence[TaskWritten | None]) -> None:
        """Make all rows visible at once."""
        if self._skipped:
            return
        segments = in_partition_order(messages)
        if not segments and not self._overwrite:
            return
        options = self._options
        try:
            patiently(
                lambda: self._stream().commit_segments(
                    segments,
                    sink_id=options.transaction_app,
                    transaction_id=options.transaction_version,
                    overwrite=self._overwrite,
                ),
                f"stream {options.stream!r}: the commit of a batch write",
                idempotent=options.transaction_app is not None,
            )
        except ConflictError:
            if not self._is_done():
                raise

    def abort(self, messages: Sequence[TaskWritten | None]) -> None:
        """Delete nothing: what tasks wrote is in no commit, so nobody sees it."""
        _LOG.warning("stream %r: a batch write was aborted", self._options.stream)
