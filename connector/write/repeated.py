"""Tells a repeated micro-batch, which is harmless, from one that another driver committed.

A stream applies each pair of sink and batch id once (rule T3), so a second commit changes nothing.
That is right for a driver that repeats its last micro-batch after a restart. It would lose rows if
another driver works on the same checkpoint, or if an old copy of a checkpoint was restored.
Everything here runs in the commit process beside Spark's driver; nothing is pickled.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spark_ledger.errors import ConflictError
from spark_ledger.limits.connector import RUNS_REMEMBERED_MAX
from spark_ledger.stream.model import Commit, Segment

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream

logger = logging.getLogger(__name__)

_FIRST_BATCH_OF_RUN: Final[dict[tuple[str, str], int]] = {}
"""By sink and query run: the first micro-batch that was committed through this process. A query run
repeats at most its first micro-batch, so no other one is taken for a repetition."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch as its tasks wrote it, and the query and query run that want to commit it."""

    sink_id: str
    query_id: str
    run_id: str
    batch_id: int
    segments: tuple[Segment, ...]
    shared: str = ""
    """What is committed to several streams at once, as commits say it; empty for one stream."""

    @property
    def run(self) -> str:
        """The query run: query id, slash, Spark's run id."""
        return f"{self.query_id}/{self.run_id}"

    @property
    def noted_run(self) -> str:
        """The query run as commits name it. Where they are of several streams each of them says how
        much they have together: a repetition for some of the streams sees no others."""
        return f"{self.run}/{self.shared}" if self.shared else self.run

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)


def run_of(noted: str) -> str:
    """The query run that a commit names."""
    return "/".join(noted.split("/")[:2])


def _shared(noted: str) -> str:
    """How much a commit says that it had with those of other streams; older ones do not say."""
    return "/".join(noted.split("/")[2:])


def is_first_of_run(batch: MicroBatch) -> bool:
    """Whether this is the first micro-batch of its query run, as far as this process has seen."""
    first = _FIRST_BATCH_OF_RUN.setdefault((batch.sink_id, batch.run), batch.batch_id)
    if len(_FIRST_BATCH_OF_RUN) > RUNS_REMEMBERED_MAX:
        del _FIRST_BATCH_OF_RUN[next(iter(_FIRST_BATCH_OF_RUN))]
    return first == batch.batch_id


def committed_before(stream: Stream, batch: MicroBatch) -> Commit | None:
    """The commit of a micro-batch that has no rows in this attempt; None if there is none.

    Raises ConflictError if the sink has committed a later micro-batch.
    """
    record = stream.last_transaction(batch.sink_id)
    if record is None or record.transaction_id < batch.batch_id:
        return None
    if record.transaction_id > batch.batch_id:
        raise ConflictError(
            f"stream {stream.name!r}: sink {batch.sink_id!r} is at micro-batch {batch.batch_id}, "
            f"which is empty, but it has already committed micro-batch {record.transaction_id} "
            f"(run {record.run_id}): a second, slower driver runs on the same checkpoint, or an "
            "older copy of it was restored; stop the driver, or use a new checkpoint and sinkId"
        )
    return replace(stream.commit_of(record), applied=False)


def check_sink_name(stream: Stream, batch: MicroBatch) -> None:
    """Refuse a query that has committed this micro-batch under another sink name: the stream would
    not know the pair, and would append the rows a second time.

    It has not if its own record is of this run, or if nobody has committed behind that, or ever:
    this spares most queries a look at all sinks.

    Raises ConflictError if it was committed under another name, NoSuchStreamError if the stream was
    deleted.
    """
    stream.refresh(latest=True)  # what is read behind it is no older: the server may have lagged
    own = stream.last_transaction(batch.sink_id)
    if own is not None and own.transaction_id >= batch.batch_id:
        return  # rule T3 judges
    if own is not None and run_of(own.run_id) == batch.run:
        return
    if stream.head().next_commit <= (0 if own is None else own.commit + 1):
        return
    for record in stream.last_transactions():
        is_ours = record.run_id.partition("/")[0] == batch.query_id
        if is_ours and record.transaction_id >= batch.batch_id:
            how = "without sinkId"
            if record.sink_id != batch.query_id:
                how = f"with sinkId={record.sink_id!r}"
            raise ConflictError(
                f"stream {stream.name!r}: this query has committed micro-batch "
                f"{record.transaction_id} {how}; under the new sink name {batch.sink_id!r} it "
                f"would append micro-batch {batch.batch_id} a second time. Run it {how} once "
                "more; the name may change when that micro-batch is behind it"
            )


def check_repeated(
    commit: Commit,
    batch: MicroBatch,
    stream_name: str,
    *,
    is_first_of_run: bool,
    fail_on_data_loss: bool,
) -> None:
    """Check a micro-batch that was found to be committed already, by another query run.

    It is a repetition if that query run is over, belonged to this query, and committed the same
    number of rows, here and to all streams together. A query run repeats at most its first
    micro-batch.

    Raises ConflictError if it is no repetition.
    """
    subject = f"stream {stream_name!r}: micro-batch {batch.batch_id} of sink {batch.sink_id!r}"
    other_query = commit.run_id.partition("/")[0]
    if batch.query_id != other_query:
        raise ConflictError(
            f"{subject} was committed by the query {other_query}, and this is the query "
            f"{batch.query_id}: the checkpoint was deleted or reset while the sinkId stayed "
            "the same, or two queries have one sinkId; use a new sinkId"
        )
    if not is_first_of_run:
        raise ConflictError(
            f"{subject} was committed by another run ({commit.run_id}) while this one "
            f"({batch.run}) was going on: a second driver runs on the same checkpoint, or on a "
            "copy of it; stop one of them, or give them different checkpoints and sinkId "
            "options"
        )
    had, has, shared = f"{commit.rows} rows", str(batch.rows), _shared(commit.run_id)
    if commit.truncated or commit.rows == batch.rows:
        if shared in ("", batch.shared) or not batch.shared:
            logger.info("%s was committed before the restart", subject)
            return
        had, has = shared, batch.shared  # the other rows may come with the next micro-batch
    differs = (
        f"{subject} was committed before this run started, as commit {commit.number} with {had}; "
        f"now it has {has}, which were left out"
    )
    if fail_on_data_loss:
        raise ConflictError(
            f"{differs}: an older copy of the checkpoint was restored, or another driver ran "
            "on a copy, and the micro-batch was planned anew. To go on would lose rows or "
            "repeat them: use a new checkpoint, a new sinkId and a startingPosition. Only if "
            "the query itself gives other rows each time it runs (rand(), a join with a table "
            "that changes) set failOnDataLoss=false, which keeps the rows of the commit"
        )
    logger.warning("%s, because failOnDataLoss=false", differs)
