"""Replay: applies the journal and the run logs to the ledger directories.

Every directory has its own checkpoint mark, and gets only what lies behind it; the journal is read
from the mark that is furthest behind (rule S6). What was applied is flushed before anything is
served or written, and applying it twice is harmless (rule S8). All of it happens on one thread,
before there are others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

from bookie_server.core.ledger_record import Change, LedgerRecord
from bookie_server.storage.blocks import BlockFormatError, decode_block, encode_run
from bookie_server.storage.fs.vfs import FileSystem, is_no_space
from bookie_server.storage.journal.changes import decode_change
from bookie_server.storage.journal.files import (
    REPLACE_BOOKIE,
    JournalBatch,
    journal_numbers,
    journal_path,
    missing_file,
    read_batches,
    remove_unfinished,
    sync_files,
)
from bookie_server.storage.journal.logs import DurableMarks
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.journal.newest import read_newest
from bookie_server.storage.journal.waiting import RunPlace
from bookie_server.storage.journal.witness import JOURNAL_LOG, decode_witness, run_log_number
from bookie_server.storage.ledgers.directory_store import DirectoryStore
from bookie_server.storage.ledgers.write_cache import CachedRun
from bookie_server.storage.records import FILE_HEADER_BYTES, RECORD_HEADER_BYTES, RecordType
from spark_ledger.errors import CorruptionError
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId

logger = logging.getLogger(__name__)

START_OF_JOURNAL = Mark(0, FILE_HEADER_BYTES, 0, 0)
"""Before the first file of a journal."""


def replay(
    file_system: FileSystem,
    directory: Path,
    stores: Sequence[DirectoryStore],
    *,
    cache_bytes_max: int,
) -> DurableMarks:
    """Apply what the stores lack, flush them, and return where the journal and the run logs end.

    The files are synced before they are read (rule S11): after a kill the page cache may show a
    batch that is not on the disk. Two directories could take it in at different times, and a power
    cut in between would leave one ahead of a journal that can no longer reach the other.

    Nothing of the logs is changed. Raises CorruptionError if one is damaged or files that a store
    needs are missing (rule S5), OSError if the disk fails.
    """
    assert stores, "a journal without directories has nothing to bring up to date"
    # Where the run logs end is known before a mark moves: what the journal has seen of them is
    # compared with it, and is not read again once the marks have passed it.
    starts = [_start_of_run_log(file_system, store) for store in stores]
    run_log_ends = [
        _end_of_run_log(file_system, store, start)
        for store, start in zip(stores, starts, strict=True)
    ]
    ends = {
        run_log_number(number): (store.directory, run_log_ends[number])
        for number, store in enumerate(stores)
    }
    # The journal first: it has the access keys of the ledgers whose runs are in the run logs.
    end = _replay_journal(file_system, directory, stores, ends, cache_bytes_max)
    ends[JOURNAL_LOG] = directory, end
    for number, (store, start) in enumerate(zip(stores, starts, strict=True)):
        if start is not None:
            _replay_run_log(file_system, number, store, start, ends, cache_bytes_max)
    return DurableMarks(
        _behind_all_files(file_system, directory, end),
        tuple(
            _behind_all_files(file_system, store.directory, run_log_end)
            for store, run_log_end in zip(stores, run_log_ends, strict=True)
        ),
    )


def _replay_journal(
    file_system: FileSystem,
    directory: Path,
    stores: Sequence[DirectoryStore],
    ends: Mapping[int, tuple[Path, Mark]],
    cache_bytes_max: int,
) -> Mark:
    """Apply the journal; its end. ``ends`` are those of the run logs."""
    remove_unfinished(file_system, directory)
    start = _start(file_system, directory, {store.directory: store.mark for store in stores})
    if start is None:
        return START_OF_JOURNAL
    sync_files(file_system, directory, start.file_number)
    end = start
    full: list[DirectoryStore] = []
    for batch in read_batches(file_system, directory, start):
        assert end.is_behind(batch.end), "batches are applied in the order of their sequences"
        end = batch.end
        _check_witness(batch, directory, ends)
        _apply(stores, batch, directory)
        # All that lies up to this batch is in the caches, so its end is a mark like any other. If
        # the start is interrupted, the next one goes on from here.
        for store in stores:
            if store.cache.byte_count >= cache_bytes_max and store not in full:
                _flush(store, end, None, full)
    # A directory is flushed up to durable marks only, so the journal did reach this one's mark. A
    # journal that ends before it lost batches that were synced, although its tail looks torn.
    for store in stores:
        if store.mark is not None and store.mark.sequence > end.sequence:
            raise CorruptionError(
                f"journal file {journal_path(directory, end.file_number)}: ends or is damaged at "
                f"offset {end.offset} behind batch {end.sequence}, but ledger directory "
                f"{store.directory} holds batch {store.mark.sequence}: {REPLACE_BOOKIE}"
            )
    for store in stores:
        if (store.mark is None or store.mark.is_behind(end)) and store not in full:
            _flush(store, end, None, full)
    stored = [store for store in stores if store not in full]
    assert all(store.mark is not None and not store.mark.is_behind(end) for store in stored), (
        f"a directory was not brought up to {end}"
    )
    _check_stored(stored)
    return end


def _check_stored(stores: Sequence[DirectoryStore]) -> None:
    """Assert that nothing of what was replayed is in memory only, but on a full disk."""
    assert not any(store.cache.byte_count or store.dirty_ledgers() for store in stores), (
        "what was applied is stored before the bookie serves, or kept in memory on a full disk"
    )


def _behind_all_files(file_system: FileSystem, directory: Path, end: Mark) -> Mark:
    """The end of a log beyond every file that is there: one without a batch keeps its number."""
    last = max(journal_numbers(file_system, directory), default=0)
    if last > end.file_number:
        return end._replace(file_number=last, offset=FILE_HEADER_BYTES)
    return end


def _start_of_run_log(file_system: FileSystem, store: DirectoryStore) -> Mark | None:
    """Where to read a directory's run log from; None when there never was one."""
    return _start(file_system, store.directory, {store.directory: store.covered.run_log_mark})


