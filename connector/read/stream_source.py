"""StreamSource: where a stream starts and ends, what a trigger takes, which partitions it becomes.

Runs in the source and planner processes beside Spark's driver. The head is read for every question
and watched while the stream is idle. Commits never change (rule T5), so those between the query's
position and the head are kept in memory until the query has passed them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from connector.option_parsers import PositionJson, TransactionJson, time_text
from connector.options import ReadOptions
from connector.read.commit_cache import CommitCache
from connector.read.lag import NO_LAG, Lag, stream_lag, with_lag
from connector.read.last_read import LastRead
from connector.read.offsets import (
    CheckpointOffset,
    FormerStreamError,
    OffsetJson,
    last_segment,
    named_start,
    naming_start,
    recreated_error,
    recreated_message,
    stream_offset,
    stream_position,
    unchanged,
)
from connector.read.partitions import StreamPartition, StreamSpan
from connector.read.planner import Backlog, has_rows, trigger_end
from connector.retry import RetryBudget
from connector.schema import spark_type_name
from spark_ledger.errors import ConfigurationError, DataLossError, NoSuchStreamError
from spark_ledger.limits.connector import (
    METADATA_LAG_S,
    POLL_WAIT_S,
    SEGMENTS_PER_FETCH,
)
from spark_ledger.stream.model import Head, Segment
from spark_ledger.stream.plan.partitions import PlanLimits, Span
from spark_ledger.stream.plan.read_plan import plan_read
from spark_ledger.stream.row_filter import RowFilter
from spark_ledger.types import Dlsn

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CHECKPOINT: Final = "the position of the checkpoint"


class StreamSource:
    """A ``Source`` over a stream. Used by one thread, never pickled."""

    def __init__(
        self,
        options: ReadOptions,
        stream: Stream,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._stream = stream
        self._stream_id: str = stream.config.stream_id
        self._clock = clock
        self._sleep = sleep
        self._rows: RowFilter | None = None
        if not options.where.is_all:  # refuses what the stream cannot be asked for
            self._rows = RowFilter(options.where, stream.config, spark_type_name)
        self._commits = CommitCache(stream)
        self._initial: Dlsn | None = None
        self._initial_offset: OffsetJson | None = None
        self._last_read = LastRead(stream, self._commits)
        self._start_moves = False
        self._target: Dlsn | None = None
        self._planned_by: Head | None = None
        """The head by which the end of a micro-batch is found."""
        self._has_compared = False
        self._rows_held_since = clock()
        self._has_warned = False
        self._warned_of: Dlsn | None = None
        self._earliest_seen: Dlsn | None = None
        self._batch_end: Dlsn | None = None
        """Where the newest micro-batch ends: the lag is reckoned from there."""
        self._batch_start: Dlsn | None = None
        """Where it begins, if it has rows of several streams: Spark does not tell those apart."""

    # -- where to start and end ------------------------------------------------------------------

    def initial_offset(self, *, is_kept: bool = True) -> OffsetJson:
        if self._initial_offset is None:
            self._see_that_it_is_there()
            head = self._stream.head()  # behind that, so it has all that was acknowledged before
            position = self._start(head)
            last = self._last_read.before_start(position, head) if is_kept else None
            self._initial_offset = stream_offset(position, self._stream_id, last)
        return self._initial_offset

    def start_moves(self) -> bool:
        self._start()
        return self._start_moves

    def _start(self, head: Head | None = None) -> Dlsn:
        if self._initial is None:
            head = head or self._stream.head()
            self._initial = self._resolve_start(head)
            # A commit behind a time, and a transaction, that was found is found again.
            self._start_moves = self._options.start_may_move and self._initial >= head.end
        return self._initial

    def _offset(self, position: Dlsn) -> OffsetJson:
        return stream_offset(position, self._stream_id)

    def _named(self, position: Dlsn, head: Head) -> OffsetJson:
        """The offset of a position for a checkpoint, as it is at this head."""
        return stream_offset(position, self._stream_id, self._last_read.before(position, head))

    def _option_position(self, position: PositionJson, option: str, head: Head) -> Dlsn:
        """A position that the user gave. If it names a stream, that must be this one (rule T7).

        Of a truncated row it is the first row kept, or a DataLossError if failOnDataLoss is true.
        """
        if position.offset is not None:
            if position.offset > head.rows:
                raise ConfigurationError(
                    f"{self._options.subject}: {option} {position.offset} lies behind the end, "
                    f"{head.rows}"
                )
            try:
                return self._stream.position_of_row(position.offset)
            except DataLossError as error:
                if self._options.fail_on_data_loss:
                    raise
                how = "is the first row kept, because failOnDataLoss=false"
                logger.warning("%s; %s %s", error, option, how)
                return self._stream.head().earliest  # newer than the head that has the row
        if position.stream in ("", self._stream_id):
            return position.dlsn
        raise ConfigurationError(
            f"option {option}: the position is one of the stream with the id {position.stream}, "
            f"but {self._options.subject} has the id {self._stream_id}: it was deleted and "
            "created again, or it is another one; use earliest, latest or a position in it"
        )

    def _resolve_start(self, head: Head) -> Dlsn:
        options = self._options
        if options.start_timestamp_ms is not None:
            return self._starting_at(head, options.start_timestamp_ms)
        if options.start_transaction is not None:
            return self._position_of(options.start_transaction)
        if isinstance(options.start, PositionJson):
            position = self._option_position(options.start, "startingPosition", head)
            return self._commits.canonical(self._readable(head, position, "startingPosition"), head)
        return head.earliest if options.start == "earliest" else head.end

    def final_offset(self) -> OffsetJson:
        head = self._stream.head()
        options = self._options
        end = head.end
        if options.end_timestamp_ms is not None:
            # One in the future is the end, as for Kafka's source: today's rows, at noon.
            if not _is_future(options.end_timestamp_ms, head):
                end = self._stream.position_at_timestamp(options.end_timestamp_ms)
        elif isinstance(options.end, PositionJson):
            given = self._option_position(options.end, "endingPosition", head)
            end = self._commits.canonical(given, head)
            if end > head.end:
                raise self._after_head(given, head, "endingPosition")
            if isinstance(options.start, PositionJson) and end < self._start():
                raise ConfigurationError(
                    f"{options.subject}: endingPosition {tuple(given)} lies before "
                    f"startingPosition {tuple(self._start())}"
                )
        elif options.end == "earliest":
            raise ConfigurationError(
                "option endingPosition = 'earliest': nothing lies before it; "
                "use latest or a position"
            )
        return self._offset(end)

    def _starting_at(self, head: Head, timestamp_ms: int) -> Dlsn:
        """The first row of the first commit made at or after a time; the end if none is yet."""
        if _is_future(timestamp_ms, head):
            raise ConfigurationError(
                f"option startingTimestamp = {time_text(timestamp_ms)} lies in the future of "
                f"{self._options.subject}: which commit it means is not known yet. A time without "
                "a zone is UTC, or in the option timeZone"
            )
        return self._stream.position_at_timestamp(timestamp_ms)

    def _position_of(self, wanted: TransactionJson) -> Dlsn:
        """The first row of a transaction, or of the next one; the end if it is still to come."""
        newest = self._stream.last_transaction(wanted.sink)
        if newest is None:
            raise ConfigurationError(
                f"option startingTransaction: sink {wanted.sink!r} has made no transaction in "
                f"{self._options.subject}; check the name, or use startingPosition"
            )
        position = self._stream.position_of(wanted.sink, wanted.transaction)
        return self._stream.head().end if position is None else position

    def _readable(self, head: Head, position: Dlsn, what: str) -> Dlsn:
        """The position; or the earliest one if its rows are gone and failOnDataLoss is false.

        Raises ConfigurationError if the position lies behind the end, DataLossError if its rows
        are gone and failOnDataLoss is true.
        """
        self._earliest_seen = head.earliest  # ``_beside_truncations`` compares: did rows go since?
        if position > head.end:
            raise self._after_head(position, head, what)
        if position >= head.earliest:
            return position
        message = (
            f"{self._options.subject}: {what} {tuple(position)} lies before the first row kept, "
            f"{tuple(head.earliest)}: the rows between were truncated"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{message}; to go on from the first row kept, set failOnDataLoss=false"
            )
        if position != self._warned_of:
            self._warned_of = position
            logger.warning("%s; going on from there, because failOnDataLoss=false", message)
        return head.earliest

    def _head_reaching(self, position: Dlsn) -> Head:
        """A head that reaches a position of the checkpoint.

        After a restart another metadata server may answer, which lags behind for a moment.

        Raises ConfigurationError if the head does not reach it within ``METADATA_LAG_S``.
        """
        budget = RetryBudget(f"{self._options.subject}: finding where it ends", METADATA_LAG_S)
        while True:
            head = self._stream.head()
            if head.end >= position:
                return head
            hint = ": the metadata store is an older one than the checkpoint; use a new checkpoint"
            budget.pause_or_raise(self._after_head(position, head, _CHECKPOINT, hint))

    def _compare(self, head: Head, *offsets: CheckpointOffset) -> None:
        """The rows before a checkpoint are those that were read (rule T5): looked at once in each
        process, for the first of these offsets that tells. Later ones it makes itself, and its
        handle looks at them behind each new connection.

        Raises ConfigurationError if other rows are there: the query would pass over some.
        """
        if self._has_compared:
            return
        for offset in offsets:
            position, stream_id = stream_position(offset)
            last = last_segment(offset)
            if last is None or stream_id != self._stream_id:
                continue
            if position > head.earliest and not self._last_read.is_before(last, position):
                raise ConfigurationError(
                    f"{self._options.subject}: the rows before {_CHECKPOINT} {tuple(position)} are "
                    "not those that this query has read: the metadata store was restored from a "
                    "backup, and gave the numbers of commits that it lost to later ones; use a "
                    "new checkpoint"
                )
            break
        self._has_compared = True

    def _after_head(
        self, position: Dlsn, head: Head, what: str, hint: str = ""
    ) -> ConfigurationError:
        return ConfigurationError(
            f"{self._options.subject}: {what} {tuple(position)} lies behind the end, "
            f"{tuple(head.end)}{hint}"
        )

    def _start_position(self, offset: CheckpointOffset) -> Dlsn:
        """The position of an offset to read from. An offset without a stream id is trusted.

        If the offset is of a former stream of the name (rule T7), the earliest position of this
        stream; raises DataLossError instead if failOnDataLoss is true.
        """
        position, stream_id = stream_position(offset)
        if stream_id in ("", self._stream_id):
            return position
        self._handle_recreated(_CHECKPOINT)
        return self._stream.head().earliest

    def _handle_recreated(self, lost: str) -> None:
        """Warn once that the stream was made again, or raise DataLossError; ``lost`` went with the
        former stream. Raises FormerStreamError if it is ours that is gone."""
        self._see_that_it_is_there()
        subject = self._options.subject
        if self._options.fail_on_data_loss:
            raise recreated_error(subject, lost)
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s; going on from the earliest row of the new stream, because "
                "failOnDataLoss=false",
                recreated_message(subject, lost),
            )

    def _see_that_it_is_there(self) -> None:
        """By the newest metadata: the server that answered when it was opened may lag (rule T7).
        What is read behind it over this connection is no older. Raises FormerStreamError."""
        try:
            self._stream.refresh(latest=True)
        except NoSuchStreamError as error:
            raise FormerStreamError(str(error)) from error

    # -- triggers ----------------------------------------------------------------------------------

    def pin_target(self) -> None:
        self._stream.refresh(latest=True)  # so that the head behind it is the newest, too
        self._planned_by = self._stream.head()
        self._target = self._planned_by.end

    def latest_offset(self, start: CheckpointOffset, *, unlimited: bool) -> OffsetJson:
        end = self._beside_truncations(lambda: self._latest_offset(start, unlimited=unlimited))
        self._batch_end = stream_position(end).position
        return end

    def _beside_truncations(self, look: Callable[[], T]) -> T:
        """What ``look`` finds. It looks again if rows were truncated meanwhile, and these may be
        left out: else it would fail although failOnDataLoss is false."""
        while True:
            try:
                return look()
            except DataLossError:
                earliest = self._stream.head().earliest
                if self._options.fail_on_data_loss or earliest == self._earliest_seen:
                    raise
                self._earliest_seen = earliest

    def _latest_offset(self, start: CheckpointOffset, *, unlimited: bool) -> OffsetJson:
        position = self._start_position(start)
        if self._target is None:  # the wait watches the head, so later calls read no metadata
            self._stream.wait_for_commit(after_segment=position.segment, timeout_s=POLL_WAIT_S)
        head = self._head_reaching(position)
        self._compare(head, start)
        end = head.end if self._target is None else self._target
        if self._target is None:
            self._planned_by = head
        if end <= position:
            return unchanged(start)
        self._readable(head, position, _CHECKPOINT)
        limits = self._options.trigger
        if unlimited or limits.unlimited:
            return self._advance(start, end)
        if self._target is None and limits.min_rows is not None:
            waited_s = self._clock() - self._rows_held_since
            enough = has_rows(self._backlog(position, end), position, limits.min_rows)
            if not enough and waited_s < limits.max_delay_s:
                self._sleep(min(POLL_WAIT_S, limits.max_delay_s - waited_s))
                return unchanged(start)
        end = min(end, trigger_end(self._backlog(position, end), position, limits))
        return self._advance(start, end)

    def _advance(self, at: CheckpointOffset, end: Dlsn) -> OffsetJson:
        self._rows_held_since = self._clock()
        return self._ended(at, end)

    # -- one of several streams --------------------------------------------------------------------

    @property
    def stream(self) -> Stream:
        """The stream that is read."""
        return self._stream

    @property
    def stream_id(self) -> str:
        """Its id, which tells it from others of its name."""
        return self._stream_id

    def earliest_offset(self) -> OffsetJson:
        """The first row that can be read now: where a stream begins that joins others."""
        return self._offset(self._stream.head().earliest)

    def backlog(self, start: CheckpointOffset) -> Backlog:
        """What is new since an offset, for a trigger that several streams share."""

        def look() -> Backlog:
            position = self._start_position(start)
            head = self._head_reaching(position)
            self._compare(head, start)
            end = self._target or head.end
            if self._target is None:
                self._planned_by = head
            if end > position:
                position = min(self._readable(head, position, _CHECKPOINT), end)
            return Backlog(position, max(position, end), lambda at: self._backlog(at, end))

        return self._beside_truncations(look)

    def ended_at(self, at: CheckpointOffset, start: Dlsn, end: Dlsn) -> OffsetJson:
        """The micro-batch is from here to there, as the trigger that is shared has found; ``at`` is
        the offset that it begins with."""
        self._batch_start, self._batch_end = start, end
        if stream_position(at) == (end, self._stream_id):
            return unchanged(at)  # one position has one spelling
        return self._ended(at, end)

    def _ended(self, at: CheckpointOffset, end: Dlsn) -> OffsetJson:
        assert self._planned_by is not None, "an end is found by a head"
        named, start = self._named(end, self._planned_by), stream_position(at)
        if self._options.start_timestamp_ms is None or self._initial_offset is None:
            return named
        is_first = start == stream_position(self._initial_offset)
        return naming_start(named, start.position) if is_first else named

    def _backlog(self, position: Dlsn, end: Dlsn) -> Iterator[Segment]:
        """Segments from the position up to ``end``, fetched no further than the caller reads."""
        first = max(position.segment, self._stream.head().earliest.segment)
        while first < end.segment:
            stop = min(first + SEGMENTS_PER_FETCH, end.segment)
            yield from self._commits.segments(first, stop)
            first = stop

    def newest_offset(self) -> OffsetJson | None:
        head = self._stream.head()
        if self._batch_end is None:
            return self._offset(head.end)
        try:
            lag = self._lag(head, self._batch_end)
            newest = with_lag(self._offset(head.end), self._options.stream or "", lag)
            if self._batch_start is not None:
                newest["batchRows"] = self._lag(head, self._batch_start).rows - lag.rows
            return newest
        except DataLossError:  # truncated in this moment: the next trigger knows
            return self._offset(head.end)

    def _lag(self, head: Head, position: Dlsn) -> Lag:
        position = max(position, head.earliest)
        if position >= head.end:
            return NO_LAG
        (commit,) = self._commits.between(position.segment, position.segment + 1)
        return stream_lag(head, position, commit, time.time_ns() // 1_000_000)

    # -- partitions --------------------------------------------------------------------------------

    def plan(
        self, start: CheckpointOffset, end: CheckpointOffset, limits: PlanLimits | None = None
    ) -> Sequence[StreamPartition | StreamSpan]:
        """Partitions within the limits of the options, or those given: a part of them."""
        within = limits or self._options.plan
        return self._beside_truncations(lambda: self._plan(start, end, within))

    def _plan(
        self, start: CheckpointOffset, end: CheckpointOffset, limits: PlanLimits
    ) -> Sequence[StreamPartition | StreamSpan]:
        last, last_stream_id = stream_position(end)
        if last_stream_id not in ("", self._stream_id):
            self._handle_recreated("the micro-batch")
            return []
        first, began = self._start_position(start), named_start(end)
        if began is not None and first != began and start != end:  # it is another one (rule T31)
            now = self._head_reaching(last)
            first = max(began, now.earliest)
            if first >= last:
                self._readable(now, began, "the start of the micro-batch")
        elif first > last and not self.start_moves():  # in the first one (rule T31)
            self._readable(self._stream.head(), last, "the end of the micro-batch")
        if first >= last:
            return []
        head = self._head_reaching(last)
        self._compare(head, end, start)
        first = self._readable(head, first, _CHECKPOINT)
        last = self._readable(head, last, "the end of the micro-batch")
        plans = plan_read(
            self._stream,
            first,
            last,
            limits,
            self._commits.between,
            self._rows,
        )
        return [
            StreamSpan(self._stream_id, plan)
            if isinstance(plan, Span)
            else StreamPartition(self._stream_id, plan)
            for plan in plans
        ]

    def forget(self, end: CheckpointOffset) -> None:
        position, stream_id = stream_position(end)
        if stream_id == self._stream_id:
            self._commits.forget_before(position.segment)


def _is_future(timestamp_ms: int, head: Head) -> bool:
    """Whether a commit may still be made before a time: by the clocks here and of the writers."""
    return timestamp_ms > max(time.time() * 1000, head.time_ms)
