"""LedgerBatchWriter and LedgerStreamWriter: the classes that Spark calls to write.

A batch write is one commit, a streaming write is one commit per micro-batch. Both are pickled from
the planner process into the tasks, so they hold options, ids and flags, and no connection.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import structs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from connector import sessions
from connector.garbage import set_aside
from connector.options import WriteOptions
from connector.retry import retry_transient
from connector.schema import arrow_schema_of
from connector.sentences import one_sentence
from connector.write.handles import starts_anew_if_restored, written_streams
from connector.write.prepare import check_written, prepare_stream
from connector.write.repeated import (
    MicroBatch,
    check_repeated,
    check_sink_name,
    committed_before,
    is_first_of_run,
)
from connector.write.task import (
    TaskWritten,
    report_of_all,
    segments_by_partition,
    streaming_task,
    write_watched,
    written_by_tasks,
)
from spark_ledger.errors import ConfigurationError, ConflictError
from spark_ledger.spark.reports import send

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream
    from spark_ledger.stream.model import Segment

logger = logging.getLogger(__name__)

_COMMIT_RUNNER: Final = "pyspark.sql.worker.python_streaming_sink_runner"
"""What Spark runs in a process that commits micro-batches, and in no other, in 4.2 and 4.3."""


def _only_commits() -> bool:
    """Whether this is such a process. Where that cannot be told a stream is prepared once more,
    which costs a few milliseconds and changes nothing."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _COMMIT_RUNNER in (*sys.argv[1:2], spec and spec.name)


@one_sentence("write", "commit")
class LedgerBatchWriter(DataSourceArrowWriter):
    """Appends the rows of a DataFrame; with mode overwrite they replace what the stream holds.

    With ``txnAppId`` and ``txnVersion`` a write happens at most once: a version that is not above
    the newest committed one of the application is skipped with a warning, as Delta does.

    Made in a planner process beside Spark's driver. Pickled into the tasks (``write``) and into the
    commit process (``commit``, ``abort``), which get the stream id and whether to skip with it.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._stream_id = prepare_stream(options, schema)
        self._new_columns = arrow_schema_of(schema) if options.merge_schema else None
        self._skipped = self._is_committed()

    def _is_committed(self) -> bool:
        """Whether the application has committed this version, or a later one, already."""
        application, version = self._options.transaction_app, self._options.transaction_version
        if application is None or version is None:
            return False
        record = retry_transient(
            lambda: self._stream().last_transaction(application),
            f"stream {self._options.stream!r}: the last transaction of {application!r}",
        )
        if record is None or record.transaction_id < version:
            return False
        logger.warning(
            "stream %r: the write of txnAppId %r with txnVersion %d is skipped, because txnVersion "
            "%d was committed before; to write these rows, use a higher txnVersion",
            self._options.stream,
            application,
            version,
            record.transaction_id,
        )
        return True

    def _stream(self) -> Stream:
        options = self._options
        return sessions.stream(options.connection, options.stream, self._stream_id)

    # The override is DataSourceArrowWriter's own: batches instead of rows.
    @starts_anew_if_restored
    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TaskWritten:
        """Append a partition; runs in a task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls write() in a task"
        stream_id = self._stream_id
        segments: tuple[Segment, ...] = ()
        if not self._skipped:
            segments = write_watched(self._options, stream_id, iterator, self._new_columns).segments
        # A skipped write drains its input: Spark ends the Python process of a task that leaves
        # some of it.
        for _ in iterator:
            pass
        return TaskWritten(context.partitionId(), context.attemptNumber(), stream_id, segments)

    @starts_anew_if_restored
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows visible at once; runs in the commit process."""
        if self._skipped:
            return
        segments = segments_by_partition(messages)
        if not segments and not self._overwrite and not self._adds_columns():
            return
        options = self._options
        check_written(f"stream {options.stream!r}", segments, self._new_columns)
        try:
            retry_transient(
                lambda: self._stream().commit_segments(
                    segments,
                    sink_id=options.transaction_app,
                    transaction_id=options.transaction_version,
                    overwrite=self._overwrite,
                    new_columns=self._new_columns,
                ),
                f"stream {options.stream!r}: the commit of a batch write",
                # Only a named transaction is applied at most once (rule T3).
                idempotent=options.transaction_app is not None,
            )
        except ConflictError:
            if not self._is_committed():
                raise

    def _adds_columns(self) -> bool:
        """Whether the stream lacks a column, which counts also for a write without rows."""
        if self._new_columns is None:
            return False
        columns, name = self._new_columns, self._options.stream
        known = retry_transient(
            lambda: {each.lower() for each in self._stream().refresh().schema.names},
            f"stream {name!r}: reading its schema",
        )
        return any(
            field.name.lower() not in known and not pa.types.is_null(field.type)
            for field in columns
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete nothing: what the tasks wrote is in no commit, so nobody sees it (rule T1)."""
        logger.warning("stream %r: a batch write was aborted", self._options.stream)


