"""Bookie: the rules of ``core`` applied to requests, over the journal and the ledger storage.

Order of an add: access key, fence, write cache, journal, sync, answer. Memory comes before the
journal, so that a checkpoint never trims what memory does not hold. Order of a fence: flag,
journal, sync, answer; adds and fences run on one thread, so the check and the change of an add
are never apart. Reads see entries that are not durable yet: only a recovery looks above the last
add confirmed, and it copies what it finds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from bookie_server.core.admission import BytesInFlight
from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.core.ledger_state import hash_of, refuse_access, refuse_add
from bookie_server.storage.blocks import RUN_ENTRIES_MAX, RUN_FRAMES_BYTES_MAX, encode_run
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import INDEX_NAME, check_cookies, lock_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.fs.vfs import FileSystem, Lock
from bookie_server.storage.journal.changes import (
    access_key_body,
    fence_body,
    last_add_confirmed_body,
)
from bookie_server.storage.journal.journal import Done, Journal, JournalStats, Post
from bookie_server.storage.journal.replay import replay_journal
from bookie_server.storage.ledgers.directory_store import DirectoryStore
from bookie_server.storage.ledgers.index import Index
from bookie_server.storage.ledgers.ledger_storage import EngineStats, LedgerStorage
from bookie_server.storage.ledgers.lmdb_index import LmdbIndex
from bookie_server.storage.ledgers.write_cache import CachedRun
from bookie_server.storage.records import RecordType
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.runs import EntryRun
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerId

OpenIndex = Callable[[Path], Index]


class ReadOutcome(NamedTuple):
    """What a read could have.

    ``runs`` together are the entries first, first + stride, ... without a gap. ``status`` is OK
    when the range, or ``max_bytes`` of it and at least one entry, is there; else it says why the
    read stopped at ``entry_id``.
    """

    runs: list[EntryRun]
    status: BookieStatus
    entry_id: EntryId
    message: str


class LedgerEnd(NamedTuple):
    """Where a ledger ends on this bookie; the numbers are NO_ENTRY unless status is OK."""

    status: BookieStatus
    last_add_confirmed: EntryId
    last_entry: EntryId
    fenced: bool
    message: str


@dataclass(frozen=True, slots=True)
class StorageStats:
    """Counters and sizes for metrics and status."""

    journal: JournalStats
    engine: EngineStats
    append_bytes_in_flight: int
    adds_waiting: int
    failure: str


class _WaitingAdd(NamedTuple):
    """An add that waits for room in the write cache; nothing of it was decided yet."""

    run: EntryRun
    access_key: bytes
    recovery: bool
    last_add_confirmed: EntryId
    done: Done


class Bookie:
    """One bookie's data. Methods belong to the service thread unless they say otherwise."""

    def __init__(
        self,
        config: StorageConfig,
        journal: Journal,
        stores: list[DirectoryStore],
        locks: list[Lock],
        post: Post,
        on_fatal: Callable[[str], None],
    ) -> None:
        """Use ``open``."""
        self._journal = journal
        self._post = post
        self._locks = locks
        self._storage = LedgerStorage(
            stores,
            journal,
            write_cache_bytes=config.write_cache_bytes,
            flush_interval_s=config.flush_interval_s,
            on_flushed=partial(post, self._on_flushed),
            on_fatal=lambda message: post(partial(on_fatal, message)),
        )
        self._bytes_in_flight = BytesInFlight()
        self._waiting: deque[_WaitingAdd] = deque()
        self._fences: dict[LedgerId, list[Done]] = {}
        self._watchers: dict[LedgerId, dict[int, Callable[[], None]]] = {}
        self._watcher_ids = count()

    @classmethod
    def open(
        cls,
        config: StorageConfig,
        *,
        post: Post,
        on_fatal: Callable[[str], None],
        file_system: FileSystem | None = None,
        open_index: OpenIndex | None = None,
        threads: bool = True,
    ) -> Bookie:
        """Lock and check the directories, replay the journal, and be ready to serve.

        ``post`` runs a callable on the service thread. ``on_fatal`` is called through it when the
        journal has failed: nothing is acknowledged any more and the process must exit. Without
        ``threads`` the caller drives ``commit_pending`` and ``flush``. Raises CorruptionError for
        damage and ConfigurationError for directories that are not this bookie's or not usable.
        """
        files = file_system or PosixFileSystem()
        make_index = open_index or partial(LmdbIndex, map_bytes=config.index_map_bytes)
        with ExitStack() as undo:
            try:
                bookie = cls._open(config, files, make_index, post, on_fatal, undo)
            except OSError as error:
                raise ConfigurationError(f"the storage cannot be opened: {error}") from error
            undo.pop_all()
        if threads:
            bookie._journal.start()
            bookie._storage.start()
        return bookie

    @classmethod
    def _open(
        cls,
        config: StorageConfig,
        files: FileSystem,
        make_index: OpenIndex,
        post: Post,
        on_fatal: Callable[[str], None],
        undo: ExitStack,
    ) -> Bookie:
        for directory in config.directories:
            if not files.exists(directory):
                raise ConfigurationError(f"directory {directory} does not exist")
        locks = lock_directories(files, config.directories)
        for lock in locks:
            undo.callback(lock.release)
        check_cookies(
            files,
            config.journal_directory,
            config.ledger_directories,
            bookie_id=config.bookie_id,
            cluster_id=config.cluster_id,
        )
        stores: list[DirectoryStore] = []
        for directory in config.ledger_directories:
            index = make_index(directory / INDEX_NAME)
            undo.callback(index.close)
            stores.append(_store(files, directory, index, config))
        end = replay_journal(
            files,
            config.journal_directory,
            stores,
            cache_bytes_max=max(1, config.write_cache_bytes // len(stores)),
        )
        journal = Journal(
            files,
            config.journal_directory,
            end=end,
            file_bytes=config.journal_file_bytes,
            batch_bytes_max=config.journal_batch_bytes_max,
            post=post,
            on_fatal=on_fatal,
        )
        undo.callback(journal.close)
        bookie = cls(config, journal, stores, locks, post, on_fatal)
        bookie._storage.flush()  # moves the marks to the new file, and removes the old ones
        return bookie

    # -- changes -------------------------------------------------------------------------------

    @property
    def append_bytes_in_flight(self) -> int:
        """Bytes of adds accepted and not answered yet."""
        return self._bytes_in_flight.count

    def add(
        self,
        run: EntryRun,
        *,
        access_key: bytes,
        recovery: bool,
        last_add_confirmed: EntryId,
        done: Done,
    ) -> None:
        """Store a well-formed run (``runs.run_error``); ``done(OK)`` once it is durable.

        A refusal may call ``done`` at once. With the write cache full, adds wait in order.
        """
        if len(run.frames) > RUN_FRAMES_BYTES_MAX or len(run.sizes) > RUN_ENTRIES_MAX:
            message = f"ledger {run.ledger_id}: {run.count} entries of {len(run.frames)} bytes"
            done(BookieStatus.BAD_REQUEST, f"{message} are too many for one run")
            return
        size = len(run.frames)
        self._bytes_in_flight.acquire(size)
        waiting = _WaitingAdd(
            run, access_key, recovery, last_add_confirmed, partial(self._answer, size, done)
        )
        if self._waiting or self._storage.is_full(run.ledger_id):
            if self._storage.failure is not None:
                waiting.done(BookieStatus.IO_ERROR, f"flush fails: {self._storage.failure}")
            else:
                self._waiting.append(waiting)
            return
        self._add(waiting)

    def batch(self) -> AbstractContextManager[None]:
        """Adds made within become durable together: the runs of one message."""
        return self._journal.batch()

    def fence(self, ledger_id: LedgerId, *, access_key: bytes, done: Done) -> None:
        """Refuse adds of the ledger's writer from now on; ``done(OK)`` once that is durable.

        Works for ledgers never heard of. Again: waits for the fence in flight, or is done at once.
        """
        failure = self._journal.failure
        if failure is not None:
            done(BookieStatus.IO_ERROR, failure)
            return
        state = self._contact(ledger_id, hash_of(access_key), done)
        if state is None:
            return
        if ledger_id in self._fences:
            self._fences[ledger_id].append(done)
        elif state.fenced:
            done(BookieStatus.OK, "")
        else:
            self._storage.set_state(ledger_id, state._replace(fenced=True))
            self._fences[ledger_id] = [done]
            fenced = partial(self._fenced, ledger_id)
            self._journal.append(RecordType.FENCE, fence_body(ledger_id), fenced)

    def write_last_confirmed(
        self,
        ledger_id: LedgerId,
        last_add_confirmed: EntryId,
        *,
        access_key: bytes,
        done: Done,
    ) -> None:
        """Learn the last add confirmed from an idle writer; it never goes back."""
        failure = self._journal.failure
        if failure is not None:
            done(BookieStatus.IO_ERROR, failure)
            return
        state = self._contact(ledger_id, hash_of(access_key), done)
        if state is None:
            return
        if last_add_confirmed <= state.last_add_confirmed:
            done(BookieStatus.OK, "")
            return
        self._storage.set_state(ledger_id, state._replace(last_add_confirmed=last_add_confirmed))
        body = last_add_confirmed_body(ledger_id, last_add_confirmed)
        self._journal.append(RecordType.LAST_ADD_CONFIRMED, body, done)
        self._notify(ledger_id)

    # -- questions -----------------------------------------------------------------------------

    def end_of_ledger(self, ledger_id: LedgerId, *, access_key: bytes) -> LedgerEnd:
        """Where the ledger ends here. A key that is shown must be right; none is needed."""
        try:
            state = self._storage.state(ledger_id)
        except (OSError, CorruptionError) as error:
            return LedgerEnd(BookieStatus.IO_ERROR, NO_ENTRY, NO_ENTRY, False, str(error))
        if state is None:
            message = f"ledger {ledger_id} is not known here"
            return LedgerEnd(BookieStatus.NO_SUCH_LEDGER, NO_ENTRY, NO_ENTRY, False, message)
        if access_key:
            refusal = refuse_access(ledger_id, state, hash_of(access_key))
            if refusal is not None:
                return LedgerEnd(refusal.status, NO_ENTRY, NO_ENTRY, False, refusal.message)
        return LedgerEnd(
            BookieStatus.OK, state.last_add_confirmed, state.last_entry, state.fenced, ""
        )

    def watch_last_confirmed(
        self, ledger_id: LedgerId, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Call back whenever the ledger's last add confirmed grows and once it is fenced, until
        the callable that is returned is called."""
        token = next(self._watcher_ids)
        self._watchers.setdefault(ledger_id, {})[token] = callback

        def cancel() -> None:
            watchers = self._watchers.get(ledger_id, {})
            watchers.pop(token, None)
            if not watchers:
                self._watchers.pop(ledger_id, None)

        return cancel

    def read(
        self,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        *,
        stride: int,
        max_bytes: int,
    ) -> ReadOutcome:
        """Entries first, first + stride, ... up to last, both included; any thread.

        ``max_bytes`` bounds the frames; one entry is returned whatever its size.
        """
        assert stride >= 1 and max_bytes >= 1, "the service puts in its defaults"
        runs: list[EntryRun] = []
        room = max_bytes
        entry_id = first_entry
        while entry_id <= last_entry and room > 0:
            try:
                run = self._storage.read(
                    ledger_id, entry_id, last_entry, stride=stride, max_bytes=room
                )
                if run is None:
                    return self._missing(ledger_id, entry_id, runs)
            except (OSError, CorruptionError) as error:
                return ReadOutcome(runs, BookieStatus.IO_ERROR, entry_id, str(error))
            if runs and len(run.frames) > room:
                break
            runs.append(run)
            room -= len(run.frames)
            entry_id = EntryId(run.last_entry + stride)
        return ReadOutcome(runs, BookieStatus.OK, entry_id, "")

    def list_entries(self, ledger_id: LedgerId) -> list[tuple[EntryId, EntryId]] | None:
        """Stretches of entries held, ascending; None when the ledger is not known; any thread.

        OSError or CorruptionError when that cannot be read.
        """
        ranges = self._storage.entry_ranges(ledger_id)
        if not ranges and self._storage.state(ledger_id) is None:
            return None
        return ranges

    def stats(self) -> StorageStats:
        """Counters; any thread."""
        return StorageStats(
            self._journal.stats(),
            self._storage.stats(),
            self._bytes_in_flight.count,
            len(self._waiting),
            self._journal.failure or self._storage.failure or "",
        )

    # -- driving and closing -------------------------------------------------------------------

    def commit_pending(self) -> bool:
        """One journal batch, for callers without threads; False when nothing waited."""
        return self._journal.commit_pending()

    def flush(self) -> None:
        """One checkpoint; any thread. OSError or CorruptionError when it fails."""
        self._storage.flush()
        self._post(self._on_flushed)

    def close(self) -> None:
        """Make everything accepted durable, move it to the entry log, release the directories.

        Completions still run through ``post``. Adds that wait for room are refused with IO_ERROR:
        nothing of them was stored. OSError or CorruptionError when the last flush fails; nothing
        is lost by that, the next start replays the journal.
        """
        while self._waiting:
            self._waiting.popleft().done(BookieStatus.IO_ERROR, "the bookie is shutting down")
        self._journal.close()
        try:
            self._storage.close()
        finally:
            for lock in self._locks:
                lock.release()

    # -- inside --------------------------------------------------------------------------------

    def _add(self, add: _WaitingAdd) -> None:
        run = add.run
        failure = self._journal.failure
        if failure is not None:
            add.done(BookieStatus.IO_ERROR, failure)
            return
        ledger_id = run.ledger_id
        state = self._contact(ledger_id, hash_of(add.access_key), add.done)
        if state is None:
            return
        refusal = refuse_add(ledger_id, state, recovery=add.recovery)
        if refusal is not None:
            add.done(refusal.status, refusal.message)
            return
        block = encode_run(run, add.last_add_confirmed)
        new_state = state.with_run(run.last_entry, add.last_add_confirmed)
        self._storage.add(CachedRun(run, add.last_add_confirmed, block), new_state)
        self._journal.append(RecordType.RUN, block, add.done)
        if new_state.last_add_confirmed > state.last_add_confirmed and self._watchers:
            self._notify(ledger_id)

    def _contact(
        self, ledger_id: LedgerId, access_key_hash: bytes, done: Done
    ) -> LedgerRecord | None:
        """The state of a ledger whose key fits, made at the first contact; else None, answered."""
        try:
            state = self._storage.state(ledger_id)
        except (OSError, CorruptionError) as error:
            done(BookieStatus.IO_ERROR, str(error))
            return None
        refusal = refuse_access(ledger_id, state, access_key_hash)
        if refusal is not None:
            done(refusal.status, refusal.message)
            return None
        if state is None:
            state = LedgerRecord(access_key_hash)
            if access_key_hash:
                self._storage.set_state(ledger_id, state)
                body = access_key_body(ledger_id, access_key_hash)
                self._journal.append(RecordType.ACCESS_KEY, body, _nobody_waits)
        return state

    def _answer(self, size: int, done: Done, status: BookieStatus, message: str) -> None:
        self._bytes_in_flight.release(size)
        done(status, message)

    def _fenced(self, ledger_id: LedgerId, status: BookieStatus, message: str) -> None:
        for done in self._fences.pop(ledger_id):
            done(status, message)
        self._notify(ledger_id)

    def _notify(self, ledger_id: LedgerId) -> None:
        for callback in list(self._watchers.get(ledger_id, {}).values()):
            callback()

    def _on_flushed(self) -> None:
        failure = self._storage.failure
        while self._waiting:
            if failure is not None:
                self._waiting.popleft().done(BookieStatus.IO_ERROR, f"flush fails: {failure}")
            elif self._storage.is_full(self._waiting[0].run.ledger_id):
                self._storage.request_flush()
                return
            else:
                self._add(self._waiting.popleft())

    def _missing(self, ledger_id: LedgerId, entry_id: EntryId, runs: list[EntryRun]) -> ReadOutcome:
        if not runs and self._storage.state(ledger_id) is None:
            message = f"ledger {ledger_id} is not known here"
            return ReadOutcome(runs, BookieStatus.NO_SUCH_LEDGER, entry_id, message)
        message = f"ledger {ledger_id} entry {entry_id} is not held here"
        return ReadOutcome(runs, BookieStatus.NO_SUCH_ENTRY, entry_id, message)


def _nobody_waits(_status: BookieStatus, _message: str) -> None:
    """The record that follows in the journal has the waiter."""


def _store(
    files: FileSystem, directory: Path, index: Index, config: StorageConfig
) -> DirectoryStore:
    return DirectoryStore(
        files,
        directory,
        index,
        entry_log_bytes=config.entry_log_bytes,
        entry_log_cached_bytes=config.entry_log_cached_bytes,
        block_cache_bytes=config.block_cache_bytes // len(config.ledger_directories),
    )