def _end_of_run_log(file_system: FileSystem, store: DirectoryStore, start: Mark | None) -> Mark:
    """The mark behind the last batch of a directory's run log.

    The log is read twice, here and when it is applied. It is what came since the last flush, and is
    read from the page cache the second time.
    """
    if start is None:
        return START_OF_JOURNAL
    sync_files(file_system, store.directory, start.file_number)
    end = start
    for batch in read_batches(file_system, store.directory, start):
        end = batch.end
    return end


def _replay_run_log(
    file_system: FileSystem,
    number: int,
    store: DirectoryStore,
    start: Mark,
    ends: Mapping[int, tuple[Path, Mark]],
    cache_bytes_max: int,
) -> None:
    """Apply a directory's run log: each run stays where it is, and gets its rows (rule S16).

    A run log belongs to one directory, so one mark decides where to begin, and all that is read is
    lacking there. Runs of a batch that failed are here as well if they became durable all the same,
    and in the journal, too: the flush drops what is stored already (rule S8).
    """
    full: list[DirectoryStore] = []
    for batch in read_batches(file_system, store.directory, start):
        _check_witness(batch, store.directory, ends)
        offset = batch.offset
        for record_type, body in batch.records:
            if record_type == RecordType.RUN:
                place = RunPlace(number)
                place.settle((batch.end.file_number, offset))
                run, last_add_confirmed = _decode(store.directory, batch, body)
                _apply_run(store, run, last_add_confirmed, place)
            elif record_type != RecordType.WITNESS:
                what = f"record of type {record_type} in a run log"
                raise _unreadable(store.directory, batch.end, what)
            offset += RECORD_HEADER_BYTES + len(body)
        if store.cache.byte_count >= cache_bytes_max and not full:
            _flush(store, None, batch.end, full)
    if not full:
        _flush(store, None, ends[run_log_number(number)][1], full)
    if not full:
        _check_stored([store])


def _check_witness(
    batch: JournalBatch, directory: Path, ends: Mapping[int, tuple[Path, Mark]]
) -> None:
    """Raise CorruptionError if another log had gone further when this batch was begun (rule S5).

    ``directory`` is that of the batch, ``ends`` are those of other logs, with their directories.
    """
    for record_type, body in batch.records:
        if record_type != RecordType.WITNESS:
            continue
        seen = decode_witness(body)
        if seen is None:
            raise _unreadable(directory, batch.end, "a witness of another form")
        for log, sequence in seen.items():
            other, end = ends[log]
            if end.sequence < sequence:
                raise CorruptionError(
                    f"journal file {journal_path(other, end.file_number)}: ends or is damaged at "
                    f"offset {end.offset} behind batch {end.sequence}, but batch {sequence} was "
                    f"synced before {journal_path(directory, batch.end.file_number)} went on: "
                    f"{REPLACE_BOOKIE}"
                )


def _flush(
    store: DirectoryStore, end: Mark | None, run_log_end: Mark | None, full: list[DirectoryStore]
) -> None:
    """Store what was applied. On a full disk it stays in memory, and the journal keeps it: all of
    it was in memory before the restart as well, so there is room (rule S14). Damaged rows of the
    index refuse no start: they are taken out, as while the bookie serves (rule S24)."""
    try:
        try:
            _store(store, end, run_log_end)
        except CorruptionError as error:
            if not store.scrub.heal(Lock(), error):  # nobody else is there yet
                raise
            _store(store, end, run_log_end)
    except OSError as error:
        if not is_no_space(error):
            raise
        logger.warning("%s: what was replayed stays in memory: %s", store.directory, error)
        full.append(store)


