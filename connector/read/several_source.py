"""SeveralSource: positions, triggers and plans of several streams, each of which is a StreamSource.

An offset has the position of each stream by its name, so a replay has the same rows of the same
streams, whatever streams there are by then (rule T21). Streams may join and go while a query runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.types import StructType

from connector import sessions
from connector.kafka_columns import check_kafka
from connector.options import ReadOptions
from connector.read.offsets import (
    CheckpointOffset,
    OffsetJson,
    SeveralOffset,
    offsets_by_stream,
    several_offset,
    stream_position,
    unchanged,
)
from connector.read.partitions import SeveralPartition
from connector.read.planner import Backlog, rows_after, shared_ends
from connector.read.shared_tasks import Part, share_tasks
from connector.read.stream_source import StreamSource
from connector.schema import check_declared_of_several
from spark_ledger.errors import (
    ConfigurationError,
    DataLossError,
    NoSuchStreamError,
    NotFoundError,
)
from spark_ledger.limits.connector import LOOKS_BESIDE_TRUNCATIONS, POLL_WAIT_S, STREAMS_LISTED_S
from spark_ledger.stream.plan.partitions import PlanLimits
from spark_ledger.types import Dlsn

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import StreamConnection

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SeveralSource:
    """A ``Source`` over several streams. Used by one thread, never pickled."""

    def __init__(
        self,
        options: ReadOptions,
        declared: StructType | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Opens the streams. ``declared`` is the schema of the read, which each has to fit.

        Raises NoSuchStreamError if one that is named does not exist and failOnDataLoss is true.
        """
        assert options.several is not None, "the options name several streams"
        self._options = options
        self._several = options.several
        self._declared = declared
        self._clock = clock
        self._sleep = sleep
        self._connection: StreamConnection = sessions.connection(options.connection)
        self._sources: dict[str, StreamSource] = {}
        self._initial: dict[str, OffsetJson] | None = None
        self._is_pinned = False
        self._lost: set[str] = set()
        """Streams of which a warning was given."""
        self._listed_s = clock()
        self._rows_held_since = clock()
        self._turns: dict[str, int] = {}
        """When each stream was last given rows, as the number of the trigger."""
        self._trigger = 0
        for name in self._names():
            if not self._open(name) and self._several.names:
                self._miss(name)

    # -- the streams -----------------------------------------------------------------------------

    def _names(self) -> list[str]:
        """The names of the streams that the options take, as far as they are in use."""
        if self._several.names:
            return sorted(self._several.names)
        taken = [name for name in self._connection.stream_names() if self._several.takes(name)]
        self._several.check_count(len(taken))
        return taken

    def _open(self, name: str) -> bool:
        """Open a stream; false if there is none of the name. Raises SchemaMismatchError if it does
        not fit the schema of the read."""
        try:
            stream = self._connection.stream(name)
        except NoSuchStreamError:
            return False
        options = self._options.of_stream(name)
        if self._declared is not None and options.kafka_columns:
            check_kafka(self._declared, {name: stream.schema}, headers=options.kafka_headers)
        elif self._declared is not None:
            check_declared_of_several(
                self._declared,
                {name: stream.schema},
                include_metadata=options.include_metadata,
                subject=options.subject,
                joins=True,
            )
        made = StreamSource(options, stream, clock=self._clock, sleep=self._sleep)
        if self._is_pinned:
            made.pin_target()
        self._sources[name] = made
        self._lost.discard(name)
        return True

    def _close(self, name: str) -> None:
        self._sources.pop(name).stream.close()

    def _look_for_new(self) -> None:
        """Open streams that have come since. A run that has its end (availableNow) takes none."""
        if self._is_pinned or self._clock() - self._listed_s < STREAMS_LISTED_S:
            return
        self._listed_s = self._clock()
        for name in self._names():
            if name not in self._sources:
                self._open(name)

    def _ask(self, name: str, question: Callable[[StreamSource], T]) -> T | None:
        """What a stream answers; if it was deleted, or was so before our server knew (rule T7), the
        stream that has the name now.

        None if there is none, and its rows may be left out. Raises DataLossError if they may not.
        """
        for _ in range(2):
            if name not in self._sources and not self._open(name):
                break
            try:
                return question(self._sources[name])
            except NoSuchStreamError:
                self._close(name)
        self._miss(name)
        return None

    def _miss(self, name: str) -> None:
        """Warn once of a stream that is not there, or raise an error."""
        lost = f"stream {name!r}, which this query reads among others, does not exist"
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{lost}, or not any more: create it, or stop the query; with "
                "failOnDataLoss=false it goes on without that stream, and with a new one of the "
                "name from its earliest row on"
            )
        if name not in self._lost:
            self._lost.add(name)
            logger.warning("%s; going on without it, because failOnDataLoss=false", lost)

    def _leave(self, name: str, offset: OffsetJson) -> None:
        """Warn once of a stream that the checkpoint has and the options do not, or raise."""
        left = (
            f"the checkpoint of this query reads stream {name!r} too (up to {dict(offset)}), which "
            f"is none of the {self._several.subject}"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{left}: name it again, or set failOnDataLoss=false to leave its rows unread"
            )
        if name not in self._lost:
            self._lost.add(name)
            logger.warning("%s; its rows stay unread, because failOnDataLoss=false", left)

    def _by_stream(self, offset: CheckpointOffset) -> dict[str, OffsetJson]:
        """The positions in an offset of the streams that are read.

        That of a query which read one stream until now is known by the stream's id (rule T7).
        """
        found = offsets_by_stream(offset)
        if found is not None:
            for name in [each for each in found if not self._several.takes(each)]:
                self._leave(name, found.pop(name))
            return found
        single = unchanged(offset)
        stream_id = stream_position(single).stream_id
        for name, source in self._sources.items():
            if source.stream_id == stream_id:
                return {name: single}
        raise ConfigurationError(
            f"the checkpoint of this query is of one stream, with the id {stream_id!r}, which is "
            f"none of the {self._several.subject}: name it too, or use a new checkpoint"
        )

    # -- where to start and end ------------------------------------------------------------------

    def initial_offset(self, *, is_kept: bool = True) -> SeveralOffset:
        if self._initial is None:
            found: dict[str, OffsetJson] = {}
            for name in list(self._sources):  # one that was deleted meanwhile is left out
                at = self._ask(name, lambda source: source.initial_offset(is_kept=is_kept))
                if at is not None:
                    found[name] = at
            self._initial = found
        return several_offset(self._initial)

    def start_moves(self) -> bool:
        return any(source.start_moves() for source in self._sources.values())

    def final_offset(self) -> SeveralOffset:
        return several_offset({name: s.final_offset() for name, s in self._sources.items()})

    def pin_target(self) -> None:
        self._is_pinned = True
        for name in list(self._sources):
            self._ask(name, lambda source: source.pin_target())

    # -- triggers ----------------------------------------------------------------------------------

    def latest_offset(self, start: CheckpointOffset, *, unlimited: bool) -> SeveralOffset:
        for _ in range(LOOKS_BESIDE_TRUNCATIONS):
            try:
                return self._latest_offset(start, unlimited=unlimited)
            except DataLossError:  # rows were truncated between two looks
                if self._options.fail_on_data_loss:
                    raise
        return self._latest_offset(start, unlimited=unlimited)

    def _latest_offset(self, start: CheckpointOffset, *, unlimited: bool) -> SeveralOffset:
        self._look_for_new()
        positions = self._by_stream(start)
        joining = [name for name in self._sources if name not in positions]
        if not self._is_pinned and not joining:
            self._wait(positions)
        backlogs = {name: self._backlog(name, at) for name, at in positions.items()}
        found = {name: backlog for name, backlog in backlogs.items() if backlog is not None}
        ends = self._ends(found, unlimited=unlimited)
        offsets = {
            name: self._sources[name].ended_at(positions[name], found[name].start, end)
            for name, end in ends.items()
        }
        for name in joining:
            # It begins with the next micro-batch: what one of them holds lies between two positions
            # of the checkpoint, and this stream has only one so far (rule T21).
            offset = self._ask(name, lambda source: source.earliest_offset())
            if offset is not None:
                offsets[name] = offset
                logger.info("stream %r joins the query, from %s on", name, offset)
        return several_offset(offsets)

    def _backlog(self, name: str, at: OffsetJson) -> Backlog | None:
        return self._ask(name, lambda source: source.backlog(at))

    def _wait(self, positions: Mapping[str, OffsetJson]) -> None:
        """Until a stream has news, but not for long. It also starts to watch the heads, which are
        then read once per change."""
        after = [
            (self._sources[name].stream, stream_position(at).position.segment)
            for name, at in positions.items()
            if name in self._sources and stream_position(at).stream_id in self._ids_of(name)
        ]
        if after:
            self._connection.wait_for_any(after, POLL_WAIT_S)
        else:
            self._sleep(POLL_WAIT_S)

    def _ids_of(self, name: str) -> tuple[str, str]:
        return "", self._sources[name].stream_id

    def _ends(self, backlogs: Mapping[str, Backlog], *, unlimited: bool) -> dict[str, Dlsn]:
        """Where the micro-batch ends in each stream, within the limits for all of them."""
        ends = {name: backlog.end for name, backlog in backlogs.items()}
        starts = {name: backlog.start for name, backlog in backlogs.items()}
        limits = self._options.trigger
        if ends == starts:
            return ends
        if not unlimited and not limits.unlimited:
            if not self._is_pinned and limits.min_rows is not None:
                waited_s = self._clock() - self._rows_held_since
                enough = self._rows_of(backlogs, limits.min_rows) >= limits.min_rows
                if not enough and waited_s < limits.max_delay_s:
                    self._sleep(min(POLL_WAIT_S, limits.max_delay_s - waited_s))
                    return starts
            order = sorted(backlogs, key=lambda name: (self._turns.get(name, -1), name))
            ends = dict(
                zip(order, shared_ends([backlogs[name] for name in order], limits), strict=True)
            )
            self._turns.update({n: self._trigger for n in order if ends[n] > backlogs[n].start})
            self._trigger += 1
        self._rows_held_since = self._clock()
        return ends

    def _rows_of(self, backlogs: Mapping[str, Backlog], wanted: int) -> int:
        found = 0
        for backlog in backlogs.values():
            if found < wanted and backlog.start < backlog.end:
                segments = backlog.segments(backlog.start)
                found += rows_after(segments, backlog.start, wanted - found)
        return found

    def newest_offset(self) -> SeveralOffset | None:
        newest = {}
        for name, source in self._sources.items():
            try:
                offset = source.newest_offset()
            except NotFoundError:  # gone in this moment: the next trigger says so
                continue
            if offset is not None:
                newest[name] = offset
        return several_offset(newest)

    # -- partitions --------------------------------------------------------------------------------

    def plan(self, start: CheckpointOffset, end: CheckpointOffset) -> list[SeveralPartition]:
        """The partitions of a micro-batch: rows of streams that both offsets have (rule T21)."""
        first, last = self._by_stream(start), self._by_stream(end)
        names = sorted(name for name in set(first) & set(last) if first[name] != last[name])
        wanted = self._options.plan
        part = replace(wanted, min_partitions=-(-wanted.min_partitions // max(1, len(names))))
        planned = [(name, self._plan(name, first[name], last[name], part)) for name in names]
        return share_tasks(planned, wanted)

    def _plan(
        self, name: str, start: OffsetJson, end: OffsetJson, limits: PlanLimits
    ) -> Sequence[Part]:
        return self._ask(name, lambda source: source.plan(start, end, limits)) or ()

    def forget(self, end: CheckpointOffset) -> None:
        for name, offset in (offsets_by_stream(end) or {}).items():
            if name in self._sources:
                self._sources[name].forget(offset)
