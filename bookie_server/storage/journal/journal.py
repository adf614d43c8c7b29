"""The journal: group commit of records, durable before anybody is told (rule S1).

``append`` queues a record. ``commit_pending`` writes the queue as one batch, syncs it, and posts
all completions: one sync pays for what arrived during the sync before it. Small records do not wait
for the log of large runs. For a small batch that comes while the disk is idle the service thread
waits a moment: a post to its loop costs more. A disk that hangs stops the journal thread only.

A write or sync that fails is final (rule S3). After it the kernel may have dropped the pages and
marked them clean, and it reports that only once: a second sync would succeed and prove nothing. So
nothing is retried, every waiter and every later append gets IO_ERROR, and the process has to
restart and read back what the disk really holds.

A disk without room for the next file is no failure (rule S14). Nothing was written, so nothing can
be lost: who waits is refused with READ_ONLY, what was appended is kept in its order, because memory
has it already (rule S2), and is written first once there is room.

A journal object always starts a new file (rule S4): the last batches of the older one may have been
read from pages that never reached the disk, and must not mix with newer ones.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from bookie_server.storage.blocks import Block
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.journal.batch_log import BatchLog
from bookie_server.storage.journal.bell import Bell
from bookie_server.storage.journal.logs import DurableMarks, Logs, RunLog
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.journal.supply import NoRoomError
from bookie_server.storage.journal.waiting import (
    HandedBatch,
    JournalStats,
    RunPlace,
    Waiting,
    next_batch,
    take_out_of,
)
from spark_ledger.bookie_api import Done
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, LedgerId

logger = logging.getLogger(__name__)

Post = Callable[[Callable[[], None]], None]

_IN_PLACE_BYTES_MAX: Final = 64 * KIB
"""Most that is committed in place: a message of few small entries."""

_IN_PLACE_SYNC_S_MAX: Final = 0.002
"""Nobody waits in place for a disk whose last sync took longer."""

_IN_PLACE_WAIT_S: Final = 0.01
"""No longer, when it is slow all the same: a disk that hangs must not stop the loop."""

_IN_PLACE_PAUSE_SHARE: Final = 50
"""A wait that took longer than such a sync is the last one for so many times as long: the thread
that syncs may wait for the interpreter, behind a flush, and stop the loop at each message."""


class Journal:
    """One journal in one directory.

    Three threads meet here. The *service thread* appends, and runs the completions. The *journal
    thread* commits what is queued: it is the *committer*. The *flush thread* reads the durable
    mark, and removes files that no directory needs any more. Without ``start`` there is no journal
    thread, and whoever calls ``commit_pending`` is the committer.
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
        saves_room: bool = False,
        run_logs: Sequence[RunLog] = (),
    ) -> None:
        """Start a new file behind ``end``, the last batch of the older files.

        ``post`` runs a callable on the service thread. ``clock`` (seconds) measures the syncs.
        ``saves_room``: the disk is full, so the file is made for the first batch only. Without room
        for it the journal waits for some. ``run_logs``: of each ledger directory, for runs that
        have a place; without any all goes to the journal. Raises OSError if the disk fails.
        """
        # Any thread: never changed.
        self._directory = directory
        self._file_bytes = file_bytes
        self._batch_bytes_max = batch_bytes_max
        self._post = post
        self._on_fatal = on_fatal
        # Any thread: it says for its methods who may call them.
        salt = new_salt or partial(secrets.randbits, 64)
        log = BatchLog(
            file_system, directory, end=end, file_bytes=file_bytes, new_salt=salt, clock=clock
        )
        self._logs = Logs(log, run_logs)
        self._clock = clock
        # Protected by _lock.
        self._lock = threading.Lock()
        self._queue: deque[Waiting] = deque()
        self._taken: list[Waiting] = []  # the batch that is being written
        self._sleeping = self._stopping = False
        self._handed: HandedBatch | None = None  # what the service thread waits for
        self._unsynced_since: float | None = None
        # For the journal thread while it sleeps; for the service thread while it waits.
        self._alarm, self._handed_back = Bell(), Bell()
        # Set once, under _lock. Any thread reads it: None may be out of date, a message is not.
        self._failure: str | None = None
        # Set and cleared by the committer, under _lock. Any thread reads it, perhaps out of date.
        self._no_room: str | None = None
        self._retries = False  # protected by _lock: the committer shall look for room again
        # Service thread. Others read the number for statistics only.
        self._in_batch = False
        self._bytes_in_flight = 0
        self._in_place_from = 0.0  # by the clock: when a batch may be waited for again
        # Whoever starts and closes the journal: one thread, before and after all others.
        self._thread: threading.Thread | None = None
        # Committer.
        self._idle_since = 0.0
        self._back: HandedBatch | None = None  # who waits for it is still to be woken
        if not saves_room:
            try:
                self._logs.roll()
            except NoRoomError as error:
                self._wait_for_room([], error)

    @property
    def durable_mark(self) -> Mark:
        """The checkpoint mark behind the last durable batch; any thread.

        A checkpoint reads it *before* it freezes the caches: what the mark covers was in memory
        first, so it is frozen too (rule S2). Read afterwards, it could cover an add that is not.
        """
        return self._logs.marks.journal

    @property
    def durable_marks(self) -> DurableMarks:
        """The same of all logs, at one moment; any thread."""
        return self._logs.marks

    @property
    def bytes_in_flight(self) -> int:
        """Bytes appended whose completion has not run yet; exact on the service thread."""
        return self._bytes_in_flight

    @property
    def failure(self) -> str | None:
        """Why the journal takes nothing any more, or None; any thread."""
        return self._failure

    @property
    def no_room(self) -> str:
        """Why nothing can be written until there is space again; "" when it can. Any thread."""
        return self._no_room or ""

    @property
    def keeps_refused(self) -> bool:
        """Whether memory has records that there is no room for here; any thread."""
        return self._no_room is not None and bool(self._queue)

    def unwritten_of(self, ledger_ids: Set[LedgerId]) -> Set[LedgerId]:
        """Which of these have records that may become durable; any thread. All if it failed."""
        with self._lock:
            has_failed, waiting = self._failure is not None, [*self._taken, *self._queue]
        found = self._logs.in_doubt.union(each.ledger_id for each in waiting)
        return ledger_ids if has_failed else found & ledger_ids  # no copy: it may be a million

    @property
    def in_doubt(self) -> frozenset[LedgerId]:
        """See ``Logs``; any thread."""
        return self._logs.in_doubt

    @property
    def space_refusal(self) -> str:
        """Why there is no next file, for want of space; "" when there is one. Any thread."""
        return self._no_room or self._logs.journal.supply.refusal

    @property
    def writing_in(self) -> Path:
        """The directory of the log that is being written, or was last; any thread."""
        return self._logs.writing_in

    @property
    def unsynced_s(self) -> float:
        """How long something has waited without the end of a sync, or 0; any thread."""
        since = self._unsynced_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def stats(self) -> JournalStats:
        """Counters; any thread."""
        return self._logs.stats._replace(
            bytes_in_flight=self._bytes_in_flight, file_number=self.durable_mark.file_number
        )

    def append(
        self,
        record_type: int,
        body: Block,
        done: Done,
        place: RunPlace | None = None,
        before: Sequence[tuple[int, Block]] = (),
    ) -> None:
        """Queue a record; ``done`` runs on the service thread once it is durable, or has failed.

        ``place``: of a run that is written once; it is told. ``before`` become durable with it.
        """
        wakes, waiting = False, Waiting(record_type, body, done, place)
        others = [waiting.in_front(*record) for record in before] if before else ()
        with self._lock:
            assert not self._stopping, "append to a closed journal"
            failure, no_room = self._failure, self._no_room
            if failure is None and no_room:
                # It was decided before that was known: memory has it, so the journal gets it too.
                self._queue.extend(each._replace(done=None) for each in (*others, waiting))
            elif failure is None:
                for each in (*others, waiting):
                    self._queue.append(each)
                    self._bytes_in_flight += each.body.length
                if self._unsynced_since is None:
                    self._unsynced_since = self._clock()
                # Inside ``batch`` its end decides, when its size is known. One that is too large to
                # wait for in place starts at once.
                may_be_in_place = self._in_batch and self._bytes_in_flight <= _IN_PLACE_BYTES_MAX
                wakes = not may_be_in_place and self._ends_sleep()
        if wakes:
            self._alarm.ring()
        if failure is not None or no_room:
            status = BookieStatus.READ_ONLY if failure is None else BookieStatus.IO_ERROR
            self._post(partial(done, status, failure or no_room or ""))

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
        """Wake the journal thread, and wait for it where that is the fastest way."""
        with self._lock:
            # Who does not sleep looks at the queue again: the journal thread, or who closes.
            if not self._queue or not self._sleeping or self._stopping:
                return
            handed = HandedBatch(self._handed_back) if self._is_fast_in_place() else None
            self._handed, self._sleeping = handed, False
        began = self._clock()
        self._alarm.ring()
        if handed is None:
            return
        handed.wait(_IN_PLACE_WAIT_S)
        waited_s = self._clock() - began
        if waited_s > _IN_PLACE_SYNC_S_MAX:
            self._in_place_from = began + _IN_PLACE_PAUSE_SHARE * waited_s
        with self._lock:
            self._handed = None
            batch = handed.take_back()
        if batch:  # otherwise the journal thread posts the completion
            self._complete(batch, BookieStatus.OK, "")

    def _is_fast_in_place(self) -> bool:
        """Whether the disk was idle for as long as a sync takes, and a sync is short.

        A busier journal is better off without: it commits together what arrives during a sync. A
        new file takes several syncs. And what is older has had its completion, or would get it
        after this batch.
        """
        sync_s = self._logs.stats.last_sync_s
        return (
            self._logs.journal.has_file
            and self._no_room is None
            and self._bytes_in_flight <= _IN_PLACE_BYTES_MAX
            and self._bytes_in_flight == sum(waiting.body.length for waiting in self._queue)
            and self.durable_mark.offset + 2 * _IN_PLACE_BYTES_MAX < self._file_bytes
            and 0.0 < sync_s <= _IN_PLACE_SYNC_S_MAX
            and self._clock() - self._idle_since >= sync_s
            and self._clock() >= self._in_place_from
        )

    def start(self) -> None:
        """Commit on a thread of its own from now on; nobody calls ``commit_pending`` any more."""
        assert self._thread is None, "started twice"
        self._alarm.open()
        self._handed_back.open()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def commit_pending(self) -> bool:
        """Write and sync one batch of what is queued; False when nothing was queued, or there is no
        room for it."""
        if self._no_room is not None and not self._found_room():
            return False
        batch = self._take()
        if not batch:
            return False
        is_durable = False
        try:
            is_durable = self._commit(batch)
        finally:
            self._committed(batch if is_durable else [])
        return True

    def _committed(self, durable: list[Waiting]) -> None:
        """Tell of a batch that is durable; if it was refused, that was told."""
        with self._lock:
            waits = bool(self._queue) and self._no_room is None
            self._unsynced_since = self._idle_since if waits else None
            self._taken = []
            handed, self._handed = self._handed, None
            if handed is not None:
                handed.hand_back(durable)
                self._back = handed
                return
        if durable:
            self._post(partial(self._complete, durable, BookieStatus.OK, ""))

    def _commit(self, batch: list[Waiting]) -> bool:
        """Make a batch durable. False when that failed, for good; then all waiters are told."""
        assert batch, "an empty batch is no batch: replay would take its trailer for a commit"
        assert self._failure is None, "nothing is written behind a batch that failed"
        try:
            self._logs.write(batch, partial(self._tell_first, batch))
            self._idle_since = self._logs.idle_since
        except NoRoomError as error:
            self._wait_for_room(batch, error)
            return False
        except OSError as error:
            self._fail(batch, error)
            return False
        except Exception as error:  # a bug of ours: it goes on up, and nobody may wait for ever
            self._fail(batch, error)
            raise
        return True

    def _tell_first(self, batch: list[Waiting], durable: Sequence[Waiting]) -> None:
        """Tell of some of a batch; its others are still to be written."""
        if first := take_out_of(batch, durable):
            self._post(partial(self._complete, first, BookieStatus.OK, ""))

    def _wait_for_room(self, batch: list[Waiting], error: NoRoomError) -> None:
        """Refuse the batch and all that is queued, and keep the records for when there is room.

        It is not dropped, because memory has it: a fence that was refused holds there, and the key
        of a ledger goes to the disk before any entry of it.
        """
        message = f"disk full: journal {self._directory}: {error}"
        logger.warning("%s; nothing is written until there is room", message)
        with self._lock:
            self._no_room, self._retries = message, False
            waiting = [*batch, *self._queue]
            self._queue = deque(each._replace(done=None) for each in waiting)
        self._post(partial(self._complete, waiting, BookieStatus.READ_ONLY, message))

    def _found_room(self) -> bool:
        """Make the file that could not be made, if somebody asked to try again."""
        with self._lock:
            wanted, self._retries = self._retries, False
        if not wanted or self._failure is not None:
            return False
        try:
            self._logs.roll()
        except NoRoomError:
            return False
        except OSError as error:
            self._fail([], error)
            return False
        with self._lock:
            self._no_room = None
        logger.warning("journal %s: there is room again", self._directory)
        return True

    def remove_before(self, file_number: int) -> None:
        """Give up files below ``file_number``: every directory has checkpointed them (rule S6).

        Flush thread. Raises OSError; the next call goes on where this one failed.
        """
        assert file_number <= self.durable_mark.file_number, "the file in use is kept"
        self._logs.journal.supply.give_up(file_number)

    def prepare(self) -> bool:
        """Make the next file before it is needed; any thread (see ``FileSupply.prepare``)."""
        return self._logs.journal.supply.prepare()

    def look_for_room(self) -> None:
        """Try again to make the next file, if that failed for want of space; any thread."""
        with self._lock:
            self._retries = self._no_room is not None
            wakes = self._retries and self._ends_sleep()
        if wakes:
            self._alarm.ring()

    def close(self) -> None:
        """Commit what is queued, stop the thread, close the file: for good. Twice is allowed."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            wakes = self._ends_sleep()
        if wakes:
            self._alarm.ring()
        if self._thread is not None:
            self._thread.join()
        self._retries = True
        while self.commit_pending():
            pass
        assert all(each.done is None for each in self._queue), "a record is left without an answer"
        self._logs.close(in_order=self._failure is None)
        self._alarm.close()
        self._handed_back.close()

    def _run(self) -> None:
        """The journal thread. At the end it has committed everything, or failed for good."""
        finished = False
        try:
            while True:
                with self._lock:
                    has_work = self._has_work()
                    if self._stopping and not has_work:
                        break
                    # Who sees _sleeping true under the lock knows that this thread is not
                    # committing. It sets it to false, and rings.
                    self._sleeping = not has_work
                self._wake_waiter()
                if has_work:
                    self.commit_pending()
                else:
                    self._alarm.take()
            finished = True
        finally:
            self._wake_waiter()
            if not finished:  # a bug of ours: the traceback follows, and nobody may wait for ever
                self._fail([], RuntimeError("the journal thread ended unexpectedly"))

    def _wake_waiter(self) -> None:
        """Wake the service thread, if a batch is back: the last thing before this thread sleeps, as
        only then the interpreter's lock is free, and so is the journal for the next batch."""
        handed, self._back = self._back, None
        if handed is not None:
            handed.ring()

    def _ends_sleep(self) -> bool:
        """Whether the journal thread sleeps, under the lock: the caller rings once it is let go."""
        ended, self._sleeping = self._sleeping, False
        return ended

    def _has_work(self) -> bool:
        """Whether the journal thread has something to do; under the lock."""
        return self._retries if self._no_room is not None else bool(self._queue)

    def _take(self) -> list[Waiting]:
        """The next batch, in the order of the appends; empty when nothing is queued."""
        with self._lock:
            self._taken = next_batch(self._queue, self._batch_bytes_max)
            return self._taken

    def _fail(self, batch: list[Waiting], error: Exception) -> None:
        """Answer the batch and all that is queued with IO_ERROR, for good (rule S3).

        Both under one lock: an append comes before, and is answered, or after, and is refused.
        """
        message = f"journal {self._directory}: {error}; this bookie must restart"
        logger.error("%s", message)
        with self._lock:
            first = self._failure is None
            self._failure = self._failure or message
            batch = [*batch, *self._queue]
            self._queue.clear()
        self._post(partial(self._complete, batch, BookieStatus.IO_ERROR, message))
        if first:
            self._post(partial(self._on_fatal, message))

    def _complete(self, batch: list[Waiting], status: BookieStatus, message: str) -> None:
        """Tell everybody who waits, in the order of the appends. Service thread."""
        batch = [waiting for waiting in batch if waiting.done is not None]
        self._bytes_in_flight -= sum(waiting.body.length for waiting in batch)
        assert self._bytes_in_flight >= 0, "a record is completed once"
        for waiting in batch:
            if waiting.done is not None:
                waiting.done(status, message)
