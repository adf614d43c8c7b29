"""What the logs of one ledger directory take, and how that is freed (rules S19 and S20).

A log without rows is removed. One with few is copied first: its live blocks go to a new entry log,
that is synced, the index moves the rows, and only a log that no row names any more is removed.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from bookie_server.core.compaction import LogState
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.index.base import (
    BlockLocation,
    Index,
    IndexRow,
    LogUse,
    NotCommittedError,
    run_log_id,
)
from bookie_server.storage.journal.files import journal_numbers
from bookie_server.storage.ledgers.covered import Covered
from bookie_server.storage.ledgers.dead_blocks import DeadBlocks
from bookie_server.storage.ledgers.entry_log import EntryLogReader, EntryLogWriter, block_path
from bookie_server.storage.ledgers.entry_log import log_ids as entry_log_ids
from bookie_server.storage.ledgers.entry_logs import EntryLogs
from bookie_server.storage.ledgers.lacking import NO_LOG, Lacking
from bookie_server.storage.ledgers.log_scan import scan_blocks
from bookie_server.storage.ledgers.pacing import Pace
from spark_ledger.errors import CorruptionError
from spark_ledger.limits.storage import COMPACTION_ROWS_AT_ONCE
from spark_ledger.types import LedgerId

logger = logging.getLogger(__name__)

_NO_HOLES: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


class _Move(NamedTuple):
    """A row whose block has a copy."""

    ledger_id: LedgerId
    row: IndexRow
    moved: IndexRow


class DirectorySpace:
    """The logs of one directory that take no more; *whoever compacts*, one thread at a time.

    ``lock`` is the flush lock: under it no flush has a log that rows will name, and nobody else
    changes the index.
    """

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        index: Index,
        reader: EntryLogReader,
        logs: EntryLogs,
        covered: Covered,
        lacking: Lacking,
    ) -> None:
        """``lacking``: what is damaged and of which no good copy has come yet: its logs stay."""
        # Any thread: never changed.
        self.directory = directory
        self._file_system = file_system
        self._index = index
        self._reader = reader
        self._logs = logs
        self._covered = covered
        self._lacking = lacking
        # Any thread: it has a lock of its own.
        self.dead = DeadBlocks()
        """What has died and was not looked at yet."""
        # Whoever compacts.
        self._dead = DeadBlocks()
        """Of these, what had died before the last look at what rows name."""
        self._has_holes = True
        """Whether the file system gives ranges of files back, as far as is known."""
        self.damaged: set[int] = set()
        """Logs that cannot be copied, as this process has seen: each is told once, and stays while
        rows name it and no copy has come."""
        self._unmeasured: set[int] = set()
        """Logs whose size could not be told at the last look: each is told once."""
        self._lost: frozenset[LedgerId] = frozenset()
        """Ledgers whose blocks may be anywhere, as logs were read for them; some may be back."""
        self._lost_in: dict[int, frozenset[LedgerId]] = {}
        """Which of them have blocks in a log: of those that were read."""
        self._copies: dict[int, int] = {}
        """Logs of copies, and what was alive in each at the first look."""
        self._writer: EntryLogWriter | None = None
        self._named_bytes = 0
        """Up to where rows may name blocks of it."""

    def may_compact(self, log: LogState) -> bool:
        """Whether a copy could be smaller, and can be made.

        A log of copies has no more dead in it than its form needs, until something in it dies: on
        a full disk it would be copied again and again.
        """
        if log.log_id in self.damaged:
            return False
        if log.log_id in self._copies:
            alive = self._copies[log.log_id] = self._copies[log.log_id] or log.live_bytes
            return log.live_bytes < alive
        return True

    def survey(self, lock: Lock) -> list[LogState]:
        """All logs that take no more. None is listed while the index cannot tell what it names."""
        self._dead.take_from(self.dead)  # before the index: so their rows are not counted below
        with lock:
            uses = self._index.log_use()
            if uses is None:
                return []
            in_use = self._logs.in_use()
            if self._writer is not None:
                in_use.add(self._writer.log_id)
            found = [each for each in self._entry_logs() if each not in in_use]
            found += map(run_log_id, self._covered_run_log_files())
            # Behind a damaged index any log may have been one of them.
            repaired = self._lacking.take_repaired()
            self.damaged &= set() if NO_LOG in repaired else uses.keys() - repaired
            self._tell_missing(uses, in_use)
        awaited = self._lacking.logs()  # after the index: rows go behind the note of what lacks
        return [
            LogState(log_id, taken, *uses.get(log_id, LogUse()))
            for log_id in found
            if log_id not in awaited and (taken := self._taken_bytes(log_id)) is not None
        ]

    def free_bytes(self) -> int:
        """What is free on the disk. Raises OSError."""
        return self._file_system.space(self.directory).free_bytes

    def may_go(self, log_id: int) -> bool:
        """Whether copies are awaited of nothing in a log that takes no more (rules S22 and S24).

        While the index does not know where the blocks of some ledgers are, the log is read for
        them, once. Raises OSError.
        """
        if log_id in self._lacking.logs():
            return False
        lost = self._lacking.anywhere()
        if not lost or not lost <= self._lost:
            self._lost = lost
            self._lost_in.clear()
        if lost and log_id not in self._lost_in:
            self._lost_in[log_id] = self._find_lost(log_id)
        return not lost or not lost & self._lost_in[log_id]

    def _find_lost(self, log_id: int) -> frozenset[LedgerId]:
        try:
            blocks = scan_blocks(*self._reader.open_log(log_id), log_id)
            found = frozenset(block.ledger_id for block in blocks) & self._lost
        except CorruptionError as error:
            logger.warning("%s stays until copies came: %s", self._path(log_id), error)
            return self._lost
        if found:
            logger.warning(
                "%s stays until copies of ledger %d came: its rows were damaged",
                self._path(log_id),
                min(found),
            )
        return found

    def remove(self, log: LogState) -> None:
        """Remove a log that no row names: none ever will (rule S19). Raises OSError."""
        assert log.rows == 0, f"rows name log {log.log_id}"
        self._file_system.remove(self._path(log.log_id))
        self._copies.pop(log.log_id, None)
        self._dead.pop(log.log_id)
        # Behind the removal: a reader that opened it before would keep its blocks on the disk.
        self._reader.forget(log.log_id)
        self._lost_in.pop(log.log_id, None)

    def give_back(self, log: LogState) -> LogState:
        """Give back what dead blocks of a log take, where they are (rule S25); the log as it is
        then. Raises OSError.

        ``log`` is as the last survey saw it. More than was dead by then is not given back: either
        the table of logs is wrong, or the list of the dead is.
        """
        holes = self._dead.pop(log.log_id)
        if not holes or not self._has_holes:
            return log
        if sum(hole.length for hole in holes) > log.garbage_bytes:
            return log
        if not self.may_go(log.log_id):
            return log
        file = self._file_system.open(self._path(log.log_id), writable=True)
        try:
            for hole in holes:
                file.punch(*hole)
            return log._replace(byte_count=file.size() - file.hole_bytes())
        except OSError as error:
            if error.errno not in _NO_HOLES:
                raise
            self._has_holes = False
            logger.info("%s: space of dead entries comes back by copies: %s", self.directory, error)
            return log
        finally:
            file.close()

    def compact(self, log: LogState, lock: Lock, pace: Pace, log_bytes: int) -> bool:
        """Copy what is alive in a log, and remove it; False if it has to stay (rule S20).

        The copy goes behind those of the logs before, up to ``log_bytes``. Raises OSError, then
        the old log is there as it was, and ``Stopped``.
        """
        if not self.may_go(log.log_id):
            return False
        moves: list[_Move] = []
        moved = 0
        try:
            file, seed = self._reader.open_log(log.log_id)
            for block in scan_blocks(file, seed, log.log_id):
                rows = self._index.rows_of_block(*block[1:], block.location)
                if not rows:
                    continue
                pace(block.location.length)
                copy = self._reader.read_block(block.location)
                location = self._writer_for(lock, log_bytes).append(copy)
                for number, row in enumerate(rows):
                    # The first row may have moved before, without those that a flush added.
                    copied = row._replace(location=location, is_part=number > 0)
                    moves.append(_Move(block.ledger_id, row, copied))
                if len(moves) >= COMPACTION_ROWS_AT_ONCE:
                    moved += self._move(moves, lock)
            moved += self._move(moves, lock)
        except CorruptionError as error:
            self._leave(log, str(error))
            return False
        except OSError:
            self._abandon_writer()
            raise
        with lock:
            uses = self._index.log_use()
        if uses is None or log.log_id in uses:
            if not moved:
                self._leave(log, f"{log.rows} rows name it, and their blocks are not found")
            return False  # a flush has added rows meanwhile: the next pass moves them
        if not self.may_go(log.log_id):
            return False  # found damaged meanwhile, it or the index
        self.remove(log._replace(rows=0))
        return True

    def finish(self) -> None:
        """End the log of copies, at the end of a pass. Raises OSError."""
        writer, self._writer = self._writer, None
        if writer is not None and self._named_bytes:
            self._copies[writer.log_id] = 0
            writer.finish()
        elif writer is not None:
            writer.abandon(named_bytes=0)

    def _move(self, moves: list[_Move], lock: Lock) -> int:
        """Have rows name the copies of their blocks, where they are as they were; how many did."""
        if not moves:
            return 0
        assert self._writer is not None, "what was copied is in a log"
        self._writer.sync()  # before a row names it (rule S6)
        with lock:
            update = self._index.begin()
            committing = False
            try:
                moved = sum(update.move_row(*move) for move in moves)
                committing = True
                update.commit()
            except BaseException as error:
                update.abort()
                if committing and not isinstance(error, NotCommittedError):
                    self._logs.doubt(self._writer.log_id)
                    self._named_bytes = self._writer.size
                raise
        self._named_bytes = self._writer.size
        moves.clear()
        return moved

    def _writer_for(self, lock: Lock, log_bytes: int) -> EntryLogWriter:
        """The log of copies, or a new one."""
        if self._writer is not None and self._writer.size >= log_bytes and self._named_bytes:
            self.finish()
        if self._writer is None:
            with lock:
                log_id = self._logs.new_log_id()
            self._named_bytes = 0
            self._writer = EntryLogWriter(self._file_system, self.directory, log_id)
        return self._writer

    def _abandon_writer(self) -> None:
        """Leave the log of copies after a failure (rule S3); what no row may name goes."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):  # it costs space only, and goes with the next start
                writer.abandon(named_bytes=self._named_bytes)

    def _tell_missing(self, uses: dict[int, LogUse], in_use: set[int]) -> None:
        """Say once of each log that rows name, and that is not there."""
        files = journal_numbers(self._file_system, self.directory)
        there = {*self._entry_logs(), *map(run_log_id, files), *in_use, *self.damaged}
        for log_id in uses.keys() - there:
            self.damaged.add(log_id)
            logger.error("%s is missing, and the index names entries in it", self._path(log_id))

    def _leave(self, log: LogState, why: str) -> None:
        self.damaged.add(log.log_id)
        logger.warning("%s stays, with what is dead in it: %s", self._path(log.log_id), why)

    def _taken_bytes(self, log_id: int) -> int | None:
        """What a log takes on the disk; None if that cannot be told now: it stays, and holds up no
        other."""
        try:
            file = self._file_system.open(self._path(log_id))
            try:
                taken = file.size() - file.hole_bytes()
            finally:
                file.close()
        except OSError as error:
            if log_id not in self._unmeasured:
                self._unmeasured.add(log_id)
                logger.warning("%s stays, its size is unknown: %s", self._path(log_id), error)
            return None
        self._unmeasured.discard(log_id)
        return taken

    def _entry_logs(self) -> list[int]:
        return entry_log_ids(self._file_system, self.directory)

    def _covered_run_log_files(self) -> list[int]:
        """Files of the run log that no start reads any more: the mark is in a later one."""
        mark = self._covered.run_log_mark
        numbers = journal_numbers(self._file_system, self.directory)
        return [number for number in numbers if mark is not None and number < mark.file_number]

    def _path(self, log_id: int) -> Path:
        return block_path(self.directory, BlockLocation(log_id, 0, 0))
