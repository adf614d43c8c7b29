"""The driver's view of a stream: where it starts and ends, what a trigger takes, what is planned.

The head is read when asked and watched while idle. Commits are immutable, so those between the
query's position and the head are kept in memory until the query has passed them.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from connector.option_parsers import PositionJson
from connector.options import ReadOptions
from connector.read.offsets import (
    OffsetJson,
    made_again,
    made_again_error,
    stream_offset,
    stream_place,
)
from connector.read.partitions import StreamPartition
from connector.read.planner import admit, has_rows, plan_partitions
from connector.read.source import IDLE_WAIT_S
from spark_ledger.errors import ConfigurationError, DataLossError
from spark_ledger.stream.model import Commit, Head, Segment, ranges_between
from spark_ledger.types import Dlsn

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream

_LOG: Final = logging.getLogger(__name__)

_CHECKPOINT: Final = "the position of the checkpoint"
_LAG_RETRIES: Final = 40
_LAG_PAUSE_S: Final = 0.05

SEGMENTS_PER_FETCH: Final = 1024
"""Commits are fetched in steps of this many segments while a limited trigger looks for its end."""


class StreamSource:
    """A ``Source`` over a stream. Used by one thread."""

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
        self._commits = CommitCache(stream)
        self._initial: Dlsn | None = None
        self._target: Dlsn | None = None
        self._rows_held_since = clock()
        self._has_warned = False

    # -- where to start and end ------------------------------------------------------------------

    def initial_offset(self) -> OffsetJson:
        if self._initial is None:
            self._initial = self._resolve_start(self._stream.head())
        return self._offset(self._initial)

    def _offset(self, position: Dlsn) -> OffsetJson:
        return stream_offset(position, self._stream_id)

    def _named(self, position: PositionJson, option: str) -> Dlsn:
        """A position of the options, which may say of which stream it is one."""
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
            return self._position_at(head, options.start_timestamp_ms, "startingTimestamp")
        if isinstance(options.start, PositionJson):
            position = self._checked(
                head, self._named(options.start, "startingPosition"), "startingPosition"
            )
            return self._normal(position, head)
        return head.earliest if options.start == "earliest" else head.end

    def final_offset(self) -> OffsetJson:
        head = self._stream.head()
        options = self._options
        end = head.end
        if options.end_timestamp_ms is not None:
            end = self._position_at(head, options.end_timestamp_ms, "endingTimestamp")
        elif isinstance(options.end, PositionJson):
            end = self._normal(self._named(options.end, "endingPosition"), head)
            if end > head.end:
                raise self._after_head(options.end.dlsn, head, "endingPosition")
            if isinstance(options.start, PositionJson) and end < options.start.dlsn:
                raise ConfigurationError(
                    f"{options.subject}: endingPosition {tuple(options.end.dlsn)} lies before "
                    f"startingPosition {tuple(options.start.dlsn)}"
                )
        elif options.end == "earliest":
            raise ConfigurationError(
                "option endingPosition = 'earliest': nothing lies before it; "
                "use latest or a position"
            )
        return self._offset(end)

    def _position_at(self, head: Head, timestamp_ms: int, option: str) -> Dlsn:
        """The first row of the first commit made at or after a time; the end when none is yet."""
        if timestamp_ms > max(time.time() * 1000, head.time_ms):
            raise ConfigurationError(
                f"option {option} = {timestamp_ms} lies in the future of {self._options.subject}: "
                "which commit it means is not known yet"
            )
        return self._stream.position_at_timestamp(timestamp_ms)

    def _normal(self, position: Dlsn, head: Head) -> Dlsn:
        """The one spelling of a position: an end of an entry or segment is the next one's start."""
        if position.segment >= head.next_segment or position < head.earliest:
            return position
        (segment,) = self._commits.segments(position.segment, position.segment + 1)
        entry, slot = position.entry, position.slot
        if entry < segment.entries and slot >= segment.entry_rows[entry]:
            entry, slot = entry + 1, 0
        if entry >= segment.entries:
            return Dlsn(position.segment + 1)
        return Dlsn(position.segment, entry, slot)

    def _checked(self, head: Head, position: Dlsn, what: str) -> Dlsn:
        """The position, or the earliest one when its rows are gone and that may be."""
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
        _LOG.warning("%s; going on from there, because failOnDataLoss=false", message)
        return head.earliest

    def _head_reaching(self, position: Dlsn) -> Head:
        """A head that reaches a position of the checkpoint.

        Another metadata server than before the restart may answer, and lag behind for a moment.
        """
        for _ in range(_LAG_RETRIES):
            head = self._stream.head()
            if head.end >= position:
                return head
            self._sleep(_LAG_PAUSE_S)
        raise self._after_head(
            position,
            self._stream.head(),
            _CHECKPOINT,
            ": the metadata store is an older one than the checkpoint; use a new checkpoint",
        )

    def _after_head(
        self, position: Dlsn, head: Head, what: str, hint: str = ""
    ) -> ConfigurationError:
        return ConfigurationError(
            f"{self._options.subject}: {what} {tuple(position)} lies behind the end, "
            f"{tuple(head.end)}{hint}"
        )

    def _start_of(self, offset: Mapping[str, Any]) -> Dlsn:
        """The position of an offset to read from; that of a former stream of the name becomes the
        earliest one of this stream, where that may be. An offset without an id is trusted."""
        position, stream_id = stream_place(offset)
        if stream_id in ("", self._stream_id):
            return position
        self._report_former(_CHECKPOINT)
        return self._stream.head().earliest

    def _report_former(self, what: str) -> None:
        subject = self._options.subject
        if self._options.fail_on_data_loss:
            raise made_again_error(subject, what)
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "%s; going on from the earliest row of the new stream, because "
                "failOnDataLoss=false",
                made_again(subject, what),
            )

    # -- triggers ----------------------------------------------------------------------------------

    def pin_target(self) -> None:
        self._target = self._stream.head().end

    def latest_offset(self, start: Mapping[str, Any], *, unlimited: bool) -> OffsetJson:
        position = self._start_of(start)
        if self._target is None:  # this watches the head, so that later calls read no metadata
            self._stream.wait_for_commit(after_segment=position.segment, timeout_s=IDLE_WAIT_S)
        head = self._head_reaching(position)
        end = head.end if self._target is None else self._target
        if end <= position:
            return dict(start)
        self._checked(head, position, _CHECKPOINT)
        limits = self._options.trigger
        if unlimited or limits.unlimited:
            return self._advance(end)
        if self._target is None and limits.min_rows is not None:
            waited_s = self._clock() - self._rows_held_since
            enough = has_rows(self._backlog(position, end), position, limits.min_rows)
            if not enough and waited_s < limits.max_delay_s:
                self._sleep(min(IDLE_WAIT_S, limits.max_delay_s - waited_s))
                return dict(start)
        return self._advance(min(end, admit(self._backlog(position, end), position, limits).end))

    def _advance(self, end: Dlsn) -> OffsetJson:
        self._rows_held_since = self._clock()
        return self._offset(end)

    def _backlog(self, position: Dlsn, end: Dlsn) -> Iterator[Segment]:
        """Segments from the position on, fetched as far as they are taken from here."""
        first = max(position.segment, self._stream.head().earliest.segment)
        while first < end.segment:
            stop = min(first + SEGMENTS_PER_FETCH, end.segment)
            yield from self._commits.segments(first, stop)
            first = stop

    def newest_offset(self) -> OffsetJson | None:
        return self._offset(self._stream.head().end)

    # -- partitions --------------------------------------------------------------------------------

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[StreamPartition]:
        last, last_stream_id = stream_place(end)
        if last_stream_id not in ("", self._stream_id):
            self._report_former("the micro-batch")
            return []
        first = self._start_of(start)
        if first >= last:
            return []
        head = self._head_reaching(last)
        first = self._checked(head, first, _CHECKPOINT)
        last = self._checked(head, last, "the end of the micro-batch")
        commits = self._commits.between(first.segment, last.segment + (last > Dlsn(last.segment)))
        ranges = ranges_between(commits, first, last)
        plans = plan_partitions(ranges, self._options.plan)
        return [StreamPartition(self._stream_id, plan) for plan in plans]

    def forget(self, end: Mapping[str, Any]) -> None:
        position, stream_id = stream_place(end)
        if stream_id == self._stream_id:
            self._commits.forget_before(position.segment)


