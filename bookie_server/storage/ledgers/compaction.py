"""Compactor: frees what dead entries take, in all ledger directories, at a bounded rate.

It looks at what is dead now and then, after a deletion, and more often while a disk is full.
``core.compaction`` says which logs are worth copying, ``directory_space`` does it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from bookie_server.core.compaction import logs_to_compact
from bookie_server.storage.fs.vfs import is_no_space
from bookie_server.storage.ledgers.directory_space import DirectorySpace
from bookie_server.storage.ledgers.pacing import Pacer, Stopped
from spark_ledger.errors import CorruptionError
from spark_ledger.limits.storage import (
    COMPACTION_FULL_FACTOR,
    COMPACTION_INTERVAL_FULL_S,
    COMPACTION_INTERVAL_S,
)

logger = logging.getLogger(__name__)


class DirectoryUse(NamedTuple):
    """What the logs of a directory held at the last look; bytes. ``live_bytes`` are those that rows
    name, of all logs that take no more."""

    log_bytes: int = 0
    live_bytes: int = 0
    reclaimable_bytes: int = 0
    logs: int = 0
    damaged_logs: int = 0


class CompactionStats(NamedTuple):
    """Counters since the start, and the last look at each directory."""

    directories: tuple[DirectoryUse, ...]
    removed_logs: int = 0
    removed_bytes: int = 0
    copied_bytes: int = 0
    passes: int = 0
    last_failure: str = ""
    given_back_bytes: int = 0
    """Of dead entries in logs that stayed (rule S25)."""


class Compactor:
    """Compacts on a thread of its own once it is started, and on any thread that calls
    ``run_once``: a lock lets one through at a time."""

    def __init__(
        self,
        spaces: Sequence[DirectorySpace],
        flush_lock: threading.Lock,
        *,
        log_bytes: int,
        bytes_per_s: int,
        on_fatal: Callable[[str], None],
    ) -> None:
        """``bytes_per_s``: 0 copies nothing; logs without live entries go all the same, and so does
        what dead entries take that is given back in place."""
        # Any thread: never changed.
        self._spaces = tuple(spaces)
        self._flush_lock = flush_lock
        self._log_bytes = log_bytes
        self._bytes_per_s = bytes_per_s
        self._on_fatal = on_fatal
        self._pass_lock = threading.Lock()
        self._wanted = threading.Event()
        self._stop = threading.Event()
        # Replaced whole: by the disk thread, and by whoever compacts. Any thread reads.
        self._full = (False,) * len(spaces)
        self._stats = CompactionStats((DirectoryUse(),) * len(spaces))
        # Whoever compacts.
        self._pacer = Pacer(self._stop)
        # Whoever starts and stops: one thread, before and after all others.
        self._thread: threading.Thread | None = None

    @property
    def stats(self) -> CompactionStats:
        """Any thread."""
        return self._stats

    def disks_are_full(self, full: Sequence[bool]) -> None:
        """Say of each directory whether its disk is above its high water mark; any thread."""
        before, self._full = self._full, tuple(full)
        if any(self._full) and before != self._full:
            self._wanted.set()

    def look_soon(self) -> None:
        """Have the thread look; any thread."""
        self._wanted.set()

    def start(self) -> None:
        """Compact on a thread of its own from now on."""
        assert self._thread is None, "started twice"
        self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, in the middle of a log as well: nothing of it is lost."""
        self._stop.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def run_once(self, *, full: bool = False, paced: bool = True) -> None:
        """One pass over all directories; any thread. ``full``: as if the disks were.

        Raises OSError or CorruptionError of the first directory that fails; the others are passed
        over all the same.
        """
        errors: list[OSError | CorruptionError] = []
        with self._pass_lock:
            self._pacer.begin()
            uses = []
            for number, space in enumerate(self._spaces):
                try:
                    self._one_directory(space, full or self._full[number], paced)
                except (OSError, CorruptionError) as error:
                    errors.append(error)
                uses.append(self._use(space, self._stats.directories[number]))
            self._stats = self._stats._replace(
                directories=tuple(uses),
                passes=self._stats.passes + 1,
                last_failure=str(errors[0]) if errors else "",
            )
        if errors:
            raise errors[0]

    def _one_directory(self, space: DirectorySpace, full: bool, paced: bool) -> None:
        alive = []
        errors: list[OSError] = []
        for log in space.survey(self._flush_lock):
            with _apart_from_others(errors):
                if log.rows:
                    smaller = space.give_back(log)
                    self._gave_back(log.byte_count - smaller.byte_count)
                    alive.append(smaller)
                elif space.may_go(log.log_id):
                    space.remove(log)
                    self._removed(log.byte_count)

        def pace(byte_count: int) -> None:
            factor = COMPACTION_FULL_FACTOR if full else 1
            self._pacer.wait(byte_count, self._bytes_per_s * factor)
            self._count(byte_count)

        try:
            candidates = [log for log in alive if space.may_compact(log)]
            chosen = logs_to_compact(candidates, free_bytes=space.free_bytes(), disk_is_full=full)
            for log in chosen if self._bytes_per_s else ():
                if space.free_bytes() < log.live_bytes:
                    continue  # what was free went to others meanwhile
                each = pace if paced else self._count
                with _apart_from_others(errors):
                    if space.compact(log, self._flush_lock, each, self._log_bytes):
                        self._removed(log.byte_count)
        finally:
            space.finish()
        if errors:
            raise errors[0]

    def _count(self, byte_count: int) -> None:
        self._stats = self._stats._replace(copied_bytes=self._stats.copied_bytes + byte_count)

    def _gave_back(self, byte_count: int) -> None:
        if byte_count:
            given_back = self._stats.given_back_bytes + byte_count
            self._stats = self._stats._replace(given_back_bytes=given_back)

    def _removed(self, byte_count: int) -> None:
        stats = self._stats
        self._stats = stats._replace(
            removed_logs=stats.removed_logs + 1, removed_bytes=stats.removed_bytes + byte_count
        )

    def _use(self, space: DirectorySpace, before: DirectoryUse) -> DirectoryUse:
        """What a directory holds now, or did if that cannot be told."""
        try:
            logs = space.survey(self._flush_lock)
        except (OSError, CorruptionError):
            return before
        return DirectoryUse(
            log_bytes=sum(log.byte_count for log in logs),
            live_bytes=sum(log.live_bytes for log in logs),
            reclaimable_bytes=sum(log.garbage_bytes for log in logs),
            logs=len(logs),
            damaged_logs=len(space.damaged),
        )

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                full = any(self._full)
                self._wanted.wait(COMPACTION_INTERVAL_FULL_S if full else COMPACTION_INTERVAL_S)
                self._wanted.clear()
                if self._stop.is_set():
                    break
                try:
                    self.run_once()
                except Stopped:
                    break
                except (OSError, CorruptionError) as error:
                    logger.warning("compaction failed, it is tried again: %s", error)
        finally:
            if not self._stop.is_set():  # the traceback follows; space would run out one day
                self._on_fatal("the compaction thread ended unexpectedly")


@contextmanager
def _apart_from_others(errors: list[OSError]) -> Iterator[None]:
    """Work on one log: if it fails, the others have their turn all the same, in this pass and in
    each one after. A full disk ends the pass: the next copy would meet it as well."""
    try:
        yield
    except OSError as error:
        if is_no_space(error):
            raise
        errors.append(error)
