"""The journal: group commit of records, durable before anybody is told (rule S1).

``append`` queues a record. ``commit_pending`` writes the queue as one batch, syncs it, and posts
all completions at once: one sync pays for everything that arrived during the sync before it. In a
bookie a thread calls it in a loop; simulation and tests call it themselves. A small batch that
comes while the disk is idle is committed in place by the service thread, because handing it to the
other thread and back costs more than the sync.

A write or sync that fails is final (rule S3). After it the kernel may have dropped the pages and
marked them clean, and it reports that only once: a second sync would succeed and prove nothing. So
nothing is retried, every waiter and every later append gets IO_ERROR, and the process has to
restart and read back what the disk really holds.

A journal object always starts a new file (rule S4). The last batches of the older file may have
been read from pages that never reached the disk; a file that is never written again cannot mix them
with newer ones.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bookie_server.storage.blocks import Block
from bookie_server.storage.fs.vfs import TEMPORARY_SUFFIX, File, FileSystem
from bookie_server.storage.journal.files import (
    file_size,
    journal_numbers,
    journal_path,
    spare_path,
    spare_paths,
)
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.records import (
    BATCH_ALIGNMENT,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    JournalFileHeader,
    Trailer,
    batch_room,
    extend_chain,
    pack_file_end,
    pack_file_header,
    pack_header,
    pack_trailer,
    padding,
)
from spark_ledger.bookie_api import Done
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
    """A record that was appended, and who waits for it."""

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
    """One journal in one directory.

    Three threads meet here. The *service thread* appends, and runs the completions. The *journal
    thread* commits what is queued. The *flush thread* reads the durable mark, and removes files
    that no directory needs any more. Without ``start`` there is no journal thread, and whoever
    calls ``commit_pending`` has its part.

    Only one thread commits at a time, the *committer*. It is the journal thread, or the service
    thread while the journal thread sleeps with an empty queue: only the service thread appends, so
    nothing can wake the journal thread before the service thread is done (see ``_end_of_batch``).
    What the committer changed is seen by the next one, as both have held ``_wakeup`` in between.
    """

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
        """Start a new file behind ``end``, the last batch of the older files.

        ``post`` runs a callable on the service thread. ``clock`` (seconds) measures the syncs.
        Raises OSError if the file cannot be made.
        """
        assert file_bytes > FILE_HEADER_BYTES, f"a journal file of {file_bytes} bytes has no room"
        assert end.offset % BATCH_ALIGNMENT == 0, f"the journal ends in mid-block, at {end.offset}"
        # Any thread: never changed.
        self._file_system = file_system
        self._directory = directory
        self._file_bytes = file_bytes
        self._batch_bytes_max = batch_bytes_max
        self._post = post
        self._on_fatal = on_fatal
        self._new_salt = new_salt or partial(secrets.randbits, 64)
        self._clock = clock
        # Protected by _wakeup.
        self._wakeup = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._sleeping = False
        self._stopping = False
        # Set once, under _wakeup. Any thread reads it: None may be out of date, a message is not.
        self._failure: str | None = None
        # Service thread. Others read the number for statistics only.
        self._in_batch = False
        self._bytes_in_flight = 0
        # Whoever starts and closes the journal: one thread, before and after all others.
        self._thread: threading.Thread | None = None
        # Guards the list only; files are renamed outside it, so that nobody waits for the disk. The
        # flush thread adds at the end, the committer takes from the front.
        self._spares_lock = threading.Lock()
        self._spares = deque(spare_paths(file_system, directory))
        # Flush thread: spares whose new names are not durable yet.
        self._renamed: list[Path] = []
        # Committer.
        self._idle_since = 0.0
        self._file, self._seed = self._create_file(end.file_number + 1, end)
        # Any thread reads. The committer replaces them whole and never changes one, so a reader
        # sees the values of one moment.
        self._durable = Mark(end.file_number + 1, FILE_HEADER_BYTES, end.sequence, end.chain)
        self._stats = JournalStats(0, 0, 0, 0.0, 0.0, 0, 0)

    @property
    def durable_mark(self) -> Mark:
        """The checkpoint mark behind the last durable batch; any thread.

        A checkpoint reads it *before* it freezes the caches: what the mark covers was in memory
        before it was in the journal, so it is frozen too (rule S2). Read afterwards, the mark
        could cover an add that the frozen generation lacks.
        """
        return self._durable

    @property
    def bytes_in_flight(self) -> int:
        """Bytes appended whose completion has not run yet; exact on the service thread."""
        return self._bytes_in_flight

    @property
    def failure(self) -> str | None:
        """Why the journal takes nothing any more, or None; any thread."""
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
                # Inside ``batch`` the decision who commits falls at its end, when its size is
                # known. A batch that is too large for the service thread anyway starts at once.
                may_be_in_place = self._in_batch and self._bytes_in_flight <= _IN_PLACE_BYTES_MAX
                if self._sleeping and not may_be_in_place:
                    self._wakeup.notify()
        if failure is not None:
            self._post(partial(done, BookieStatus.IO_ERROR, failure))

    @contextmanager
    def batch(self) -> Iterator[None]:
        """What is appended within is committed together, in place if that is the fastest way."""
        assert not self._in_batch, "batches of appends do not nest"
        self._in_batch = True
        try:
            yield
        finally:
            self._in_batch = False
            self._end_of_batch()

    def _end_of_batch(self) -> None:
        """Commit in place, or wake the journal thread."""
        with self._wakeup:
            # Unless the journal thread sleeps it looks at the queue again, and so does whoever
            # closes the journal, or commits without a thread.
            if not self._queue or not self._sleeping or self._stopping:
                return
            assert self._thread is not None, "only the journal thread sleeps"
            if not self._is_fast_in_place():
                self._wakeup.notify()
                return
            batch = list(self._queue)
            self._queue.clear()
        # Without the lock, and still alone: the journal thread sleeps until the queue holds
        # something, and only this thread appends. A wake-up that was sent before finds the queue
        # empty, and the thread sleeps on.
        if self._commit(batch):
            self._complete(batch, BookieStatus.OK, "")

    def _is_fast_in_place(self) -> bool:
        """Whether the disk was idle for as long as a sync takes, and a sync is short.

        A busier journal is better off with its thread, which commits together what arrives during
        a sync. The batch also has to fit into the file: making a new one takes several syncs.
        """
        sync_s = self._stats.last_sync_s
        return (
            self._bytes_in_flight <= _IN_PLACE_BYTES_MAX
            and self._durable.offset + 2 * _IN_PLACE_BYTES_MAX < self._file_bytes
            and 0.0 < sync_s <= _IN_PLACE_SYNC_S_MAX
            and self._clock() - self._idle_since >= sync_s
        )

    def start(self) -> None:
        """Commit on a thread of its own from now on; nobody calls ``commit_pending`` any more."""
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
        assert batch, "an empty batch is no batch: replay would take its trailer for a commit"
        assert self._failure is None, "nothing is written behind a batch that failed"
        try:
            self._write(batch)
        except OSError as error:
            self._fail(batch, error)
            return False
        except Exception as error:  # a bug of ours: it goes on up, and nobody may wait for ever
            self._fail(batch, error)
            raise
        return True

    def remove_before(self, file_number: int) -> None:
        """Give up files below ``file_number``: every directory has checkpointed them (rule S6).

        Flush thread. Up to ``_SPARES_MAX`` files are renamed to spares, the others are removed.
        Raises OSError; the next call goes on where this one failed.
        """
        assert file_number <= self._durable.file_number, "the file in use is kept"
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
        """Whether one more spare may be kept. Only this thread adds, so a yes stays true."""
        with self._spares_lock:
            return len(self._spares) + len(self._renamed) < _SPARES_MAX

    def close(self) -> None:
        """Commit what is queued, stop the thread, close the file. Closing twice is allowed.

        The service thread appends nothing any more, whichever thread calls this.
        """
        with self._wakeup:
            if self._stopping:
                return
            self._stopping = True
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join()
        while self.commit_pending():
            pass
        assert not self._queue, "a record is left without an answer"
        if self._failure is None:
            with suppress(OSError):  # it would show damage of the last batch, and loses nothing
                self._end_file(0)
        self._file.close()

    def _run(self) -> None:
        """The journal thread. At the end it has committed everything, or failed for good."""
        finished = False
        try:
            while True:
                with self._wakeup:
                    # _sleeping is true only within wait(), which lets the lock go: who sees it
                    # true under the lock knows that this thread is not committing.
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
        """The next batch, in the order of the appends; empty when nothing is queued.

        Bounded, so that the first record of a long queue is not answered as late as its last.
        """
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
        """Write and sync a batch; the durable mark moves behind it (rules S1 and S11)."""
        start = self._durable
        size = sum(waiting.body.length + RECORD_HEADER_BYTES for waiting in batch)
        # A batch never crosses files. A larger one gets a file of its own.
        if start.offset > FILE_HEADER_BYTES and start.offset + batch_room(size) > self._file_bytes:
            start = self._roll(start)
        if start.offset + batch_room(size) > self._file_bytes:
            self._file.preallocate(start.offset + batch_room(size))
        assert start.offset % BATCH_ALIGNMENT == 0, f"a batch starts in mid-block: {start}"
        # Every record carries the sequence of its batch. One above the last durable one, it is what
        # later proves to a reader that the batch before was synced (rule S5).
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
        # Up to the next block with zeros: the batch after this one starts in another sector, so
        # no torn write of it can reach bytes that were acknowledged.
        end += padding(end)
        assert start.offset + sum(map(len, buffers)) == end, "the mark is where the bytes end"
        self._file.pwritev(buffers, start.offset)
        before = self._clock()
        self._file.fdatasync()
        self._idle_since = self._clock()
        elapsed = self._idle_since - before
        # Only now: a checkpoint that saw the mark before the sync would cover, and let go, a batch
        # that the disk may still lose.
        durable = Mark(start.file_number, end, sequence, chain)
        assert self._durable.is_behind(durable), f"{self._durable} goes back to {durable}"
        self._durable = durable
        old = self._stats
        self._stats = old._replace(
            records=old.records + len(batch),
            batches=old.batches + 1,
            bytes_written=old.bytes_written + end - start.offset,
            sync_time_s=old.sync_time_s + elapsed,
            last_sync_s=elapsed,
        )

    def _roll(self, end: Mark) -> Mark:
        """Go on in the next file, behind ``end``; the mark of its first batch."""
        assert end == self._durable, "a file is left once all of it is durable"
        number = end.file_number + 1
        file, seed = self._create_file(number, end)
        self._end_file(number)
        self._file.close()
        self._file, self._seed = file, seed
        self._durable = Mark(number, FILE_HEADER_BYTES, end.sequence, end.chain)
        # The same batch, in a later file: a mark that a checkpoint takes from now on lets the full
        # file go.
        assert end.is_behind(self._durable), f"{self._durable} does not follow {end}"
        return self._durable

    def _end_file(self, next_number: int) -> None:
        """Say in the file in use which one follows, 0: none. Nothing in that one was acknowledged
        yet, so a journal whose newest file is lost is never served (rule S5)."""
        block = pack_file_end(next_number, self._durable.sequence + 1, self._seed)
        self._file.pwritev([block], self._durable.offset)
        self._file.fdatasync()

    def _create_file(self, number: int, end: Mark) -> tuple[File, int]:
        """A file that is complete and durable but for its batches, and the seed of its headers.

        It is made, or turned from a spare, under another name, and gets its own only once its
        blocks and its header are durable. So a file named ``.log`` without a valid header is
        damage, never the trace of a crash (rule S11).
        """
        path = journal_path(self._directory, number)
        with self._spares_lock:
            spare = self._spares[0] if self._spares else None
        if spare is not None:
            temporary = spare
            file = self._file_system.open(temporary, writable=True, direct=True)
        else:
            temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
            file = self._file_system.create(temporary, direct=True)
        try:
            file.preallocate(self._file_bytes)
            salt, size_bytes = self._new_salt(), file.size()
            assert size_bytes >= self._file_bytes, "preallocated blocks belong to the file"
            # The new salt is what makes a spare safe: the seed of all header checksums follows
            # from it, so no record of the file's earlier life is a record now.
            header = JournalFileHeader(number, salt, end.sequence + 1, end.chain, size_bytes)
            file.pwritev([pack_file_header(header)], 0)
            file.fdatasync()
            self._file_system.rename(temporary, path)
            self._file_system.sync_directory(self._directory)
        except OSError:
            file.close()
            raise
        if spare is not None:
            # It leaves the list once it has left the directory. If it left before, the flush
            # thread could add another one meanwhile, and there would be too many on the disk.
            with self._spares_lock:
                taken = self._spares.popleft()
            assert taken == spare, "only the committer takes spares"
        return file, header.seed

    def _fail(self, batch: list[_Waiting], error: Exception) -> None:
        """Answer the batch and all that is queued with IO_ERROR, for good (rule S3).

        The failure is set and the queue is emptied under one lock: an append comes before, and is
        answered here, or after, and is refused.
        """
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
        """Tell everybody who waits, in the order of the appends. Service thread."""
        self._bytes_in_flight -= sum(waiting.body.length for waiting in batch)
        assert self._bytes_in_flight >= 0, "a record is completed once"
        for waiting in batch:
            waiting.done(status, message)
