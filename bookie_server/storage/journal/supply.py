"""Where a journal's files come from: made new, prepared ahead, or turned from old ones.

Making a file takes blocks and several syncs, and it is the only thing of a journal that a full disk
can refuse: a batch goes into blocks that its file has already.

A prepared file has all its blocks already, so a journal on a full disk still has a next file: what
recoveries store and fence goes on (rule S14). An old file that no directory needs becomes such a
file as well; both are *spares*.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bookie_server.storage.fs.vfs import TEMPORARY_SUFFIX, File, FileSystem, is_no_space
from bookie_server.storage.journal.files import (
    PREPARED_NUMBER,
    file_size,
    journal_numbers,
    journal_path,
    spare_path,
    spare_paths,
)
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.journal.newest import note_newest
from bookie_server.storage.records import JournalFileHeader, pack_file_header

logger = logging.getLogger(__name__)

_SPARES_MAX: Final = 2
"""Old files kept to be written again; a checkpoint frees about as many as the next one needs."""


class NoRoomError(OSError):
    """No journal file can be made for want of space. Nothing was written that anybody waits for."""


class FileSupply:
    """Makes journal files, and keeps some ready.

    The *committer* takes files. The *flush thread* gives old ones up, and it or the *disk thread*
    prepares the next one.
    """

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        *,
        file_bytes: int,
        new_salt: Callable[[], int],
    ) -> None:
        # Any thread: never changed.
        self._file_system = file_system
        self._directory = directory
        self._file_bytes = file_bytes
        self._new_salt = new_salt
        # Guards the list only; files are renamed outside it, so that nobody waits for the disk.
        # Others add at the end, the committer takes from the front.
        self._spares_lock = threading.Lock()
        self._spares = deque(spare_paths(file_system, directory))
        # Held by whoever makes spares, also while it waits for the disk: one adds at a time.
        self._making_lock = threading.Lock()
        # Protected by _making_lock: spares whose new names are not durable yet.
        self._renamed: list[Path] = []
        # Replaced whole, by either; any thread reads.
        self._refusal = ""

    @property
    def refusal(self) -> str:
        """Why no further file is ready, for want of space; "" while one is. Any thread."""
        with self._spares_lock:
            return "" if self._spares else self._refusal

    def take(self, number: int, end: Mark, *, is_first: bool) -> tuple[File, int]:
        """File ``number``, complete and durable but for its batches, and the seed of its headers.

        ``is_first``: no file of this run names it, so it is noted (see ``newest``).

        It is made, or turned from a spare, under another name, and gets its own only once its
        blocks and its header are durable. So a file named ``.log`` without a valid header is
        damage, never the trace of a crash (rule S11). Committer. Raises NoRoomError if there is no
        space for it, another OSError if the disk fails.
        """
        # Blocks that the disk has already come first: they cost nothing, and may be all there is.
        with self._spares_lock:
            spare = self._spares[0] if self._spares else None
        path = journal_path(self._directory, number)
        try:
            taken = self._open(path, spare, number, end)
            if is_first:
                note_newest(self._file_system, self._directory, number)
        except OSError as error:
            if not is_no_space(error):
                raise
            # What failed is never written again (rule S3), nor what a spare holds by now.
            self._discard(spare or path.with_name(path.name + TEMPORARY_SUFFIX))
            self._refusal = str(error)
            raise NoRoomError(error.errno, f"no room for the next journal file: {error}") from error
        finally:
            if spare is not None:
                # It leaves the list once it has left the directory. If it left before, the flush
                # thread could add another one meanwhile, and there would be too many on the disk.
                with self._spares_lock:
                    first = self._spares.popleft()
                assert first == spare, "only the committer takes spares"
        self._refusal = ""
        return taken

    def _open(self, path: Path, spare: Path | None, number: int, end: Mark) -> tuple[File, int]:
        files = self._file_system
        temporary = spare or path.with_name(path.name + TEMPORARY_SUFFIX)
        if spare is not None:
            file = files.open(temporary, writable=True, direct=True)
        else:
            file = files.create(temporary, direct=True)
        try:
            # No block of a file that was only prepared was written: the file says so to its disk,
            # and small batches fill ahead with zeros (see ``posix_fs``).
            prepared = spare == spare_path(self._directory, PREPARED_NUMBER)
            file.preallocate(self._file_bytes, unwritten=prepared)
            salt, size_bytes = self._new_salt(), file.size()
            assert size_bytes >= self._file_bytes, "preallocated blocks belong to the file"
            # The new salt is what makes a spare safe: the seed of all header checksums follows
            # from it, so no record of the file's earlier life is a record now.
            header = JournalFileHeader(number, salt, end.sequence + 1, end.chain, size_bytes)
            file.pwritev([pack_file_header(header)], 0)
            file.fdatasync()
            files.rename(temporary, path)
            files.sync_directory(self._directory)
        except OSError:
            file.close()
            raise
        return file, header.seed

    def prepare(self) -> bool:
        """Make a file ready to be the next one, unless there is one; whether there is. Any thread.

        Raises no error: the file in use has room, and who needs the next one is told.
        """
        with self._making_lock:
            if not self._has_spare():
                self._prepare()
            return self._has_spare()

    def _has_spare(self) -> bool:
        with self._spares_lock:
            return bool(self._spares)

    def _prepare(self) -> None:
        spare = spare_path(self._directory, PREPARED_NUMBER)
        temporary = spare.with_name(spare.name + TEMPORARY_SUFFIX)
        files = self._file_system
        try:
            # What an earlier attempt left, which may have been stopped by a crash.
            self._discard(temporary)
            file = files.create(temporary, direct=True)
            try:
                file.preallocate(self._file_bytes)
                file.fdatasync()
            finally:
                file.close()
            files.rename(temporary, spare)
            files.sync_directory(self._directory)
        except OSError as error:
            self._discard(temporary)
            if is_no_space(error):
                self._refusal = f"no room for the next journal file: {error}"
            logger.warning("no journal file is prepared, it is tried again: %s", error)
            return
        # Only now: the committer must not head a file whose name a power cut could take back.
        with self._spares_lock:
            self._spares.append(spare)
        self._refusal = ""

    def _discard(self, path: Path) -> None:
        """Remove a file that nothing depends on, if it is there; one that stays costs space."""
        with contextlib.suppress(OSError):
            if self._file_system.exists(path):
                self._file_system.remove(path)

    def give_up(self, file_number: int) -> None:
        """Give up files below ``file_number``: every directory has checkpointed them (rule S6).

        Flush thread. Up to ``_SPARES_MAX`` files are renamed to spares, the others are removed.
        Raises OSError; the next call goes on where this one failed.
        """
        with self._making_lock:
            self._give_up(file_number)

    def _give_up(self, file_number: int) -> None:
        removed = False
        for number in journal_numbers(self._file_system, self._directory):
            if number >= file_number:
                break
            path = journal_path(self._directory, number)
            # Another size is of another configuration, or of one batch larger than a file.
            is_usual = file_size(self._file_system, path) == self._file_bytes
            if is_usual and self._has_room_for_spares():
                spare = spare_path(self._directory, number)
                self._file_system.rename(path, spare)
                self._renamed.append(spare)
            else:
                self._file_system.remove(path)
            removed = True
        if not removed and not self._renamed:
            return
        # A spare is handed to the committer only now. If it were headed anew before its name is
        # durable, a power cut could bring its old name back over the header of another file.
        self._file_system.sync_directory(self._directory)
        with self._spares_lock:
            self._spares.extend(self._renamed)
            assert len(set(self._spares)) == len(self._spares), "a file is one spare"
        self._renamed = []

    def _has_room_for_spares(self) -> bool:
        """Whether one more spare may be kept. Nobody else adds now, so a yes stays true."""
        with self._spares_lock:
            return len(self._spares) + len(self._renamed) < _SPARES_MAX
