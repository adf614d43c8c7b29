"""The journal: group commit of records, durable before anybody is told.

``append`` queues; ``commit_pending`` writes what is queued as one batch, syncs it, and posts all
completions at once. In a bookie a thread calls it in a loop; simulation and tests call it
themselves. What is little and comes alone, while the disk is fast and rests, is committed in place
by the service thread: to hand it to the other thread and back costs more than the sync.

A write or sync that fails is final: after it the kernel may have dropped the data and says so only
once, so nothing is retried, every waiter and every later append gets IO_ERROR, and the process has
to restart and read back what the disk really holds.

A journal object always starts a new file: the tail of an older one may have been recovered from
pages that never reached the disk, and is not written to again.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bookie_server.core.answers import Done
from bookie_server.storage.blocks import Block
from bookie_server.storage.fs.vfs import TEMPORARY_SUFFIX, File, FileSystem
from bookie_server.storage.journal.journal_files import (
    journal_numbers,
    journal_path,
    spare_path,
    spare_paths,
)
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.records import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    JournalFileHeader,
    Trailer,
    extend_chain,
    pack_file_header,
    pack_header,
    pack_trailer,
    padding,
)
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus

logger = logging.getLogger(__name__)

Post = Callable[[Callable[[], None]], None]

_ZEROS = bytes(FILE_HEADER_BYTES)
_IN_PLACE_BYTES_MAX: Final = 64 * KIB
"""Most that is committed in place: a message of one or few small entries."""

_IN_PLACE_SYNC_S_MAX: Final = 0.002
"""A disk whose last sync took longer is left to the thread: the service must not wait long."""

_SPARES_MAX: Final = 2
"""Old files kept to be written again; a checkpoint frees about as many as the next one needs."""


class _Waiting(NamedTuple):
    record_type: int
    body: Block
    done: Done


class JournalStats(NamedTuple):
    """Counters since the start, and what is in flight. Times are seconds."""

    records: int
    batches: int
    bytes_written: int
    sync_time_s: float
    last_sync_s: float
    bytes_in_flight: int
    file_number: int


class Journal:
    """One journal in one directory. ``append`` and completions belong to the service thread."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        *,
        end: Mark,
        file_bytes: int,
        batch_bytes_max: int,
        post: Post,
        on_fatal: Callable[[str], None],
        new_salt: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start a new file behind ``end``, the last batch of the older files (OSError if it
        cannot be made). ``post`` runs a callable on the service thread. ``clock`` (seconds)
        measures the syncs."""
        self._file_system = file_system
        self._directory = directory
        self._file_bytes = file_bytes
        self._batch_bytes_max = batch_bytes_max
        self._post = post
        self._on_fatal = on_fatal
        self._new_salt = new_salt or partial(secrets.randbits, 64)
        self._clock = clock
        self._queue: deque[_Waiting] = deque()
        self._wakeup = threading.Condition()
        self._sleeping = False
        self._gathering = False
        self._stopping = False
        self._rests_since = 0.0
        self._failure: str | None = None
        self._bytes_in_flight = 0
        self._stats = JournalStats(0, 0, 0, 0.0, 0.0, 0, 0)
        self._thread: threading.Thread | None = None
        self._spares = deque(spare_paths(file_system, directory))
        self._file, self._seed = self._create_file(end.file_number + 1, end)
        self._durable = Mark(end.file_number + 1, FILE_HEADER_BYTES, end.sequence, end.chain)

    @property
    def durable_mark(self) -> Mark:
        """Behind the last batch that is durable. Read it before what it is to cover is frozen."""
        return self._durable

    @property
    def bytes_in_flight(self) -> int:
        """Bytes appended whose completion has not run yet (service thread)."""
        return self._bytes_in_flight

    @property
    def failure(self) -> str | None:
        """Why the journal takes nothing any more, or None."""
        return self._failure

    def stats(self) -> JournalStats:
        """Counters; any thread."""
        return self._stats._replace(
            bytes_in_flight=self._bytes_in_flight, file_number=self._durable.file_number
        )

    def append(self, record_type: int, body: Block, done: Done) -> None:
        """Queue a record; ``done`` runs on the service thread once it is durable, or has failed."""
        with self._wakeup:
            assert not self._stopping, "append to a closed journal"
            failure = self._failure
            if failure is None:
                self._queue.append(_Waiting(record_type, body, done))
                self._bytes_in_flight += body.length
                may_be_in_place = self._gathering and self._bytes_in_flight <= _IN_PLACE_BYTES_MAX
                if self._sleeping and not may_be_in_place:
                    self._wakeup.notify()
        if failure is not None:
            self._post(partial(done, BookieStatus.IO_ERROR, failure))

    @contextmanager
    def batch(self) -> Iterator[None]:
        """What is appended within is committed together, in place if that is the fastest way."""
        assert not self._gathering
        self._gathering = True
        try:
            yield
        finally:
            self._gathering = False
            self._gathered()

    def _gathered(self) -> None:
        with self._wakeup:
            if not self._queue or not self._sleeping:
                return  # the thread is at work, or the caller commits; both look at the queue again
            if not self._is_fast_in_place():
                self._wakeup.notify()
                return
            batch = list(self._queue)
            self._queue.clear()
        # The thread sleeps, and only this one appends: nobody else writes meanwhile.
        try:
            is_durable = self._commit(batch)
        except Exception as error:  # a bug of ours: it goes on up, and nobody may wait for ever
            self._fail(batch, error)
            raise
        if is_durable:
            self._complete(batch, BookieStatus.OK, "")

    def _is_fast_in_place(self) -> bool:
        """Whether the disk has rested for as long as it needs for a sync, and that is not long.

        A busier journal is better off with its thread, which commits together what comes while
        it syncs.
        """
        sync_s = self._stats.last_sync_s
        return (
            self._bytes_in_flight <= _IN_PLACE_BYTES_MAX
            and self._durable.offset + 2 * _IN_PLACE_BYTES_MAX < self._file_bytes
            and 0.0 < sync_s <= _IN_PLACE_SYNC_S_MAX
            and self._clock() - self._rests_since >= sync_s
        )

    def start(self) -> None:
        """Commit on a thread of its own from now on."""
        assert self._thread is None, "started twice"
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def commit_pending(self) -> bool:
        """Write and sync one batch of what is queued; False when nothing was queued."""
        batch = self._take()
        if not batch:
            return False
        if self._commit(batch):
            self._post(partial(self._complete, batch, BookieStatus.OK, ""))
        return True

    def _commit(self, batch: list[_Waiting]) -> bool:
        """Make a batch durable. False when that failed, for good; then all waiters are told."""
        try:
            self._write(batch)
        except OSError as error:
            self._fail(batch, error)
            return False
        return True

    def remove_before(self, file_number: int) -> None:
        """Give up files below ``file_number``: their batches are contained in every directory."""
        assert file_number <= self._durable.file_number, "the file in use is kept"
        new_spares: list[Path] = []
        removed = False
        for number in journal_numbers(self._file_system, self._directory):
            if number >= file_number:
                break
            path = journal_path(self._directory, number)
            if len(self._spares) + len(new_spares) < _SPARES_MAX and self._is_full_size(path):
                new_spares.append(spare_path(self._directory, number))
                self._file_system.rename(path, new_spares[-1])
            else:
                self._file_system.remove(path)
            removed = True
        if removed:
            self._file_system.sync_directory(self._directory)
            self._spares.extend(new_spares)

    def _is_full_size(self, path: Path) -> bool:
        file = self._file_system.open(path)
        try:
            return file.size() == self._file_bytes
        finally:
            file.close()

    def close(self) -> None:
        """Commit what is queued, stop the thread, close the file. Closing twice is allowed."""
        with self._wakeup:
            if self._stopping:
                return
            self._stopping = True
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join()
        while self.commit_pending():
            pass
        self._file.close()

    def _run(self) -> None:
        finished = False
        try:
            while True:
                with self._wakeup:
                    while not self._queue and not self._stopping:
                        self._sleeping = True
                        self._wakeup.wait()
                        self._sleeping = False
                    if not self._queue:
                        break
                self.commit_pending()
            finished = True
        finally:
            if not finished:  # a bug of ours: the traceback follows, and nobody may wait for ever
                self._fail([], RuntimeError("the journal thread ended unexpectedly"))

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        room = self._batch_bytes_max
        with self._wakeup:
            queue = self._queue
            while queue and (not batch or room >= queue[0].body.length):
                waiting = queue.popleft()
                room -= waiting.body.length
                batch.append(waiting)
        return batch

    def _write(self, batch: list[_Waiting]) -> None:
        start = self._durable
        size = sum(waiting.body.length + RECORD_HEADER_BYTES for waiting in batch)
        if start.offset > FILE_HEADER_BYTES and start.offset + size > self._file_bytes:
            start = self._roll(start)
        sequence = start.sequence + 1
        seed = self._seed
        buffers: list[bytes] = []
        headers: list[bytes] = []
        for record_type, body, _done in batch:
            header = pack_header(record_type, body.length, sequence, body.crc, seed)
            headers.append(header)
            buffers.append(header)
            buffers.extend(body.buffers)
        chain = extend_chain(start.chain, b"".join(headers))
        trailer = pack_trailer(Trailer(size, len(batch), chain), sequence, seed)
        end = start.offset + size + len(trailer)
        buffers.append(trailer)
        buffers.append(_ZEROS[: padding(end)])
        end += padding(end)
        self._file.pwritev(buffers, start.offset)
        before = self._clock()
        self._file.fdatasync()
        self._rests_since = self._clock()
        elapsed = self._rests_since - before
        self._durable = Mark(start.file_number, end, sequence, chain)
        old = self._stats
        self._stats = old._replace(
            records=old.records + len(batch),
            batches=old.batches + 1,
            bytes_written=old.bytes_written + end - start.offset,
            sync_time_s=old.sync_time_s + elapsed,
            last_sync_s=elapsed,
        )

    def _roll(self, end: Mark) -> Mark:
        number = end.file_number + 1
        file, seed = self._create_file(number, end)
        self._file.close()
        self._file, self._seed = file, seed
        self._durable = Mark(number, FILE_HEADER_BYTES, end.sequence, end.chain)
        return self._durable

    def _create_file(self, number: int, end: Mark) -> tuple[File, int]:
        """A file that is complete and durable but for its batches, and the seed of its headers."""
        path = journal_path(self._directory, number)
        if self._spares:
            temporary = self._spares.popleft()
            file = self._file_system.open(temporary, writable=True, direct=True)
        else:
            temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
            file = self._file_system.create(temporary, direct=True)
        try:
            file.preallocate(self._file_bytes)
            salt, size_bytes = self._new_salt(), file.size()
            header = JournalFileHeader(number, salt, end.sequence + 1, end.chain, size_bytes)
            file.pwritev([pack_file_header(header)], 0)
            file.fdatasync()
            self._file_system.rename(temporary, path)
            self._file_system.sync_directory(self._directory)
        except OSError:
            file.close()
            raise
        return file, header.seed

    def _fail(self, batch: list[_Waiting], error: Exception) -> None:
        message = f"journal {self._directory}: {error}; this bookie must restart"
        logger.error("%s", message)
        with self._wakeup:
            first = self._failure is None
            self._failure = self._failure or message
            batch = [*batch, *self._queue]
            self._queue.clear()
        self._post(partial(self._complete, batch, BookieStatus.IO_ERROR, message))
        if first:
            self._post(partial(self._on_fatal, message))

    def _complete(self, batch: list[_Waiting], status: BookieStatus, message: str) -> None:
        self._bytes_in_flight -= sum(waiting.body.length for waiting in batch)
        for waiting in batch:
            waiting.done(status, message)
