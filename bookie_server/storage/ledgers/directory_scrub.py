"""Reads all that one ledger directory stores, and takes what is damaged out of the index (S22).

Ledger by ledger, row by row, as the index names the blocks: what no row names is dead, and harms
nobody. Where a pass is stands in a small file, so that a restart goes on there.
"""

from __future__ import annotations

import errno
import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Annotated, Final, NamedTuple

import msgspec

from bookie_server.storage.fs.vfs import FileSystem, read_file, write_file_durably
from bookie_server.storage.index.base import Index, IndexRow
from bookie_server.storage.ledgers.entry_log import EntryLogReader
from bookie_server.storage.ledgers.lacking import NO_LOG, Lack, Lacking, Range, TooMuchLackingError
from bookie_server.storage.ledgers.pacing import Pace
from bookie_server.storage.ledgers.recent_blocks import RecentBlocks
from bookie_server.storage.ledgers.stretches import stretches
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.limits.storage import (
    COMPACTION_ROWS_AT_ONCE,
    SCRUB_LEDGERS_AT_ONCE,
    SCRUB_SAVED_S,
)
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId

logger = logging.getLogger(__name__)

POSITION_NAME: Final = "scrub.json"
_VERSION: Final = 1
_FILE_BYTES_MAX: Final = 4 * KIB
_DISK_ERRORS: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
"""What a disk says of sectors that it cannot read. Any other error says nothing about them."""