class CommitCache:
    """Consecutive commits of a stream, fetched once."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._commits: list[Commit] = []

    def between(self, first_segment: int, end_segment: int) -> list[Commit]:
        """The commits that hold segments ``first_segment`` .. ``end_segment - 1``, in order."""
        if first_segment >= end_segment:
            return []
        known = self._commits
        if known and not known[0].first_segment <= first_segment <= known[-1].end_segment:
            known.clear()
        if not known:
            known.extend(self._stream.commits_between(first_segment, end_segment))
        elif known[-1].end_segment < end_segment:
            known.extend(self._stream.commits_between(known[-1].end_segment, end_segment))
        low = bisect_left(known, first_segment + 1, key=lambda commit: commit.end_segment)
        high = bisect_left(known, end_segment, key=lambda commit: commit.first_segment)
        return known[low:high]

    def segments(self, first_segment: int, end_segment: int) -> list[Segment]:
        """Segments ``first_segment`` .. ``end_segment - 1``."""
        return [
            segment
            for commit in self.between(first_segment, end_segment)
            for segment in commit.segments
            if first_segment <= segment.number < end_segment
        ]

    def forget_before(self, segment: int) -> None:
        """Drop commits that end at or before a segment."""
        keep = bisect_left(self._commits, segment + 1, key=lambda commit: commit.end_segment)
        del self._commits[:keep]
