"""One ledger directory: write cache in front of entry logs and index, with its checkpoint mark.

A flush turns the cached runs into blocks of the entry log, syncs it, and commits index rows,
changed ledger records and the mark in one transaction; only then the runs leave the cache
(rule S6).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.blocks import encode_run
from bookie_server.storage.freeing import free_slowly
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.index.base import (
    BlockLocation,
    Index,
    IndexRow,
    IndexUpdate,
    LogUse,
    NotCommittedError,
    run_log_location,
)
from bookie_server.storage.index.intervals import StoredRow, plan_insert
from bookie_server.storage.journal.files import remove_unfinished
from bookie_server.storage.journal.mark import Mark, Marks
from bookie_server.storage.ledgers.block_cache import BlockCache
from bookie_server.storage.ledgers.covered import Covered
from bookie_server.storage.ledgers.dead_blocks import DeadBlocks
from bookie_server.storage.ledgers.directory_scrub import DirectoryScrub, ReadBlock
from bookie_server.storage.ledgers.directory_space import DirectorySpace
from bookie_server.storage.ledgers.entry_log import EntryLogReader
from bookie_server.storage.ledgers.entry_logs import EntryLogs
from bookie_server.storage.ledgers.joining import joined
from bookie_server.storage.ledgers.lacking import Lacking
from bookie_server.storage.ledgers.listing import ascending, page_of, stored_ranges
from bookie_server.storage.ledgers.recent_blocks import RecentIds
from bookie_server.storage.ledgers.slicing import holds, slice_run, take_range
from bookie_server.storage.ledgers.write_cache import CachedRun, Generation, LedgerRuns, WriteCache
from spark_ledger.bookie_api import EntryPage
from spark_ledger.errors import CorruptionError
from spark_ledger.limits.bookie import BOOKIE_OPEN_LOGS_MAX, BOOKIE_READ_QUICK_S
from spark_ledger.limits.storage import DELETED_LEDGERS_AT_ONCE, DELETED_ROWS_AT_ONCE
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId

logger = logging.getLogger(__name__)

_OBJECTS_PER_RUN: Final = 10
"""Of a small run in the write cache: itself, its block, its numbers, and its ledger's lists."""
_LEDGER_RECORDS_MAX: Final = 100_000
"""Most records in memory after a flush, of all directories; beyond it those of the index go."""
_LEDGER_RECORD_BYTES: Final = 300
"""Of a record in memory, about: itself, its hash, its place in the dictionary."""


