"""The entry logs that one directory's flushes write: the open one, and those just filled.

A log is named by rows only after its blocks were synced (rule S6). What failed is left for good
(rule S3), and the disk gets back what no row may name of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from bookie_server.storage.blocks import Block
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.index.base import BlockLocation
from bookie_server.storage.ledgers.entry_log import LOG_HEADER_BYTES, EntryLogWriter, log_ids

logger = logging.getLogger(__name__)


class EntryLogs:
    """Writes blocks; *flush thread*. Others read ``bytes_written`` for statistics only."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        *,
        entry_log_bytes: int,
        cached_bytes: int,
        highest_log: int,
        forget: Callable[[int], None],
    ) -> None:
        """``highest_log``: no id up to this one is used again, also of a log that is gone.
        ``forget`` has readers close a log that was removed."""
        assert entry_log_bytes > 0, f"entry logs of {entry_log_bytes} bytes hold nothing"
        self._file_system = file_system
        self._directory = directory
        self._entry_log_bytes = entry_log_bytes
        self._cached_bytes = cached_bytes
        self._forget = forget
        self.bytes_written = 0
        self._writer: EntryLogWriter | None = None
        # Up to where rows name blocks of it; 0 before the first commit.
        self._named_bytes = 0
        # Logs that this flush has filled, and up to where a commit before it has named blocks.
        self._filled: list[tuple[EntryLogWriter, int]] = []
        # Logs that a commit which failed may have named all the same.
        self._in_doubt: set[int] = set()
        self._next_log_id = max(highest_log, *log_ids(file_system, directory), 0) + 1

    def append(self, block: Block) -> BlockLocation:
        """Put a block into the open log; it is durable after ``sync``."""
        location = self._writer_for_block().append(block)
        self.bytes_written += block.length
        return location

    def make_readable(self, log_id: int) -> None:
        """Hand what is buffered for a log to the file system, before it is read."""
        if self._writer is not None and self._writer.log_id == log_id:
            self._writer.write_buffered()

    def sync(self) -> None:
        """Make all blocks durable; before a commit names them."""
        if self._writer is not None:
            self._writer.sync()

    def committed(self) -> None:
        """Rows name what was appended."""
        self._named_bytes = self._writer.size if self._writer is not None else 0
        self._filled.clear()
        self._in_doubt.clear()

    def abandon(self, *, committing: bool) -> None:
        """Leave all logs of a flush that failed (rule S3); give back what no row can name.

        ``committing``: the commit that failed may have been done all the same.
        """
        if committing:
            self._in_doubt |= self.in_use()
        filled, self._filled = self._filled, []
        if self._writer is not None:
            filled.append((self._writer, self._named_bytes))
            self._writer = None
        for writer, named_bytes in filled:
            self._abandon(writer, named_bytes=writer.size if committing else named_bytes)

    def in_use(self) -> set[int]:
        """Logs that rows may name later, or by a commit of which nothing is known."""
        open_log = () if self._writer is None else (self._writer.log_id,)
        return self._in_doubt.union(open_log, (writer.log_id for writer, _ in self._filled))

    def doubt(self, log_id: int) -> None:
        """A commit failed, and may have named this log: it stays until another has succeeded."""
        self._in_doubt.add(log_id)

    def close(self) -> None:
        """Finish the open log."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.finish()

    def finish_full(self) -> None:
        """Close the log if it is full: the next block goes to a new one.

        Also in the middle of a flush. A write cache may be larger than a log can be: the index has
        32 bits for the offset of a block.
        """
        writer = self._writer
        if writer is None or writer.size < max(self._entry_log_bytes, LOG_HEADER_BYTES + 1):
            return
        if self._named_bytes < writer.size:
            self._filled.append((writer, self._named_bytes))
        self._writer = None
        writer.finish()

    def new_log_id(self) -> int:
        """An id that no log of this directory ever had (rule S4)."""
        log_id, self._next_log_id = self._next_log_id, self._next_log_id + 1
        return log_id

    def _abandon(self, writer: EntryLogWriter, *, named_bytes: int) -> None:
        try:
            writer.abandon(named_bytes=named_bytes)
        except OSError as error:  # it costs space only, and the first fault is raised anyway
            logger.warning("entry log %d in %s stays: %s", writer.log_id, self._directory, error)
        # Behind the removal, as the flush may have read from it: who has it open keeps its blocks.
        if not named_bytes:
            self._forget(writer.log_id)

    def _writer_for_block(self) -> EntryLogWriter:
        """The open log, or a new one. A log is never continued after a restart (rule S4)."""
        self.finish_full()
        writer = self._writer
        if writer is None:
            writer = EntryLogWriter(
                self._file_system,
                self._directory,
                self.new_log_id(),
                cached_bytes=self._cached_bytes,
            )
            self._writer, self._named_bytes = writer, 0
        assert writer.log_id < self._next_log_id, "a log id is used once"
        return writer