ReadBlock = Callable[[LedgerId, IndexRow], EntryRun]


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a directory is. ``ledger_id`` and ``entry_id``: what is verified next."""

    format_version: int = _VERSION
    ledger_id: Annotated[int, msgspec.Meta(ge=0)] = 0
    entry_id: Annotated[int, msgspec.Meta(ge=0)] = 0
    is_running: bool = False
    must_heal: bool = False
    """The pass has met a ledger whose rows do not add up: also a restart ends with what follows."""
    must_repeat: bool = False
    """The pass has met damage that it could not take out of the index: another one follows it."""
    ended_at: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """When the last full pass ended, since 1970; 0: there was none."""


class _StaysError(Exception):
    """What is damaged could not be taken out of the index; says why."""

    def __init__(self, why: OSError | CorruptionError) -> None:
        super().__init__(str(why))
        self.why = why


class ScrubCounts(NamedTuple):
    """Since the process began; ``ended_at`` and ``lacking`` outlive it."""

    ended_at: float = 0.0
    blocks: int = 0
    byte_count: int = 0
    bad_blocks: int = 0
    bad_ledgers: int = 0
    """Ledgers whose rows in the index do not add up."""
    lacking: int = 0
    refetched: int = 0


class DirectoryScrub:
    """One directory; *whoever scrubs*, one thread at a time. Counts and the list: any thread."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        index: Index,
        reader: EntryLogReader,
        read_block: ReadBlock,
        lacking: Lacking,
    ) -> None:
        # Any thread: never changed.
        self.directory = directory
        self.lacking = lacking
        self._file_system = file_system
        self._index = index
        self._reader = reader
        self._read_block = read_block
        # Whoever scrubs; replaced whole, any thread reads them.
        self.position = self._saved_position()
        self._counts = ScrubCounts()
        # Whoever holds the list's lock; any thread reads it: ledgers that ``heal`` has met.
        self._healed = 0
        # Whoever holds the list's lock: damage that ``heal`` did not mend since a pass ended. Each
        # has cost a look at all rows, so they are not many.
        self._in_vain: set[str] = set()
        # Whoever scrubs.
        self._saved_s = time.monotonic()

    @property
    def counts(self) -> ScrubCounts:
        """Any thread."""
        return self._counts._replace(
            bad_ledgers=self._counts.bad_ledgers + self._healed,
            ended_at=self.position.ended_at,
            lacking=self.lacking.count,
            refetched=self.lacking.refetched,
        )

    def is_due(self, interval_s: float) -> bool:
        """Whether a pass is to begin, or to go on. A clock that was ahead at the end of the last
        one does not put the next one off."""
        position, since_s = self.position, time.time() - self.position.ended_at
        return position.is_running or not 0 <= since_s < interval_s

    def begin_anew(self) -> None:
        """Have the next pass read everything, also what an unfinished one has read."""
        self.position = Position(ended_at=self.position.ended_at)

    def run(self, flush_lock: Lock, pace: Pace) -> None:
        """Go on with a pass, or begin one, up to its end.

        Raises OSError and CorruptionError if it cannot go on, and what ``pace`` raises; the next
        call goes on where this one was. What is damaged and cannot be taken out holds up nothing
        else: the rest is read, then that is raised, and the next call reads everything again.
        """
        self._check_heads()
        self.position = msgspec.structs.replace(self.position, is_running=True)
        failed: OSError | CorruptionError | None = None
        try:
            self._try_to_heal(flush_lock)  # the last pass could not, or did not come to its end
            while ledgers := self._index.held_ledgers(
                self.position.ledger_id - 1, SCRUB_LEDGERS_AT_ONCE
            ):
                for ledger in ledgers:
                    try:
                        self._check_ledger(ledger.ledger_id, flush_lock, pace)
                    except _StaysError as error:
                        failed = failed or error.why
                        self.position = msgspec.structs.replace(self.position, must_repeat=True)
                    self._go_to(LedgerId(ledger.ledger_id + 1), 0)
            failed = self._try_to_heal(flush_lock) or failed
            with self.lacking.lock:
                self._in_vain.clear()
            before = self.position
            if before.must_heal or before.must_repeat:
                self.position = Position(
                    is_running=True, must_heal=before.must_heal, ended_at=before.ended_at
                )
            else:
                self.position = Position(ended_at=time.time())
        finally:
            with suppress(OSError):  # the next pass reads a little twice
                self._save()
        if failed is not None:
            raise failed

    def heal(self, flush_lock: Lock, met: CorruptionError) -> bool:
        """Heal the index now, as somebody met damage in it; whether any was taken out. Any thread,
        without the flush lock. Raises OSError and CorruptionError if that is not possible.

        It reads all rows while everybody waits for the flush lock. So the same damage has it tried
        once, and again behind the next pass of the scrub, if the index has nothing to take out, or
        cannot be mended; and a disk that has no room for the list is asked before.
        """
        with self.lacking.lock:
            if str(met) in self._in_vain:
                return False
            self.lacking.check_room()
            try:
                dropped = self._heal(flush_lock)
            except (CorruptionError, TooMuchLackingError):
                self._in_vain.add(str(met))
                raise
            if not dropped:
                self._in_vain.add(str(met))
            self._healed += len(dropped)
        for ledger_id in dropped:
            logger.error("ledger %d: its rows in the index were damaged, and are gone", ledger_id)
        return bool(dropped)

    def _check_heads(self) -> None:
        """Have every log opened anew: one with a damaged header is not read from memory's word."""
        for log_id in self._index.log_use() or ():
            self._reader.forget(log_id)

    def _check_ledger(self, ledger_id: LedgerId, flush_lock: Lock, pace: Pace) -> None:
        first = self.position.entry_id if self.position.ledger_id == ledger_id else 0
        try:
            self._index.ledger_record(ledger_id)
            rows = self._index.rows(ledger_id)
        except CorruptionError as error:
            self._counts = self._counts._replace(bad_ledgers=self._counts.bad_ledgers + 1)
            self.position = msgspec.structs.replace(self.position, must_heal=True)
            logger.error("ledger %d cannot be verified: %s", ledger_id, error)  # noqa: TRY400
            return
        bad: list[tuple[IndexRow, Lack]] = []
        verdicts = RecentBlocks[bool]()
        done = first
        try:
            for number, row in enumerate(rows, start=1):
                if row.first_entry < first:
                    continue
                is_good = verdicts.get(row.location)
                damaged = None if is_good else row
                if is_good is None:
                    pace(row.byte_count)
                    damaged = self._damaged(ledger_id, row)
                    if damaged in (None, row):  # a block that has moved is damaged elsewhere
                        verdicts.put(row.location, damaged is None)
                if damaged is not None:
                    end = rows[number].first_entry - 1 if number < len(rows) else row.last_entry
                    last = EntryId(min(row.last_entry, end))
                    log_id = damaged.location.log_id
                    bad.append((damaged, Lack(ledger_id, row.first_entry, last, log_id)))
                if len(bad) >= COMPACTION_ROWS_AT_ONCE:
                    self._take_out(ledger_id, bad, flush_lock)
                done = row.first_entry + 1
                if not bad:
                    self._go_to(ledger_id, done)
        finally:
            self._take_out(ledger_id, bad, flush_lock)
            self._go_to(ledger_id, done)  # not before what was found is on the list

    def _damaged(self, ledger_id: LedgerId, row: IndexRow) -> IndexRow | None:
        """The row as it is now, if its block cannot be read; None if it can, or is not wanted.

        Read twice: a block may be copied meanwhile, and a disk may fail once.
        """
        failed = False
        while True:
            try:
                self._read_block(ledger_id, row)
            except (CorruptionError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in _DISK_ERRORS:
                    raise
                why = error
            else:
                self._count(row)
                return None
            now = self._index.row_at(ledger_id, row.first_entry)
            if now is None or now.first_entry != row.first_entry:
                return None  # the ledger was deleted
            if now == row and failed:
                self._count(row)
                self._counts = self._counts._replace(bad_blocks=self._counts.bad_blocks + 1)
                logger.error(
                    "ledger %d lacks entries from %d on: %s", ledger_id, row.first_entry, why
                )
                return row
            row, failed = now, now == row

    def _count(self, row: IndexRow) -> None:
        counts = self._counts
        self._counts = counts._replace(
            blocks=counts.blocks + 1, byte_count=counts.byte_count + row.byte_count
        )

    def _take_out(
        self, ledger_id: LedgerId, bad: list[tuple[IndexRow, Lack]], flush_lock: Lock
    ) -> None:
        """List what is lacking, durably; then take the rows out, so that copies can come. Raises
        _StaysError if a disk or the index does not take it."""
        if not bad:
            return
        try:
            with self.lacking.lock:
                self.lacking.add(lack for _, lack in bad)
                with flush_lock:
                    self._delete_rows(ledger_id, [row for row, _ in bad])
        except (OSError, CorruptionError) as error:
            raise _StaysError(error) from error
        bad.clear()

    def _delete_rows(self, ledger_id: LedgerId, rows: Sequence[IndexRow]) -> None:
        update = self._index.begin()
        try:
            for row in rows:
                update.delete_row(ledger_id, row)
            update.commit()
        except BaseException:
            update.abort()
            raise

    def _try_to_heal(self, flush_lock: Lock) -> OSError | CorruptionError | None:
        """Heal the index if a pass has met what does not add up; why that failed."""
        if not self.position.must_heal:
            return None
        try:
            self._heal(flush_lock)
        except (OSError, CorruptionError) as error:
            return error
        self.position = msgspec.structs.replace(self.position, must_heal=False)
        return None

    def _heal(self, flush_lock: Lock) -> list[LedgerId]:
        """Take the rows of ledgers that do not add up out of the index, once all that they may have
        named is on the list (rule S24); of which."""
        with self.lacking.lock, flush_lock:
            update = self._index.begin()
            try:
                dropped = update.drop_damaged()
                if not dropped:  # a commit would count all rows anew, and wait for the disk
                    update.abort()
                    return []
                lacks = []
                for ledger_id, last in dropped.items():
                    record = self._index.ledger_record(ledger_id)
                    if record is not None:  # else only a damaged key has named it
                        lacks.append(
                            Lack(ledger_id, EntryId(0), max(last, record.last_entry), NO_LOG)
                        )
                self.lacking.add(lacks)
                update.commit()
            except BaseException:
                update.abort()
                raise
        return sorted(dropped)

    # -- copies ------------------------------------------------------------------------------------

    def copies_of(self, lack: Lack) -> list[Range]:
        """What rows name of a stretch on the list, ascending, without what cannot be read; any
        thread.

        The write cache does not count: what is there only may be lost by a crash, and once the
        stretch is off the list it would be denied (rule S22). The damaged block does not count
        either, if its row is still there: so all blocks in its log are read. Raises OSError and
        CorruptionError if the index cannot be read.
        """
        found: list[Range] = []
        first: EntryId | None = lack.first
        readable = RecentBlocks[Sequence[int]]()
        while first is not None and first <= lack.last:
            rows = self._index.rows_from(lack.ledger_id, first, COMPACTION_ROWS_AT_ONCE + 1)
            behind = rows[COMPACTION_ROWS_AT_ONCE:]
            for number, row in enumerate(rows[:COMPACTION_ROWS_AT_ONCE], start=1):
                if row.first_entry <= lack.last:
                    end = rows[number].first_entry if number < len(rows) else None
                    found += self._readable(lack, row, end, readable)
            first = behind[0].first_entry if behind else None
        return found

    def _readable(
        self,
        lack: Lack,
        row: IndexRow,
        end: EntryId | None,
        readable: RecentBlocks[Sequence[int]],
    ) -> Iterator[Range]:
        """Entries that a row decides about, up to before ``end``, if its block can be read."""
        last = row.last_entry if end is None else EntryId(min(row.last_entry, end - 1))
        if not row.is_sparse and row.location.log_id != lack.log_id:
            yield row.first_entry, last
            return
        ids = readable.get(row.location)
        if ids is None:
            ids = self._readable_ids(lack.ledger_id, row)
            readable.put(row.location, ids)
        yield from stretches(list(ids[bisect_left(ids, row.first_entry) : bisect_right(ids, last)]))

    def _readable_ids(self, ledger_id: LedgerId, row: IndexRow) -> Sequence[int]:
        try:
            return self._read_block(ledger_id, row).ids()
        except (CorruptionError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _DISK_ERRORS:
                raise
            return ()

    # -- the position ------------------------------------------------------------------------------

    def _go_to(self, ledger_id: LedgerId, entry_id: int) -> None:
        self.position = msgspec.structs.replace(
            self.position, ledger_id=ledger_id, entry_id=entry_id
        )
        if time.monotonic() - self._saved_s >= SCRUB_SAVED_S:
            with suppress(OSError):
                self._save()

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        data = msgspec.json.encode(self.position) + b"\n"
        write_file_durably(self._file_system, self.directory / POSITION_NAME, data)

    def _saved_position(self) -> Position:
        """Where the last process was; a pass begins anew if that cannot be told."""
        path = self.directory / POSITION_NAME
        try:
            data = read_file(self._file_system, path, size_max=_FILE_BYTES_MAX)
            position = msgspec.json.decode(data, type=Position)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return Position()
        return position if position.format_version == _VERSION else Position()
