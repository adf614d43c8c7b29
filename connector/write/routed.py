"""RoutedBatchWriter and RoutedStreamWriter: writes whose rows go to the streams that they name.

One commit shows all rows of a write, or of a micro-batch, in all of its streams at once (rule T22).
Pickled from the planner process into the tasks, as the writers of one stream are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

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
from connector.write.repeated import (
    MicroBatch,
    check_repeated,
    check_sink_name,
    is_first_of_run,
    run_of,
)
from connector.write.routed_task import Part, TaskRouted, route_of, write_routed
from connector.write.task import report_of_all, streaming_task, written_by_tasks
from spark_ledger.errors import ConfigurationError, ConflictError
from spark_ledger.spark.reports import send
from spark_ledger.stream.model import Commit, Segment

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream

logger = logging.getLogger(__name__)


def parts_by_stream(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    """What all tasks wrote, by stream; the segments of each in the order of the partitions.

    Raises ConflictError if two tasks wrote to different streams of one name.
    """
    found: dict[str, Part] = {}
    for message in written_by_tasks(messages):
        assert isinstance(message, TaskRouted), "the tasks ran this writer"
        for part in message.parts:
            known = found.setdefault(part.name, Part(part.name, part.stream_id, ()))
            if known.stream_id != part.stream_id:
                raise ConflictError(
                    f"stream {part.name!r} was deleted and created again while rows were written "
                    "to it; nothing was committed: start the write again"
                )
            found[part.name] = known._replace(segments=known.segments + part.segments)
    return [found[name] for name in sorted(found)]


def open_parts(options: WriteOptions, parts: Sequence[Part]) -> list[tuple[Stream, Part]]:
    """The handles of the streams that the tasks wrote to. Raises as ``written_streams``."""
    streams = written_streams(options, [(part.name, part.stream_id) for part in parts])
    return list(zip(streams, parts, strict=True))


@one_sentence("write", "commit")
class RoutedBatchWriter(DataSourceArrowWriter):
    """Appends the rows of a DataFrame to the streams that a column names, in one commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                "mode overwrite does not go with the option routeColumn, as it is not known which "
                "streams would be emptied: use mode append"
            )
        self._options = options
        self._route = route_of(options, schema)

    # The override is DataSourceArrowWriter's own: batches instead of rows.
    @starts_anew_if_restored
    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TaskRouted:
        """Append a partition; runs in a task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls write() in a task"
        parts, _ = write_routed(self._options, self._route, iterator)
        return TaskRouted(context.partitionId(), context.attemptNumber(), "", parts=parts)

    @starts_anew_if_restored
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows visible at once; runs in the commit process."""
        options, parts = self._options, parts_by_stream(messages)
        application, version = options.transaction_app, options.transaction_version
        opened = open_parts(options, parts)
        try:
            commits = retry_transient(
                lambda: sessions.connection(options.connection).commit_to(
                    [(stream, part.segments) for stream, part in opened],
                    sink_id=application,
                    transaction_id=version,
                    new_columns=_new_columns(options, self._route.stored),
                ),
                f"{options.subject}: the commit of a batch write",
                idempotent=application is not None,
            )
        except ConflictError:
            if (
                application is None
                or version is None
                or not _have_all(opened, application, version)
            ):
                raise
            commits = []
        found = zip(commits, parts, strict=False)
        if opened and not any(commit.applied or _is_of(commit, part) for commit, part in found):
            logger.warning(
                "%s: the write of txnAppId %r with txnVersion %s is skipped, because that one or a "
                "later one was committed before; to write these rows, use a higher txnVersion",
                options.subject,
                application,
                version,
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete nothing: what the tasks wrote is in no commit, so nobody sees it (rule T1)."""
        logger.warning("%s: a batch write was aborted", self._options.subject)


def _new_columns(options: WriteOptions, stored: StructType) -> pa.Schema | None:
    return arrow_schema_of(stored) if options.merge_schema else None


def _is_of(commit: Commit, part: Part) -> bool:
    """Whether a commit that was found has what this write wrote: then it is its own, whose answer
    was lost."""
    of_commit, written = (
        [(each.ledger_id, each.first_entry, each.last_entry) for each in segments]
        for segments in (commit.segments, part.segments)
    )
    return of_commit == written


def _have_all(opened: Sequence[tuple[Stream, Part]], application: str, version: int) -> bool:
    """Whether each stream has this version of the application, or a later one."""
    records = [stream.last_transaction(application) for stream, _ in opened]
    return all(each is not None and each.transaction_id >= version for each in records)


@one_sentence("write", "commit")
class RoutedStreamWriter(DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch exactly once to the streams that a column names."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                "a log only grows, so output modes other than append are not possible; use "
                "outputMode('append')"
            )
        self._options = options
        self._route = route_of(options, schema)

    # The override is DataSourceStreamArrowWriter's own: batches instead of rows.
    @starts_anew_if_restored
    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TaskRouted:
        """Append a partition; runs in a task."""
        task = streaming_task(TaskContext.get())
        parts, report = write_routed(self._options, self._route, iterator)
        return TaskRouted(
            partition=task.partition,
            attempt=task.attempt,
            stream_id="",
            query_id=task.query_id,
            run_id=task.run_id,
            batch_id=task.batch_id,
            report=report,
            parts=parts,
        )

    @starts_anew_if_restored
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the micro-batch visible in all of its streams, or in none; a second time nothing
        changes. Raises as ``LedgerStreamWriter.commit``."""
        written = written_by_tasks(messages)
        if not written:
            raise ConfigurationError(
                f"{self._options.subject}: Spark hands over no rows, as under a continuous "
                "trigger: use trigger(processingTime=...) or trigger(availableNow=True)"
            )
        first, parts = written[0], parts_by_stream(messages)
        rows = sum(segment.rows for part in parts for segment in part.segments)
        batch = MicroBatch(
            sink_id=self._options.sink_id or first.query_id,
            query_id=first.query_id,
            run_id=first.run_id,
            batch_id=batchId,
            segments=(),
            shared=f"{rows} rows in {len(parts)} streams",
        )
        began = time.monotonic()
        self._commit(batch, open_parts(self._options, parts))
        report = report_of_all(written)
        if report is not None:
            took_s = time.monotonic() - began
            send(first.run_id, structs.replace(report, commit_seconds=took_s))
        set_aside("commit")

    def _commit(self, batch: MicroBatch, opened: list[tuple[Stream, Part]]) -> None:
        operation = f"{self._options.subject}: the commit of micro-batch {batch.batch_id}"
        may_be_repeated = is_first_of_run(batch)
        if may_be_repeated:
            for stream, _ in opened:
                retry_transient(partial(check_sink_name, stream, batch), operation)
        offered: list[tuple[Stream, Sequence[Segment]]] = [(s, p.segments) for s, p in opened]
        try:
            commits = retry_transient(
                lambda: sessions.connection(self._options.connection).commit_to(
                    offered,
                    sink_id=batch.sink_id,
                    transaction_id=batch.batch_id,
                    run_id=batch.noted_run,
                    new_columns=_new_columns(self._options, self._route.stored),
                ),
                operation,
                idempotent=True,  # a sink commits a batch id at most once (rule T3)
            )
        except ConflictError as error:
            if not (may_be_repeated and self._keeps_what_is_there(batch, opened)):
                raise
            logger.warning("%s; what was committed is kept, because failOnDataLoss=false", error)
            return
        for (stream, part), commit in zip(opened, commits, strict=True):
            if not commit.applied and run_of(commit.run_id) != batch.run:
                check_repeated(
                    commit,
                    replace(batch, segments=part.segments),
                    stream.name,
                    is_first_of_run=may_be_repeated,
                    fail_on_data_loss=self._options.fail_on_data_loss,
                )

    def _keeps_what_is_there(self, batch: MicroBatch, opened: list[tuple[Stream, Part]]) -> bool:
        """Whether some of the streams have this micro-batch, and the others may go without it."""
        if self._options.fail_on_data_loss:
            return False
        records = [stream.last_transaction(batch.sink_id) for stream, _ in opened]
        return any(each is not None and each.transaction_id == batch.batch_id for each in records)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete nothing: the commit may have taken effect although Spark saw it fail."""
        logger.warning(
            "%s: micro-batch %d was aborted; what its tasks wrote stays invisible unless its "
            "commit did take effect",
            self._options.subject,
            batchId,
        )