@one_sentence("write", "commit")
class LedgerStreamWriter(DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch exactly once.

    Made twice per micro-batch: in a planner process, and pickled from there into the tasks
    (``write``); and in the commit process beside Spark's driver (``commit``, ``abort``), which
    needs no stream prepared: the tasks say which one they wrote to.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                f"stream {options.stream!r}: a log only grows, so output modes other than append "
                "are not possible; use outputMode('append')"
            )
        self._options = options
        self._schema = schema
        self._prepared: tuple[str, pa.Schema | None] | None = None
        if not _only_commits():
            self._prepare()

    def _prepare(self) -> tuple[str, pa.Schema | None]:
        """The id of the stream that takes the rows, and the columns that the commit may add."""
        if self._prepared is None:
            stream_id = prepare_stream(self._options, self._schema)
            self._prepared = stream_id, self._new_columns()
        return self._prepared

    def _new_columns(self) -> pa.Schema | None:
        if self._prepared is not None:
            return self._prepared[1]
        return arrow_schema_of(self._schema) if self._options.merge_schema else None

    def __getstate__(self) -> dict[str, object]:
        self._prepare()  # tasks that prepared it themselves might find another stream of the name
        return {**self.__dict__, "_schema": StructType()}  # which has done its work

    # The override is DataSourceStreamArrowWriter's own: batches instead of rows.
    @starts_anew_if_restored
    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TaskWritten:
        """Append a partition; runs in a task."""
        task = streaming_task(TaskContext.get())
        stream_id, new_columns = self._prepare()
        segments, report = write_watched(self._options, stream_id, iterator, new_columns)
        return TaskWritten(
            partition=task.partition,
            attempt=task.attempt,
            stream_id=stream_id,
            segments=segments,
            query_id=task.query_id,
            run_id=task.run_id,
            batch_id=task.batch_id,
            report=report,
        )

    @starts_anew_if_restored
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the micro-batch visible, all of it or nothing; a second time nothing changes.

        Raises ConflictError if another driver works on the same checkpoint or a copy of it, or if
        the micro-batch is not the one that was committed under its name, ConfigurationError under
        a continuous trigger.
        """
        written = written_by_tasks(messages)
        if not written:  # a continuous trigger gives no rows to Python sinks and reports no error
            raise ConfigurationError(
                f"stream {self._options.stream!r}: Spark hands over no rows, as under a continuous "
                "trigger, which Python data sources cannot write under; nothing was written: use "
                "trigger(processingTime=...) or trigger(availableNow=True)"
            )
        first = written[0]
        assert first.batch_id == batchId, "messages are of this micro-batch"
        batch = MicroBatch(
            sink_id=self._options.sink_id or first.query_id,
            query_id=first.query_id,
            run_id=first.run_id,
            batch_id=batchId,
            segments=segments_by_partition(messages),
        )
        began = time.monotonic()
        self._commit(batch, first.stream_id)
        report = report_of_all(written)
        if report is not None:
            took_s = time.monotonic() - began
            send(first.run_id, structs.replace(report, commit_seconds=took_s))
        set_aside("commit")

    def _commit(self, batch: MicroBatch, stream_id: str) -> None:
        # The tasks' stream, not the one that has the name now: it may have been made again since,
        # and the segments fit only the schemas of theirs (rule T7).
        (stream,) = written_streams(self._options, [(self._options.stream, stream_id)])
        check_written(f"stream {stream.name!r}", batch.segments, self._new_columns())
        operation = f"stream {stream.name!r}: the commit of micro-batch {batch.batch_id}"
        may_be_repeated = is_first_of_run(batch)
        if may_be_repeated:
            retry_transient(lambda: check_sink_name(stream, batch), operation)
        if not batch.segments:
            commit = retry_transient(lambda: committed_before(stream, batch), operation)
        else:
            commit = retry_transient(
                lambda: stream.commit_segments(
                    batch.segments,
                    sink_id=batch.sink_id,
                    transaction_id=batch.batch_id,
                    run_id=batch.run,
                ),
                operation,
                idempotent=True,  # a sink commits a batch id at most once (rule T3)
            )
        if commit is not None and not commit.applied and commit.run_id != batch.run:
            check_repeated(
                commit,
                batch,
                stream.name,
                is_first_of_run=may_be_repeated,
                fail_on_data_loss=self._options.fail_on_data_loss,
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete nothing: the commit may have taken effect although Spark saw it fail."""
        logger.warning(
            "stream %r: micro-batch %d was aborted; what its tasks wrote stays invisible unless "
            "its commit did take effect",
            self._options.stream,
            batchId,
        )