class DirectoryStore:
    """One directory of ledgers.

    The *service thread* adds runs and sets ledger records, the *flush thread* flushes, and *any
    thread* reads. "Flush thread" means whoever holds the flush lock of ``LedgerStorage``: one at a
    time. During the start, before there are threads, replay has both parts.
    """

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        index: Index,
        *,
        entry_log_bytes: int,
        entry_log_cached_bytes: int = 0,
        block_cache_bytes: int,
        open_logs_max: int = BOOKIE_OPEN_LOGS_MAX,
        directories: int = 1,
    ) -> None:
        remove_unfinished(file_system, directory)
        # Any thread: never changed, or with locks of their own.
        self.directory = directory
        self.index = index
        self.cache = WriteCache()
        self.lacking = Lacking(file_system, directory, index)
        self._file_system, self._directories = file_system, directories
        self._reader = EntryLogReader(
            file_system, directory, direct=entry_log_cached_bytes == 0, open_logs_max=open_logs_max
        )
        self._blocks = BlockCache(block_cache_bytes)
        # Changed under _lock. ``ledger_record`` reads _ledger_records without it: the dict is
        # replaced whole or gets single items, and what leaves it is in the index already. Dirty
        # are the records that changed since the last freeze. Nothing under the lock takes longer
        # the more ledgers there are: the service thread needs it for each add.
        self._lock = threading.Lock()
        self._ledger_records: dict[LedgerId, LedgerRecord] = {}
        self._dirty_ledgers: dict[LedgerId, LedgerRecord] = {}
        self._frozen_ledger_records: dict[LedgerId, LedgerRecord] = {}
        # Changed under _lock, read by any thread for statistics: ledgers that the index lacks, and
        # those of them that are frozen.
        self._new_ledgers = self._frozen_new_ledgers = 0
        # Flush thread.
        self.covered = Covered(index)
        self.logs = EntryLogs(
            file_system,
            directory,
            entry_log_bytes=entry_log_bytes,
            cached_bytes=entry_log_cached_bytes,
            highest_log=index.highest_log(),
            forget=self._reader.forget,
        )
        # Whoever compacts.
        self.space = DirectorySpace(
            file_system, directory, index, self._reader, self.logs, self.covered, self.lacking
        )
        # Whoever scrubs.
        self.scrub = DirectoryScrub(
            file_system, directory, index, self._reader, self.read_block, self.lacking
        )
        # When the flush that runs made progress; its thread writes it, any thread reads it.
        self.moved_at = 0.0
        self._frozen_unsettled: set[LedgerId] = set()
        # Any thread reads it, and the one that deletes replaces it whole: these are on their way
        # out.
        self._leaving: frozenset[LedgerId] = frozenset()

    # -- ledger records ------------------------------------------------------------------------

    def ledger_record(self, ledger_id: LedgerId) -> LedgerRecord | None:
        """The ledger's record, None if it has none; any thread.

        Memory is asked before the index (rule S7): a ledger record leaves memory only after the
        commit that stored it, so one that is not in memory is in the index as it was last set.
        """
        ledger_record = self._ledger_records.get(ledger_id)
        if ledger_record is None and ledger_id in self._leaving:
            return None  # the metadata say what becomes of an add (rule S17)
        return self.index.ledger_record(ledger_id) if ledger_record is None else ledger_record

    def set_ledger_record(self, ledger_id: LedgerId, ledger_record: LedgerRecord) -> None:
        """Replace the ledger's record (service thread)."""
        with self._lock:
            if ledger_id in self._leaving:
                return  # decided before the deletion began; its run is dropped as well
            before = self._ledger_records.get(ledger_id)
            assert ledger_record.grew_from(before), f"ledger {ledger_id}: {before} is taken back"
            self._ledger_records[ledger_id] = ledger_record
            self._dirty_ledgers[ledger_id] = ledger_record
            if before is None and not self.index.knows(ledger_id):
                self._new_ledgers += 1

    def dirty_ledgers(self) -> set[LedgerId]:
        """Ledgers whose record is newer than the one in the index; any thread."""
        with self._lock:
            return self._dirty_ledgers.keys() | self._frozen_ledger_records.keys()

    @property
    def mark(self) -> Mark | None:
        """Up to where it has the journal; the flush thread."""
        return self.covered.mark

    def uncovered(self, marks: Marks) -> set[LedgerId]:
        """Ledgers of which memory has more than the index, or a start may bring something back that
        lies before these marks. Whoever has the flush lock."""
        return self.dirty_ledgers() | self.covered.behind(*marks)

    @property
    def ledger_count(self) -> int:
        """Ledgers that have a record; any thread. While a flush ends it may be of two moments."""
        return self.index.ledger_count() + self._new_ledgers

    @property
    def objects_held(self) -> int:
        """About how many objects a search for cyclic garbage visits here; any thread."""
        return _OBJECTS_PER_RUN * self.cache.run_count + len(self._ledger_records)

    def memory_bytes(self) -> dict[str, int]:
        """What caches hold, by name; any thread. The write cache counts itself."""
        return {
            "blocks": self._blocks.size_bytes,
            "index": self.index.memory_bytes(),
            "ledger_records": len(self._ledger_records) * _LEDGER_RECORD_BYTES,
        }

    # -- reading -------------------------------------------------------------------------------

    def read(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        *,
        stride: int,
        max_bytes: int,
    ) -> EntryRun | None:
        """Entries first, first + stride, ... as far as one run holds them (see ``slice_run``).

        None only if neither cache nor index has ``first``. The cache is asked before the index
        (rule S7): a flush fills the index before it empties the cache, so no entry is ever in
        neither. In the other order an entry could move between the two questions, and a bookie
        would deny what it acknowledged. Raises CorruptionError or OSError if the entry is stored
        and cannot be read.
        """
        cached = self.cache.find(ledger_id, first)
        if cached is not None:
            return slice_run(cached, first, last, stride=stride, max_bytes=max_bytes)
        found = self._stored_run(ledger_id, first)
        if found is None:
            return None
        row, run = found
        part = slice_run(run, first, last, stride=stride, max_bytes=max_bytes)
        if part is not run:  # the rest of the block is likely to be asked for next
            if part.last_entry + stride > run.last_entry:
                self._blocks.drop(row.location)
            else:
                self._blocks.put(row.location, run)
        return part

    def run_with(
        self, ledger_id: LedgerId, entry_id: EntryId, fetch: ReadBlock | None = None
    ) -> EntryRun | None:
        """As ``read``, but whole and uncut. What is in no cache is asked of ``fetch``."""
        cached = self.cache.find(ledger_id, entry_id)  # before the index (rule S7)
        if cached is not None:
            return cached
        row, run = self._stored_run(ledger_id, entry_id, fetch) or (None, None)
        if row is not None and run is not None:
            self._blocks.put(row.location, run)  # who sends one again is likely to send the next
        return run

    def _stored_run(
        self, ledger_id: LedgerId, entry_id: EntryId, fetch: ReadBlock | None = None
    ) -> tuple[IndexRow, EntryRun] | None:
        """The run in the entry log that holds an entry, with its row. Raises as ``read``."""
        row = self.index.row_at(ledger_id, entry_id)
        while True:
            if row is None or entry_id > row.last_entry:
                return None
            try:
                run = self._blocks.get(row.location) or (fetch or self.read_block)(ledger_id, row)
                break
            except CorruptionError:  # copied since (rule S20), or given back, if the row differs
                before, row = row, self.index.row_at(ledger_id, entry_id)
                if row == before:
                    raise
        if holds(run, entry_id):
            return row, run
        if not row.is_sparse:
            raise CorruptionError(
                f"index {self.directory}: entry {entry_id} of ledger {ledger_id} should be in "
                f"log {row.location.log_id} at offset {row.location.offset}, and is not"
            )
        self._blocks.put(row.location, run)  # its other holes are likely to be asked for next
        return None

    def read_block(self, ledger_id: LedgerId, row: IndexRow) -> EntryRun:
        """The run that a row names. Raises CorruptionError if what is there is another one."""
        entries = 0 if row.is_sparse else row.last_entry - row.first_entry + 1
        run = self._reader.read(row.location, entries=entries)
        if run.ledger_id != ledger_id or run.last_entry != row.last_entry:
            raise CorruptionError(
                f"index {self.directory}: ledger {ledger_id} up to entry {row.last_entry} should "
                f"be in log {row.location.log_id} at offset {row.location.offset}, and ledger "
                f"{run.ledger_id} up to entry {run.last_entry} is"
            )
        return run

    def entry_page(self, ledger_id: LedgerId, first: EntryId, limit: int) -> EntryPage:
        """What is held from ``first`` on: so many stretches, rows, and blocks that come in time."""
        # Cache before index (rule S7): an entry that moves meanwhile is listed twice, not missed.
        cached = [run for run in self.cache.runs_of(ledger_id) if run.last_entry >= first]
        rows = self.index.rows_from(ledger_id, first, limit + 1)
        read, ends_at = partial(self.read_block, ledger_id), time.monotonic() + BOOKIE_READ_QUICK_S
        while True:
            try:
                stored, end = stored_ranges(
                    rows, first, limit, read, lambda: time.monotonic() >= ends_at
                )
                return page_of(ascending(cached, stored), first, limit, end)
            except CorruptionError:  # as in ``_stored_run``
                before, rows = rows, self.index.rows_from(ledger_id, first, limit + 1)
                if rows == before:
                    raise

    # -- flushing ------------------------------------------------------------------------------

    def flush(
        self,
        mark: Mark | None,
        run_log_mark: Mark | None = None,
        unwritten: Iterable[LedgerId] = (),
    ) -> bool:
        """Store cached runs and changed ledger records in entry log and index; False if none.

        ``mark`` was durable in the journal before this call, so all it covers is in the cache or
        stored (rule S2); ``run_log_mark`` likewise in the run log. One that is None stays where it
        is. ``unwritten``: see ``Covered.freeze``. Raises OSError or CorruptionError: nothing is
        lost from the cache, no mark has moved, and the next call tries again with a new entry log.
        """
        if self.cache.frozen is None:
            # Without the lock: what is added meanwhile is not covered by the mark yet.
            moved = self.covered.is_before(mark, run_log_mark)
            if not moved and not self.cache.active_bytes and not self._dirty_ledgers:
                return False
            self._freeze(mark, run_log_mark, unwritten)
        # After a failed flush the frozen generation is the old one, and so are its marks: the new
        # marks cover adds that are in the active generation only.
        assert self.cache.frozen is not None
        update = self.index.begin()
        committing = False
        try:
            ledgers = self.cache.frozen.ledgers
            for ledger_id in sorted(ledgers):
                self._store_ledger(update, ledger_id, ledgers[ledger_id])
            if self.cache.frozen.run_count:
                self.logs.sync()
            self.moves()
            for ledger_id, ledger_record in self._frozen_ledger_records.items():
                if ledger_id in self._frozen_unsettled:  # it names a run that is not stored yet
                    last_entry = update.last_entry(ledger_id)
                    last_entry = max(last_entry, self.lacking.last_entry(ledger_id))
                    ledger_record = ledger_record._replace(last_entry=last_entry)
                update.put_ledger_record(ledger_id, ledger_record)
            self.moves()
            self.covered.put_into(update)
            committing = True
            update.commit()
        except BaseException as error:
            # On a full disk this happens again and again: logs that were kept would eat up what is
            # left of it, for good.
            committing = committing and not isinstance(error, NotCommittedError)
            update.abort()
            self.logs.abandon(committing=committing)
            raise
        self._after_commit(self.cache.frozen)
        return True

    # -- deletion ------------------------------------------------------------------------------

    def forget(self, ledger_ids: Iterable[LedgerId], *, named: bool = False) -> list[LedgerId]:
        """Take ledgers out of memory, and let nothing of them in before ``forgotten`` (rule S17);
        which. ``named``: those of which the index lacks a record stay (G9). Has the flush lock."""
        with self._lock:
            unstored = (self._dirty_ledgers, self._frozen_ledger_records) if named else ()
            leaving = [each for each in ledger_ids if all(each not in of for of in unstored)]
            self._leaving = ledger_ids = frozenset(leaving)
            for ledger_id in ledger_ids:
                record = self._ledger_records.pop(ledger_id, None)
                self._dirty_ledgers.pop(ledger_id, None)
                frozen = self._frozen_ledger_records.pop(ledger_id, None)
                if record is not None and not self.index.knows(ledger_id):
                    self._new_ledgers -= 1
                    self._frozen_new_ledgers -= frozen is not None
        self.cache.forget(ledger_ids)
        return leaving

    def delete_some(self, ledger_ids: Sequence[LedgerId], dead: DeadBlocks) -> tuple[int, LogUse]:
        """Take the first of these ledgers out of the index, in one transaction of bounded size; how
        many are gone, and what they held. Whoever holds the flush lock; after ``forget``. ``dead``
        gets their blocks, the last of which rows may still name.

        A ledger with more rows than one transaction takes goes in several. Its record goes last: if
        a crash comes between, it is found again.
        """
        assert self._leaving.issuperset(ledger_ids), "memory forgets a ledger before the index does"
        update = self.index.begin()
        gone, freed, blocks = 0, LogUse(), list[BlockLocation]()
        try:
            for ledger_id in ledger_ids[:DELETED_LEDGERS_AT_ONCE]:
                room = DELETED_ROWS_AT_ONCE - freed.rows
                taken = update.delete_rows(ledger_id, room)
                for row in taken:
                    freed = freed.with_row(row, 1)
                    blocks.append(row.location)
                if len(taken) == room:
                    break
                update.delete_ledger_record(ledger_id)
                gone += 1
            update.commit()
        except BaseException:
            update.abort()
            raise
        for location in blocks:
            dead.add(location)
        return gone, freed

    def forgotten(self) -> None:
        """The deletion has ended, well or not; the thread that called ``forget``."""
        self.cache.remember()
        self._leaving = frozenset()

    def moves(self) -> None:
        """A flush begins, or makes progress: its disk works (rule S15)."""
        self.moved_at = time.monotonic()

    def close(self) -> None:
        """Finish the entry log and close the files; flush first."""
        try:
            self.logs.close()
        finally:
            self._reader.close()
            self.index.close()

    def _freeze(
        self, mark: Mark | None, run_log_mark: Mark | None, unwritten: Iterable[LedgerId] = ()
    ) -> None:
        """Set apart what this flush stores: runs, changed ledger records and their marks."""
        with self._lock:
            assert not self._frozen_ledger_records, (
                "the ledger records of the last flush are stored first"
            )
            frozen = self.cache.freeze()
            records = self._frozen_ledger_records = self._dirty_ledgers
            # The next flush stores these again, with the runs that are not durable yet.
            unsettled = self._frozen_unsettled = self.cache.unsettled_ledgers()
            self._dirty_ledgers = {each: records[each] for each in unsettled if each in records}
            self._frozen_new_ledgers = self._new_ledgers
        frozen.check()  # without the lock: it looks at every run, and adds must not wait for it
        self.covered.freeze(mark, run_log_mark, records, unwritten)

    def _after_commit(self, frozen: Generation) -> None:
        """Let go of what the index has: only now, so that readers find it here or there."""
        self.covered.committed()
        self.logs.committed()
        dropped: dict[LedgerId, LedgerRecord] = {}
        with self._lock:
            stored, self._frozen_ledger_records = self._frozen_ledger_records, {}
            self._new_ledgers -= self._frozen_new_ledgers
            self._frozen_new_ledgers = 0
            if len(self._ledger_records) > _LEDGER_RECORDS_MAX // self._directories:
                # A new dict: ``ledger_record`` may be reading the old one. What changed since the
                # freeze stays, as the index has it in an older form.
                dropped, self._ledger_records = self._ledger_records, dict(self._dirty_ledgers)
        self.cache.drop_frozen()
        for values in (dropped, stored, frozen.ledgers):
            free_slowly(values)
        self.logs.finish_full()

    def _store_ledger(self, update: IndexUpdate, ledger_id: LedgerId, runs: LedgerRuns) -> None:
        last = update.last_entry(ledger_id)
        for cached in joined(runs.ordered):
            # Ordered runs share no entries, so a run above all that is stored needs no look-up.
            if cached.run.first_entry > last:
                update.append_row(ledger_id, self._write_run(cached))
            else:
                self._store_among(update, cached)
        for cached in runs.overlapping:
            self._store_among(update, cached)

    def _write_run(self, cached: CachedRun) -> IndexRow:
        """Put a run into the entry log, unless it is in the run log; the row that names it."""
        run, place = cached.run, cached.place
        if place is not None and place.location is not None:
            location = run_log_location(*place.location, cached.block.length)
        else:
            location = self.logs.append(cached.block)
        self.moves()
        return IndexRow(run.first_entry, run.last_entry, location, run.entry_ids is not None)

    def _store_among(self, update: IndexUpdate, cached: CachedRun) -> None:
        """Store those entries of a run that are not stored yet, among those that are (rule S8)."""
        run = cached.run
        found = update.rows_in_range(run.ledger_id, run.first_entry, run.last_entry)
        assert all(left.first_entry < right.first_entry for left, right in pairwise(found.rows)), (
            f"rows of ledger {run.ledger_id} are out of order: {found.rows}"
        )
        ids, recent = run.ids(), RecentIds(partial(self._stored_block, run.ledger_id))
        stored = [StoredRow(row.first_entry, recent.from_on(row, ids[0])) for row in found.rows]
        for number, piece in enumerate(plan_insert(ids, stored, found.end)):
            if cached.place is not None and cached.place.location is not None:
                # It stays in the run log, and its rows reach up to the next row only.
                first = EntryId(ids[piece.start])
                row = self._write_run(cached)._replace(first_entry=first, is_part=number > 0)
            else:
                row = self._write_part(cached, take_range(run, piece.start, piece.stop))
            update.put_row(run.ledger_id, row)
            if piece.resumed_row >= 0:
                before = found.rows[piece.resumed_row]
                first = EntryId(piece.resume_at)
                update.put_row(run.ledger_id, before._replace(first_entry=first, is_part=True))

    def _write_part(self, cached: CachedRun, part: EntryRun) -> IndexRow:
        """Put entries of a run that have none between them into the entry log; their row."""
        if part is cached.run:
            return self._write_run(cached)
        last_add_confirmed = cached.last_add_confirmed
        block = encode_run(part, last_add_confirmed)
        return self._write_run(CachedRun(part, last_add_confirmed, block))

    def _stored_block(self, ledger_id: LedgerId, row: IndexRow) -> EntryRun:
        self.logs.make_readable(row.location.log_id)
        return self.read_block(ledger_id, row)
