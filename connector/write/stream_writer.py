"""LedgerStreamWriter: Spark's streaming sink. Tasks append entries; one commit shows them all.

Tasks write segments that nobody can see. The driver's commit names them in one transaction under
(sink id, batch id), which a stream applies at most once: a micro-batch that is replayed after its
commit changes nothing. Attempts that lose, and batches that are aborted, leave entries behind that
no commit names, and no reader sees.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from connector import sessions
from connector.options import WriteOptions
from connector.retry import patiently
from connector.write.messages import TaskWritten, in_partition_order
from connector.write.task_identity import streaming_task
from connector.write.writing import prepare_stream, write_segments
from spark_ledger.errors import ConfigurationError, ConflictError
from spark_ledger.stream.model import Commit, Segment

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream

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
        self._stream_id = prepare_stream(options, schema)

    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        """Append a partition; runs in a task."""
        task = streaming_task(TaskContext.get())
        segments = write_segments(self._options, self._stream_id, iterator)
        return TaskWritten(
            partition=task.partition,
            attempt=task.attempt,
            stream_id=self._stream_id,
            segments=segments,
            query_id=task.query_id,
            run_id=task.run_id,
            batch_id=task.batch_id,
        )

    def commit(self, messages: Sequence[TaskWritten | None], batchId: int) -> None:
        """Make the micro-batch visible, all of it or nothing; a second time nothing changes.

        Raises ConflictError when another driver works on the same checkpoint or a copy of it, or
        when the micro-batch is not the one that was committed under its name, and
        ConfigurationError under a continuous trigger.
        """
        first = next((message for message in messages if message is not None), None)
        if first is None:  # a continuous query gives rows to no Python sink, and says nothing of it
            raise ConfigurationError(
                f"stream {self._options.stream!r}: Spark hands over no rows, as under a continuous "
                "trigger, which Python data sources cannot write under; nothing was written: use "
                "trigger(processingTime=...) or trigger(availableNow=True)"
            )
        assert first.batch_id == batchId, "messages are of this micro-batch"
        offer = _Offer(
            sink_id=self._options.sink_id or first.query_id,
            query_id=first.query_id,
            run_id=first.run_id,
            batch_id=batchId,
            segments=in_partition_order(messages),
        )
        is_first_of_run = _is_first_of_run(offer)
        stream = sessions.stream(self._options.connection, self._options.stream, first.stream_id)
        what = f"stream {self._options.stream!r}: the commit of micro-batch {batchId}"
        if is_first_of_run:
            patiently(lambda: _refuse_new_name(stream, offer), what)
        if not offer.segments:
            found = patiently(lambda: _committed_as(stream, offer), what)
        else:
            found = patiently(
                lambda: stream.commit_segments(
                    offer.segments,
                    sink_id=offer.sink_id,
                    transaction_id=batchId,
                    run_id=offer.run,
                ),
                what,
                idempotent=True,
            )
        if found is not None and not found.applied and found.run_id != offer.run:
            self._check_replay(found, offer, is_first_of_run=is_first_of_run)

    def _check_replay(self, commit: Commit, offer: _Offer, *, is_first_of_run: bool) -> None:
        """The batch was committed by another run. That is a replay if that run is over, was of
        this query, and had the same rows; a run replays at most its first batch."""
        where = (
            f"stream {self._options.stream!r}: micro-batch {offer.batch_id} of sink "
            f"{offer.sink_id!r}"
        )
        other_query = commit.run_id.partition("/")[0]
        if offer.query_id != other_query:
            raise ConflictError(
                f"{where} was committed by the query {other_query}, and this is the query "
                f"{offer.query_id}: the checkpoint was deleted or reset while the sinkId stayed "
                "the same, or two queries have one sinkId; use a new sinkId"
            )
        if not is_first_of_run:
            raise ConflictError(
                f"{where} was committed by another run ({commit.run_id}) while this one "
                f"({offer.run}) was going on: a second driver runs on the same checkpoint, or on a "
                "copy of it; stop one of them, or give them different checkpoints and sinkId "
                "options"
            )
        if commit.rows == offer.rows:
            _LOG.info("%s was committed before the restart", where)
            return
        differs = (
            f"{where} was committed before this run started, as commit {commit.number} with "
            f"{commit.rows} rows; now it has {offer.rows}, which were left out"
        )
        if self._options.fail_on_data_loss:
            raise ConflictError(
                f"{differs}: an older copy of the checkpoint was restored, or another driver ran "
                "on a copy, and the micro-batch was planned anew. To go on would lose rows or "
                "repeat them: use a new checkpoint, a new sinkId and a startingPosition. Only if "
                "the query itself gives other rows each time it runs (rand(), a join with a table "
                "that changes) set failOnDataLoss=false, which keeps the rows of the commit"
            )
        _LOG.warning("%s, because failOnDataLoss=false", differs)

    def abort(self, messages: Sequence[TaskWritten | None], batchId: int) -> None:
        """Delete nothing: the commit may have taken effect although Spark saw it fail."""
        _LOG.warning(
            "stream %r: micro-batch %d was aborted; what its tasks wrote stays invisible unless "
            "its commit did take effect",
            self._options.stream,
            batchId,
        )


@dataclass(frozen=True, slots=True)
class _Offer:
    """A micro-batch as its tasks wrote it, and who offers it."""

    sink_id: str
    query_id: str
    run_id: str
    batch_id: int
    segments: tuple[Segment, ...]

    @property
    def run(self) -> str:
        """The run as commits name it."""
        return f"{self.query_id}/{self.run_id}"

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)


def _committed_as(stream: Stream, offer: _Offer) -> Commit | None:
    """What was committed under the name of a micro-batch that has no rows now; None if nothing.

    Raises ConflictError when the sink has gone further already.
    """
    record = stream.last_transaction(offer.sink_id)
    if record is None or record.transaction_id < offer.batch_id:
        return None
    if record.transaction_id > offer.batch_id:
        raise ConflictError(
            f"stream {stream.name!r}: sink {offer.sink_id!r} is at micro-batch {offer.batch_id}, "
            f"which is empty, but it has already committed micro-batch {record.transaction_id} "
            f"(run {record.run_id}): a second, slower driver runs on the same checkpoint, or an "
            "older copy of it was restored; stop the driver, or use a new checkpoint and sinkId"
        )
    return replace(stream.commit(record.commit), applied=False)


def _refuse_new_name(stream: Stream, offer: _Offer) -> None:
    """A query that has committed this micro-batch under another sink name would append it twice.

    Raises ConflictError. A query that begins, and has no name of its own, cannot have done so.
    """
    is_new = offer.batch_id == 0 and offer.sink_id == offer.query_id
    if is_new or stream.last_transaction(offer.sink_id) is not None:
        return
    for record in stream.last_transactions():
        is_ours = record.run_id.partition("/")[0] == offer.query_id
        if is_ours and record.transaction_id >= offer.batch_id:
            how = "without sinkId"
            if record.sink_id != offer.query_id:
                how = f"with sinkId={record.sink_id!r}"
            raise ConflictError(
                f"stream {stream.name!r}: this query has committed micro-batch "
                f"{record.transaction_id} {how}; under the new sink name {offer.sink_id!r} it "
                f"would append micro-batch {offer.batch_id} a second time. Run it {how} once "
                "more; the name may change when that micro-batch is behind it"
            )


def _is_first_of_run(offer: _Offer) -> bool:
    """Whether this is the first micro-batch of a run, as far as this process has seen."""
    first = _FIRST_BATCH_OF_RUN.setdefault((offer.sink_id, offer.run), offer.batch_id)
    if len(_FIRST_BATCH_OF_RUN) > _RUNS_REMEMBERED:
        del _FIRST_BATCH_OF_RUN[next(iter(_FIRST_BATCH_OF_RUN))]
    return first == offer.batch_id
