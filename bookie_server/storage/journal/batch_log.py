"""Batches in the numbered files of one directory, synced one by one and chained: a log.

The journal is one. A batch never crosses files; a file that is full names the one after it before
anything in that one is acknowledged (rule S5).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bookie_server.storage.blocks import Block
from bookie_server.storage.fs.vfs import File, FileSystem, is_no_space
from bookie_server.storage.journal.batch import pack_batch, records_bytes
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.journal.supply import FileSupply, NoRoomError
from bookie_server.storage.records import (
    BATCH_ALIGNMENT,
    FILE_HEADER_BYTES,
    batch_room,
    pack_file_end,
)


class WrittenBatch(NamedTuple):
    """A batch that is durable: from ``start`` to ``end``, and when its sync began and ended."""

    start: Mark
    end: Mark
    sync_began: float
    sync_ended: float


class BatchLog:
    """One log; *committer*, but for ``supply``, which says for its methods who may call them.

    It starts a new file (rule S4): the last batches of the older one may have been read from pages
    that never reached the disk, and must not mix with newer ones. After an OSError that is no
    NoRoomError nothing is written to it any more (rule S3).
    """

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        *,
        end: Mark,
        file_bytes: int,
        new_salt: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """The next batch goes behind ``end``, the last one of the older files, into a new one."""
        assert file_bytes > FILE_HEADER_BYTES, f"a journal file of {file_bytes} bytes has no room"
        assert end.offset % BATCH_ALIGNMENT == 0, f"the journal ends in mid-block, at {end.offset}"
        # Any thread: never changed.
        self.directory = directory
        self.file_bytes = file_bytes
        self.supply = FileSupply(file_system, directory, file_bytes=file_bytes, new_salt=new_salt)
        self._clock = clock
        # Committer.
        self._file: File | None = None
        self._seed = 0
        self._end = end
        self._must_roll = False
        """A roll has failed: the next file may be there, and begins behind the last batch of this
        one. No other batch may follow here."""

    @property
    def end(self) -> Mark:
        """The mark behind the last durable batch.

        It moves within ``write``. Who shows it to others does so once all that depends on the batch
        is said, such as the places of its runs.
        """
        return self._end

    @property
    def has_file(self) -> bool:
        """Whether a batch can be written without making a file first; any thread may ask."""
        return self._file is not None

    def needs_file(self, records: Sequence[tuple[int, Block]]) -> bool:
        """Whether a batch of these records begins a new file.

        A batch never crosses files. One that is larger than a file gets a file of its own.
        """
        return self._needs_file(_room(records))

    def _needs_file(self, room: int) -> bool:
        start = self._end
        is_begun = start.offset > FILE_HEADER_BYTES
        is_full = is_begun and start.offset + room > self.file_bytes
        return not self.has_file or self._must_roll or is_full

    def write(self, records: Sequence[tuple[int, Block]]) -> WrittenBatch:
        """Write and sync a batch (rules S1 and S11).

        Raises NoRoomError if there is no space for it, and nothing was written; another OSError if
        the disk fails.
        """
        room = _room(records)
        start = self.roll() if self._needs_file(room) else self._end
        assert self._file is not None, "a roll leaves a file in use"
        self._reserve(self._file, start.offset + room)
        buffers, end = pack_batch(records, start, self._seed)
        self._file.pwritev(buffers, start.offset)
        before = self._clock()
        self._file.fdatasync()
        after = self._clock()
        assert self._end.is_behind(end), f"{self._end} goes back to {end}"
        self._end = end
        return WrittenBatch(start, end, before, after)

    def roll(self) -> Mark:
        """Go on in the next file; the mark of its first batch. Raises as ``write``."""
        end = self._end
        number = end.file_number + 1
        self._must_roll = True
        # First the new file, then its name in the old one: a name of nothing would be a file lost.
        file, seed = self.supply.take(number, end, is_first=self._file is None)
        if self._file is not None:
            self._end_file(self._file, number)
            self._file.close()
        self._file, self._seed = file, seed
        self._end = Mark(number, FILE_HEADER_BYTES, end.sequence, end.chain)
        self._must_roll = False
        # The same batch, in a later file: a mark that is taken from now on lets the full file go.
        assert end.is_behind(self._end), f"{self._end} does not follow {end}"
        return self._end

    def close(self, *, in_order: bool) -> None:
        """Close the file. ``in_order``: nothing failed, so it says that no other one follows."""
        if self._file is None:
            return
        if in_order:
            with suppress(OSError):  # it would show damage of the last batch, and loses nothing
                self._end_file(self._file, 0)
        self._file.close()

    def _reserve(self, file: File, end: int) -> None:
        """Have blocks for a batch that is larger than a file, before anything of it is written: a
        write that meets a full disk half-way would be final (rule S3)."""
        if end <= self.file_bytes:
            return
        try:
            file.preallocate(end)
        except OSError as error:
            if not is_no_space(error):
                raise
            raise NoRoomError(error.errno, f"no room for a large batch: {error}") from error

    def _end_file(self, file: File, next_number: int) -> None:
        """Say in the file in use which one follows, 0: none. Nothing in that one was acknowledged
        yet, so a journal whose newest file is lost is never served (rule S5)."""
        block = pack_file_end(next_number, self._end.sequence + 1, self._seed)
        file.pwritev([block], self._end.offset)
        file.fdatasync()


def _room(records: Sequence[tuple[int, Block]]) -> int:
    return batch_room(records_bytes(body for _type, body in records))
