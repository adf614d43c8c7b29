"""LedgerStreamWriter: Spark's streaming sink. Tasks append entries; one commit shows them all.

Tasks write segments that nobody can see. The driver's commit names them in one transaction under
(sink id, batch id), which a stream applies at most once: a micro-batch that is replayed after its
commit changes nothing. Attempts that lose, and batches that are aborted, leave entries behind that
no commit names, and no reader sees.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from connector import sessions
from connector.messages import TaskWritten, in_partition_order
from connector.options import WriteOptions
from connector.patience import patiently
from connector.task_identity import streaming_task
from connector.writing import prepare_stream, write_segments
from spark_ledger.errors import ConfigurationError, ConflictError
from spark_ledger.stream.model import Commit

_LOG: Final = logging.getLogger(__name__)

_FIRST_BATCH_OF_RUN: dict[tuple[str, str], int] = {}
"""The first micro-batch each run committed through this process. Only that one may be a replay."""

_RUNS_REMEMBERED: Final = 1024


class LedgerStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Appends the rows of each micro-batch exactly once."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                f"stream {options.stream!r}: a log only grows, so output modes other than append "
                "are not possible; use outputMode('append')"
            )
        self._options = options
        self._schema = schema
        prepare_stream(options, schema)

    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        """Append a partition; runs in a task."""
        task = streaming_task(TaskContext.get())
        segments = write_segments(self._options, iterator)
        return TaskWritten(
            partition=task.partition,
            attempt=task.attempt,
            segments=segments,
            query_id=task.query_id,
            run_id=task.run_id,
            batch_id=task.batch_id,
        )

    def commit(self, messages: Sequence[TaskWritten | None], batchId: int) -> None:
        """Make the micro-batch visible, all of it or nothing; a second time nothing changes.

        Raises ConflictError when another driver works on the same checkpoint or a copy of it.
        """
        first = next(message for message in messages if message is not None)
        assert first.batch_id == batchId, "messages are of this micro-batch"
        sink_id = self._options.sink_id or first.query_id
        run = f"{first.query_id}/{first.run_id}"
        is_first_of_run = _is_first_of_run(sink_id, run, batchId)
        segments = in_partition_order(messages)
        if not segments:
            return
        stream = sessions.stream(self._options.connection, self._options.stream)
        commit = patiently(
            lambda: stream.commit_segments(
                segments, sink_id=sink_id, transaction_id=batchId, run_id=run
            ),
            f"stream {self._options.stream!r}: the commit of micro-batch {batchId}",
            idempotent=True,
        )
        if commit.applied or commit.run_id == run:
            return
        self._check_replay(commit, sink_id, run, batchId, is_first_of_run=is_first_of_run)
        _report_replay(self._options.stream, batchId, commit.rows, segments)

    def _check_replay(
        self, commit: Commit, sink_id: str, run: str, batch_id: int, *, is_first_of_run: bool
    ) -> None:
        """The batch was committed by another run. That is a replay if that run is over and was of
        this query; a run replays at most its first batch."""
        where = f"stream {self._options.stream!r}: micro-batch {batch_id} of sink {sink_id!r}"
        query, other_query = run.partition("/")[0], commit.run_id.partition("/")[0]
        if query != other_query:
            raise ConflictError(
                f"{where} was committed by the query {other_query}, and this is the query {query}: "
                "the checkpoint was deleted or reset while the sinkId stayed the same, or two "
                "queries have one sinkId; use a new sinkId"
            )
        if not is_first_of_run:
            raise ConflictError(
                f"{where} was committed by another run ({commit.run_id}) while this one ({run}) "
                "was going on: a second driver runs on the same checkpoint, or on a copy of it; "
                "stop one of them, or give them different checkpoints and sinkId options"
            )

    def abort(self, messages: Sequence[TaskWritten | None], batchId: int) -> None:
        """Delete nothing: the commit may have taken effect although Spark saw it fail."""
        _LOG.warning(
            "stream %r: micro-batch %d was aborted; what its tasks wrote stays invisible unless "
            "its commit did take effect",
            self._options.stream,
            batchId,
        )


def _is_first_of_run(sink_id: str, run: str, batch_id: int) -> bool:
    """Whether this is the first micro-batch of a run, as far as this process has seen."""
    first = _FIRST_BATCH_OF_RUN.setdefault((sink_id, run), batch_id)
    if len(_FIRST_BATCH_OF_RUN) > _RUNS_REMEMBERED:
        del _FIRST_BATCH_OF_RUN[next(iter(_FIRST_BATCH_OF_RUN))]
    return first == batch_id


def _report_replay(stream: str, batch_id: int, rows_then: int, segments: Sequence[Any]) -> None:
    rows_now = sum(segment.rows for segment in segments)
    if rows_now == rows_then:
        _LOG.info("stream %r: micro-batch %d was committed before the restart", stream, batch_id)
        return
    _LOG.warning(
        "stream %r: micro-batch %d was committed before this run started with %d rows; its replay "
        "has %d, which were left out. The query is not deterministic, or the checkpoint is an old "
        "copy: then use a new checkpoint and a new sinkId",
        stream,
        batch_id,
        rows_then,
        rows_now,
    )