def _store(store: DirectoryStore, end: Mark | None, run_log_end: Mark | None) -> None:
    # A flush that failed has set a part apart, and the next call stores that part only.
    is_made_up_for = store.cache.is_frozen
    store.flush(end, run_log_end)
    if is_made_up_for:
        store.flush(end, run_log_end)


def _start(
    file_system: FileSystem, directory: Path, by_directory: Mapping[Path, Mark | None]
) -> Mark | None:
    """Of the marks in the log that are stored for directories, the one furthest behind; None when
    nothing was ever stored.

    Raises CorruptionError if a directory without a mark needs files that are gone: its index was
    lost, and the entries in it are nowhere else on this bookie. Or if the file that a mark names is
    gone: at a start all marks move into the new file, so a file that no older one names is named by
    them; and by a note, before anything in it is acknowledged, as a full disk may stop the marks.
    """
    numbers = journal_numbers(file_system, directory)
    if numbers:
        # A kill may have left a file whose name is not durable (rule S11), and marks that name it
        # are stored before the next file is made.
        file_system.sync_directory(directory)
    newest = read_newest(file_system, directory)
    unmarked = [holder for holder, mark in by_directory.items() if mark is None]
    marks = [mark for mark in by_directory.values() if mark is not None]
    if unmarked:
        # Never flushed, or its index is gone. Only the whole journal, from its first file on, can
        # stand in for it: whatever was trimmed was in the index.
        if not numbers and not marks and newest is None:
            return None
        if not numbers and not marks and newest is not None:
            raise missing_file(directory, newest)
        if not numbers or numbers[0] != 1:
            raise CorruptionError(
                f"ledger directory {unmarked[0]}: its index is empty, but the journal in "
                f"{directory} has been trimmed: the index was lost or the directory exchanged; "
                f"{REPLACE_BOOKIE}"
            )
    for mark in marks:
        if mark.file_number not in numbers:
            raise missing_file(directory, mark.file_number)
    if newest is not None and newest > max(numbers):
        raise missing_file(directory, newest)
    if unmarked:
        return START_OF_JOURNAL._replace(file_number=1)
    return min(marks, key=lambda mark: (mark.sequence, mark.file_number))


def _apply(stores: Sequence[DirectoryStore], batch: JournalBatch, directory: Path) -> None:
    """Give each record to the store of its ledger, unless the store has it already.

    Raises CorruptionError if an intact record is not understood.
    """
    for record_type, body in batch.records:
        if record_type == RecordType.RUN:
            run, last_add_confirmed = _decode(directory, batch, body)
            store = stores[run.ledger_id % len(stores)]
            if _lacks(store, batch.end):
                _apply_run(store, run, last_add_confirmed)
            continue
        if record_type == RecordType.WITNESS:
            continue
        change = decode_change(record_type, body)
        if change is None:
            what = f"record of type {record_type}, {len(body)} bytes"
            raise _unreadable(directory, batch.end, what)
        store = stores[change.ledger_id % len(stores)]
        if _lacks(store, batch.end):
            _apply_change(store, change)


def _decode(directory: Path, batch: JournalBatch, body: bytes) -> tuple[EntryRun, EntryId]:
    """The run of a record, and the last add confirmed with it. Raises CorruptionError."""
    try:
        return decode_block(body)
    except BlockFormatError as error:
        raise _unreadable(directory, batch.end, str(error)) from error


def _lacks(store: DirectoryStore, batch_end: Mark) -> bool:
    """Whether a store's mark is before a batch. What it has already would only cost time."""
    return store.mark is None or store.mark.sequence < batch_end.sequence


def _apply_run(
    store: DirectoryStore,
    run: EntryRun,
    last_add_confirmed: EntryId,
    place: RunPlace | None = None,
) -> None:
    """Put a run into the cache, as its add did; entries that are stored are dropped later.

    What the cache has is not taken once more (rule S8): the journal has a copy for each time that
    it was sent, and a full disk takes none of them out of memory.
    """
    cache = store.cache
    if any(cache.find(run.ledger_id, EntryId(each)) is None for each in run.ids()):
        block = encode_run(run, last_add_confirmed)
        cache.add(CachedRun(run, last_add_confirmed, block, place))
    ledger_record = store.ledger_record(run.ledger_id) or LedgerRecord()
    store.set_ledger_record(
        run.ledger_id, ledger_record.with_run(run.last_entry, last_add_confirmed)
    )


def _apply_change(store: DirectoryStore, change: Change) -> None:
    """Changes only add up (rule S8): a key and a fence stay, the last add confirmed grows."""
    ledger_record = store.ledger_record(change.ledger_id) or LedgerRecord()
    store.set_ledger_record(change.ledger_id, ledger_record.with_change(change))


def _unreadable(directory: Path, end: Mark, what: str) -> CorruptionError:
    path = journal_path(directory, end.file_number)
    return CorruptionError(
        f"journal file {path}: batch {end.sequence} ending at offset {end.offset} is intact but "
        f"not understood ({what}): it was written by a newer version"
    )
