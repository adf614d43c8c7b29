"""LedgerSource: positions and plans of a raw ledger, up to its last add confirmed.

Runs in the source and planner processes beside Spark's driver. It never recovers or fences the
ledger, so reading disturbs no writer. A closed ledger ends; an open one grows as its writer
confirms entries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from connector.option_parsers import Position, PositionJson
from connector.options import ReadOptions
from connector.read.offsets import (
    CheckpointOffset,
    OffsetJson,
    ledger_offset,
    ledger_position,
    unchanged,
)
from connector.read.partitions import LedgerPartition
from spark_ledger.errors import (
    ConfigurationError,
    DataLossError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from spark_ledger.limits.client import TAIL_METADATA_WAIT_S
from spark_ledger.limits.connector import LEDGER_LOOKED_S, POLL_WAIT_S
from spark_ledger.stream.plan.balance import Balance, units_of_entries, weights_of
from spark_ledger.stream.plan.partitions import partition_count
from spark_ledger.types import BookieInfo, EntryId, LedgerId

if TYPE_CHECKING:
    from spark_ledger.client.blocking import BlockingReader


class LedgerSource:
    """A ``Source`` over a raw ledger. Used by one thread, never pickled."""

    def __init__(
        self,
        options: ReadOptions,
        reader: BlockingReader,
        *,
        bookies: Callable[[], Sequence[BookieInfo]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``bookies`` says which bookies are registered."""
        assert options.ledger_id is not None, "the options name a ledger"
        self._options = options
        self._ledger_id: LedgerId = options.ledger_id
        self._reader = reader
        self._bookies = bookies
        self._clock = clock
        self._initial: EntryId | None = None
        self._target: EntryId | None = None
        self._entries_held_since = clock()
        self._looked_s = clock()
        self._metadata_away_since: float | None = None
        self._batch_end: EntryId | None = None
        """Where the newest micro-batch ends: the lag is reckoned from there."""

    def _end(self) -> EntryId:
        """The entry after the last confirmed one, as far as this reader knows."""
        return EntryId(self._reader.last_add_confirmed + 1)

    def _refreshed_end(self) -> EntryId:
        """The end. A closed ledger does not grow, and is looked for now and then.

        Raises DataLossError if it was deleted.
        """
        if not self._reader.is_closed or self._clock() - self._looked_s >= LEDGER_LOOKED_S:
            try:
                self._reader.refresh()
            except NoSuchLedgerError as error:
                raise DataLossError(
                    f"ledger {self._ledger_id} was deleted while this query was reading it: stop "
                    "the query; what it has not read is gone"
                ) from error
            except MetadataUnavailableError:
                if not self._reader.is_closed:
                    raise
            self._looked_s = self._clock()
        return self._end()

    def _followed_end(self) -> EntryId:
        """The end, as a tail learns it: while the metadata cannot be read, from the bookies that
        are known, until nothing has come for too long."""
        before = self._end()
        try:
            end = self._refreshed_end()
        except MetadataUnavailableError:
            self._reader.refresh_confirmed()
            if self._metadata_away_since is None or self._end() > before:
                self._metadata_away_since = self._clock()
            if self._clock() - self._metadata_away_since > TAIL_METADATA_WAIT_S:
                raise
            return self._end()
        self._metadata_away_since = None
        return end

    def initial_offset(self, *, is_kept: bool = True) -> OffsetJson:
        if self._initial is None:
            self._initial = self._resolve(self._options.start, "startingPosition")
        return ledger_offset(self._ledger_id, self._initial)

    def start_moves(self) -> bool:
        return self._options.start_may_move

    def final_offset(self) -> OffsetJson:
        end = self._resolve(self._options.end, "endingPosition")
        return ledger_offset(self._ledger_id, end)

    def _resolve(self, position: Position, option: str) -> EntryId:
        end = self._refreshed_end()
        if isinstance(position, PositionJson):
            if position.entry > end:
                raise ConfigurationError(
                    f"option {option}: entry {position.entry} of ledger {self._ledger_id} is not "
                    f"confirmed yet; the last confirmed entry is {end - 1}"
                )
            return EntryId(position.entry)
        return EntryId(0) if position == "earliest" else end

    def pin_target(self) -> None:
        self._target = self._refreshed_end()

    def latest_offset(self, start: CheckpointOffset, *, unlimited: bool) -> OffsetJson:
        end = self._latest_offset(start, unlimited=unlimited)
        self._batch_end = ledger_position(end, self._ledger_id)
        return end

    def _latest_offset(self, start: CheckpointOffset, *, unlimited: bool) -> OffsetJson:
        position = ledger_position(start, self._ledger_id)
        end = self._target if self._target is not None else self._grown_end(position)
        if end <= position:
            return unchanged(start)
        limits = self._options.trigger
        if not unlimited and self._target is None and limits.min_rows is not None:
            waited_s = self._clock() - self._entries_held_since
            if end - position < limits.min_rows and waited_s < limits.max_delay_s:
                time.sleep(min(POLL_WAIT_S, limits.max_delay_s - waited_s))
                return unchanged(start)
        if not unlimited and limits.max_rows is not None:
            end = EntryId(min(end, position + limits.max_rows))
        self._entries_held_since = self._clock()
        return ledger_offset(self._ledger_id, end)

    def _grown_end(self, position: EntryId) -> EntryId:
        """The end; if nothing is new, the end a moment later."""
        end = self._followed_end()
        if end > position:
            return end
        time.sleep(POLL_WAIT_S)
        return self._followed_end()

    def newest_offset(self) -> OffsetJson | None:
        end = self._end()
        newest = ledger_offset(self._ledger_id, end)
        if self._batch_end is None:
            return newest
        return {**newest, "rowsBehind": max(0, end - self._batch_end)}

    def plan(self, start: CheckpointOffset, end: CheckpointOffset) -> list[LedgerPartition]:
        """Partitions of equally many entries. Their number follows from the size in bytes."""
        first = ledger_position(start, self._ledger_id)
        stop = ledger_position(end, self._ledger_id)
        if first >= stop:
            return []
        if stop > self._end():
            self._reader.refresh()
        size_bytes = self._length_at(stop - 1) - (self._length_at(first - 1) if first else 0)
        entries = stop - first
        count = partition_count(size_bytes, entries, self._options.plan)
        cuts = [first + entries * index // count for index in range(count + 1)]
        metadata = self._reader.metadata
        balance = Balance(weights_of(self._bookies()), turn=first)
        return [
            LedgerPartition(
                self._ledger_id,
                EntryId(low),
                EntryId(high - 1),
                index,
                balance.first_reads(
                    units_of_entries(metadata, low, high - 1, size_bytes * (high - low) // entries)
                ),
            )
            for index, (low, high) in enumerate(pairwise(cuts))
        ]

    def _length_at(self, entry_id: int) -> int:
        """Payload bytes of the ledger up to and with an entry, which every entry carries.

        An offset ends at what was confirmed, and this reader may have heard of less since.
        """
        (entry,) = self._reader.read(
            EntryId(entry_id), EntryId(entry_id), unconfirmed=not self._reader.is_closed
        )
        return entry.length

    def forget(self, end: CheckpointOffset) -> None:
        """Nothing is cached."""
