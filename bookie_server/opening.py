"""Opening a bookie: locks, cookies, indexes, journal replay; then it may serve.

The order matters. Locks come first, so that no other process changes what is checked. Cookies are
checked before an index is opened, so that nothing is made in a directory of another bookie. The
journal is replayed before a new journal file is begun: the new file names the batch it follows.
The first flush comes last: it moves the checkpoint marks to the new file, and frees the old ones.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bookie_server.bookie import Bookie
from bookie_server.first_contact import LedgerKeys, NoLedgers
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import (
    INDEX_NAME,
    check_cookies,
    claim_index,
    lock_directories,
    read_cookie,
)
from bookie_server.storage.disks import DiskWatch, ask_disk
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.fs.vfs import FileSystem, is_no_space
from bookie_server.storage.index.base import Index, IndexLostError
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.journal.batch_log import BatchLog
from bookie_server.storage.journal.journal import Journal, Post
from bookie_server.storage.journal.logs import RUN_LOG_FILE_BYTES_MAX, DurableMarks, RunLog
from bookie_server.storage.journal.replay import replay
from bookie_server.storage.ledgers.directory_store import DirectoryStore
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.bookie import BOOKIE_OPEN_LOGS_MAX

logger = logging.getLogger(__name__)

OpenIndex = Callable[[Path], Index]


def open_bookie(
    config: StorageConfig,
    *,
    post: Post,
    on_fatal: Callable[[str], None],
    keys: LedgerKeys | None = None,
    on_state_changed: Callable[[], None] = lambda: None,
    file_system: FileSystem | None = None,
    open_index: OpenIndex | None = None,
    threads: bool = True,
    open_logs_max: int = BOOKIE_OPEN_LOGS_MAX,
) -> Bookie:
    """Lock and check the directories, replay the journal, and be ready to serve.

    ``post`` runs a callable on the service thread. Without ``keys`` no new ledger is taken.
    ``on_fatal`` is called through ``post`` when the journal has failed or a storage thread has
    ended: the process must exit.
    ``on_state_changed`` is called through it when a disk became full, or has room again. Without
    ``threads`` the caller drives ``commit_pending`` and ``flush``. ``open_logs_max``: entry logs
    that stay open for readers, of each directory.

    Raises CorruptionError if what is stored is damaged, ConfigurationError if the directories are
    not this bookie's or not usable. Then everything is closed and unlocked again.
    """
    files = file_system or PosixFileSystem()
    directories = len(config.ledger_directories)
    make_index = open_index or partial(
        LmdbIndex, map_bytes=config.index_map_bytes, directories=directories
    )

    def opened() -> Bookie:
        with ExitStack() as undo:
            bookie = _open(
                config,
                files,
                make_index,
                post,
                on_fatal,
                on_state_changed,
                keys or NoLedgers(),
                undo,
                open_logs_max,
            )
            undo.pop_all()
        return bookie

    try:
        try:
            bookie = opened()
        except IndexLostError as error:  # by an older error of the disk, which is told once
            logger.warning("the storage is opened once more: %s", error)
            bookie = opened()
    except OSError as error:
        raise ConfigurationError(f"the storage cannot be opened: {error}") from error
    if threads:
        bookie.start()
    return bookie


def _open(
    config: StorageConfig,
    files: FileSystem,
    make_index: OpenIndex,
    post: Post,
    on_fatal: Callable[[str], None],
    on_state_changed: Callable[[], None],
    keys: LedgerKeys,
    undo: ExitStack,
    open_logs_max: int,
) -> Bookie:
    """Put the parts together; ``undo`` gets what takes them apart if a later one fails."""
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
    stores = [
        _store(files, directory, make_index, config, undo, open_logs_max)
        for directory in config.ledger_directories
    ]
    marks = replay(
        files,
        config.journal_directory,
        stores,
        cache_bytes_max=max(1, config.write_cache_bytes // len(stores)),
    )
    journal = _begin_journal(files, config, marks, post, on_fatal)
    undo.callback(journal.close)

    def flushed() -> None:  # on the thread that only `start` starts
        disks.check_soon()
        post(bookie.on_flushed)

    storage = LedgerStorage(
        stores,
        journal,
        write_cache_bytes=config.write_cache_bytes,
        flush_interval_s=config.flush_interval_s,
        write_once_bytes=config.write_once_bytes,
        entry_log_bytes=config.entry_log_bytes,
        compaction_bytes_per_s=config.compaction_bytes_per_s,
        scrub_bytes_per_s=config.scrub_bytes_per_s,
        scrub_interval_s=config.scrub_interval_s,
        on_flushed=flushed,
        on_fatal=lambda message: post(partial(on_fatal, message)),
    )
    _flush_first(storage)
    disks = DiskWatch(
        files,
        config.directories,
        config.water_marks,
        config.disk_check_interval_s,
        journal=journal,
        storage=storage,
        on_changed=lambda: post(on_state_changed),
        on_fatal=lambda message: post(partial(on_fatal, message)),
    )
    return (bookie := Bookie(journal, storage, disks, locks, post, keys))


def _begin_journal(
    files: FileSystem,
    config: StorageConfig,
    marks: DurableMarks,
    post: Post,
    on_fatal: Callable[[str], None],
) -> Journal:
    """A new file of the journal behind what was replayed, and run logs beside it."""
    return Journal(
        files,
        config.journal_directory,
        end=marks.journal,
        file_bytes=config.journal_file_bytes,
        batch_bytes_max=config.journal_batch_bytes_max,
        post=post,
        on_fatal=on_fatal,
        saves_room=_is_full(files, config.journal_directory, config),
        run_logs=_run_logs(files, config, marks),
    )


def _run_logs(files: FileSystem, config: StorageConfig, marks: DurableMarks) -> tuple[RunLog, ...]:
    """The run log of each ledger directory. None has a file before the first run for it."""
    if not config.write_once_bytes:
        return ()
    return tuple(
        RunLog(
            BatchLog(
                files,
                directory,
                end=end,
                file_bytes=min(config.journal_file_bytes, RUN_LOG_FILE_BYTES_MAX),
                new_salt=partial(secrets.randbits, 64),
            ),
            lambda directory=directory: not _is_full(files, directory, config),  # type: ignore[misc]
        )
        for directory, end in zip(config.ledger_directories, marks.run_logs, strict=True)
    )


def _is_full(files: FileSystem, directory: Path, config: StorageConfig) -> bool:
    """Whether a directory's disk is above its mark: then a journal file is begun when it is
    needed, as restarts would use the prepared ones up, and a run log gets none."""
    return bool(ask_disk(files, directory, config.water_marks).reason)


def _flush_first(storage: LedgerStorage) -> None:
    """Move the marks to the new journal file, and free the old ones; not on a full disk."""
    try:
        storage.flush()
    except OSError as error:
        if not is_no_space(error):
            raise
        # Memory and journal have it: what is stored is served, and the next flush tries again.
        logger.warning("the first flush found no space, it is tried again: %s", error)


def _store(
    files: FileSystem,
    directory: Path,
    make_index: OpenIndex,
    config: StorageConfig,
    undo: ExitStack,
    open_logs_max: int,
) -> DirectoryStore:
    index = make_index(directory / INDEX_NAME)
    undo.callback(index.close)
    claim_index(index, read_cookie(files, directory))
    directories = len(config.ledger_directories)
    return DirectoryStore(
        files,
        directory,
        index,
        entry_log_bytes=config.entry_log_bytes,
        entry_log_cached_bytes=config.entry_log_cached_bytes,
        block_cache_bytes=config.block_cache_bytes // directories,
        directories=directories,
        open_logs_max=open_logs_max,
    )
