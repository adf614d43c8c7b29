"""One directory: any runs in any order with checkpoints between are what a dict says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.blocks import encode_run
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.index.base import Index
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.memory_index import MemoryIndex
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.ledgers.directory_store import DirectoryStore
from bookie_server.storage.ledgers.entry_log import log_ids
from bookie_server.storage.ledgers.write_cache import CachedRun, Generation
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import GIB, MIB
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import expected, make_run

DIRECTORY = Path("/ledgers")
L = LedgerId(7)


def open_store(files: FileSystem, directory: Path, index: Index) -> DirectoryStore:
    return DirectoryStore(
        files, directory, index, entry_log_bytes=4096, block_cache_bytes=64 * 1024
    )


@pytest.fixture
def store() -> DirectoryStore:
    files = MemoryFileSystem()
    files.mkdir(DIRECTORY)
    return open_store(files, DIRECTORY, MemoryIndex(files, DIRECTORY / "index"))


def add(store: DirectoryStore, ids: list[int], size: int = 40) -> None:
    run = make_run(L, ids, size)
    store.cache.add(CachedRun(run, NO_ENTRY, encode_run(run, NO_ENTRY)))
    before = store.ledger_record(L) or LedgerRecord()
    store.set_ledger_record(L, before.with_run(run.last_entry, NO_ENTRY))


def mark(sequence: int) -> Mark:
    return Mark(1, 4096 * (sequence + 1), sequence, 0)


def held(store: DirectoryStore) -> dict[int, bytes]:
    """Every entry up to 60, looked up one by one."""
    found: dict[int, bytes] = {}
    for entry_id in range(60):
        run = store.read(L, EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=MIB)
        if run is not None:
            assert list(run.ids()) == [entry_id]
            found[entry_id] = run.frames
    return found


def check(store: DirectoryStore, stored: set[int]) -> None:
    assert held(store) == expected(L, sorted(stored))
    ranges, following = store.entry_page(L, EntryId(0), 100)
    assert [e for first, last in ranges for e in range(first, last + 1)] == sorted(stored)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(ranges)) and following is None
    for limit in (1, 3):
        assert in_pages(store, limit) == sorted(stored)


def in_pages(store: DirectoryStore, limit: int) -> list[int]:
    """Every entry that pages of at most so many stretches and rows list."""
    found: list[int] = []
    first: EntryId | None = EntryId(0)
    while first is not None:
        ranges, following = store.entry_page(L, first, limit)
        assert len(ranges) <= limit and (following is None or following > first)
        ids = [e for low, high in ranges for e in range(low, high + 1)]
        assert all(first <= e and (following is None or e < following) for e in ids)
        found += ids
        first = following
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    adds=st.lists(
        st.tuples(st.sets(st.integers(0, 50), min_size=1, max_size=10), st.booleans()), max_size=10
    ),
    real=st.booleans(),
)
def test_any_runs_and_flushes_agree_with_a_dict(
    adds: list[tuple[set[int], bool]], real: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    index: Index
    files: FileSystem
    if real:
        directory = tmp_path_factory.mktemp("store")
        files, index = PosixFileSystem(), LmdbIndex(directory / "index", map_bytes=8 * MIB)
    else:
        memory, directory = MemoryFileSystem(), DIRECTORY
        memory.mkdir(directory)
        files, index = memory, MemoryIndex(memory, directory / "index")
    store = open_store(files, directory, index)
    stored: set[int] = set()
    for number, (ids, flush) in enumerate(adds):
        add(store, sorted(ids))
        stored |= ids
        if flush:
            store.flush(mark(number + 1))
        check(store, stored)
    store.flush(mark(len(adds) + 1))
    check(store, stored)
    total = sum(store._reader.read(row.location).count for row in distinct(store))
    assert total == len(stored), "each entry is stored once"
    store.close()


def distinct(store: DirectoryStore) -> list:  # type: ignore[type-arg]
    """One row for each block."""
    return list({row.location: row for row in store.index.rows(L)}.values())


def test_row_resumes_behind_entries_added_into_its_gap(store: DirectoryStore) -> None:
    add(store, [0, 10, 20])
    store.flush(mark(1))
    add(store, [5, 6])
    store.flush(mark(2))
    check(store, {0, 5, 6, 10, 20})
    assert [row.first_entry for row in store.index.rows(L)] == [0, 5, 10]
    assert len(distinct(store)) == 2


def test_runs_across_rows_of_an_interrupted_block_are_all_found(store: DirectoryStore) -> None:
    stored: set[int] = set()
    for number, ids in enumerate(([0, 10], [5], [3, 7], [1, 4, 6, 9, 12], [2, 8, 11])):
        add(store, ids)
        store.flush(mark(number + 1))
        stored |= set(ids)
        check(store, stored)


def test_an_entry_sent_again_at_a_border_is_stored_once(store: DirectoryStore) -> None:
    for number, ids in enumerate(([5, 6, 7], [7, 8], [4, 5], [8], [9]), start=1):
        add(store, ids)
        store.flush(mark(number))
    check(store, set(range(4, 10)))
    assert sum(store._reader.read(row.location).count for row in distinct(store)) == 6


def test_small_runs_become_few_blocks(store: DirectoryStore) -> None:
    for entry_id in range(50):
        add(store, [entry_id])
    store.flush(mark(1))
    assert [(row.first_entry, row.last_entry) for row in store.index.rows(L)] == [(0, 49)]
    check(store, set(range(50)))
    for first in (50, 52, 56):
        add(store, [first, first + 1])
    store.flush(mark(2))
    rows = [(row.first_entry, row.last_entry) for row in store.index.rows(L)]
    assert rows == [(0, 49), (50, 57)]
    check(store, {*range(54), 56, 57})


def test_every_other_entry_becomes_few_blocks(store: DirectoryStore) -> None:
    """With an ensemble larger than its write quorum each add is a run of its own, with gaps."""
    for entry_id in range(0, 60, 3):
        add(store, [entry_id])
    add(store, [61, 64])
    store.flush(mark(1))
    (row,) = store.index.rows(L)
    assert (row.first_entry, row.last_entry, row.is_sparse) == (0, 64, True)
    assert held(store) == expected(L, range(0, 60, 3))
    add(store, [4, 5, 10])  # recovery brings some of the others
    store.flush(mark(2))
    assert held(store) == expected(L, sorted({*range(0, 60, 3), 4, 5, 10}))


def test_an_entry_that_is_not_where_the_index_says_is_damage(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, [1, 2])
    store.flush(mark(1))
    row = store.index.rows(L)[0]._replace(last_entry=EntryId(5))
    monkeypatch.setattr(store.index, "row_at", lambda _ledger_id, _entry_id: row)
    with pytest.raises(CorruptionError, match="ledger 7 up to entry 5 should be in log 1"):
        store.read(L, EntryId(4), EntryId(4), stride=1, max_bytes=MIB)


def test_large_runs_are_blocks_of_their_own(store: DirectoryStore) -> None:
    for entry_id in range(3):
        add(store, [entry_id], 70_000)
    store.flush(mark(1))
    assert len(store.index.rows(L)) == 3


def test_flush_moves_the_mark_forward_only(store: DirectoryStore) -> None:
    assert store.flush(mark(1)) and store.mark == mark(1) == store.index.mark()
    assert not store.flush(mark(1)), "nothing to do"
    assert store.flush(mark(2)), "the mark moves although nothing was added"
    assert store.mark == mark(2)
    store.set_ledger_record(L, LedgerRecord(fenced=True))
    assert store.dirty_ledgers() == {L}
    assert store.flush(mark(2)), "a ledger record is flushed although the mark stays"
    assert store.index.ledger_record(L) == LedgerRecord(fenced=True)
    assert store.dirty_ledgers() == set()
    add(store, [1])
    assert store.flush(mark(1)) and store.mark == mark(2), "a mark never moves back"
    assert store.index.mark() == mark(2)


def test_a_failed_flush_keeps_its_mark_for_the_next(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was frozen for mark 1 is not all that mark 2 covers."""
    add(store, [1])
    with monkeypatch.context() as patch:
        patch.setattr(MemoryIndex, "begin", failing_begin(MemoryIndex.begin))
        with pytest.raises(OSError, match="no room"):
            store.flush(mark(1))
    assert store.mark is None and log_ids(store._file_system, DIRECTORY) == [1]
    check(store, {1})
    add(store, [2])
    store.flush(mark(2))
    assert store.mark == mark(1)
    check(store, {1, 2})
    store.flush(mark(2))
    assert store.mark == mark(2)
    check(store, {1, 2})


def test_a_flush_that_fails_early_keeps_the_log_that_the_index_names(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.logs, "_entry_log_bytes", MIB)  # the log takes another flush
    add(store, [1])
    store.flush(mark(1))
    add(store, [2])
    with monkeypatch.context() as patch:
        patch.setattr("bookie_server.storage.ledgers.entry_log.EntryLogWriter.sync", no_room)
        for _again in range(2):
            with pytest.raises(OSError, match="no room"):
                store.flush(mark(2))
            assert log_ids(store._file_system, DIRECTORY) == [1], "a new one holds nothing"
    check(store, {1, 2})
    store.flush(mark(2))
    check(store, {1, 2})


def test_flush_of_more_than_a_log_holds_goes_on_in_the_next_log(store: DirectoryStore) -> None:
    """A write cache may be larger than any log: offsets in the index have 32 bits."""
    for entry_id in range(5):
        add(store, [entry_id], size=70_000)
    store.flush(mark(1))
    assert log_ids(store._file_system, DIRECTORY) == [1, 2, 3, 4, 5]
    rows = store.index.rows(L)
    assert [row.location.log_id for row in rows] == [1, 2, 3, 4, 5]
    for entry_id in range(5):
        run = store.read(L, EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=MIB)
        assert run is not None and {entry_id: run.frames} == expected(L, [entry_id], 70_000)


@pytest.mark.parametrize("commits", [False, True])
def test_logs_that_a_failed_flush_filled_are_removed_unless_the_index_may_name_them(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    for entry_id in range(3):
        add(store, [entry_id], size=70_000)
    with monkeypatch.context() as patch:
        if commits:
            patch.setattr(MemoryIndex, "begin", failing_begin(MemoryIndex.begin))
        else:
            patch.setattr(
                MemoryIndex, "begin", failing_begin(MemoryIndex.begin, "put_ledger_record")
            )
        with pytest.raises(OSError, match="no room"):
            store.flush(mark(1))
    assert log_ids(store._file_system, DIRECTORY) == ([1, 2, 3] if commits else [])
    store.flush(mark(1))
    assert log_ids(store._file_system, DIRECTORY)[-3:] == [4, 5, 6]
    assert store.read(L, EntryId(2), EntryId(2), stride=1, max_bytes=MIB) is not None


def test_blocks_at_the_largest_offsets_are_read_back(tmp_path: Path) -> None:
    """The largest log that may be configured, with its last block behind that; no bytes between."""
    store = DirectoryStore(
        PosixFileSystem(),
        tmp_path,
        LmdbIndex(tmp_path / "index", map_bytes=MIB),
        entry_log_bytes=2 * GIB,
        block_cache_bytes=MIB,
    )
    add(store, [0])
    store.flush(mark(1))
    assert store.logs._writer is not None
    store.logs._writer._size = store.logs._writer._written = 2 * GIB - 4096
    for entry_id in range(1, 5):
        add(store, [entry_id], size=4 * MIB)
    store.flush(mark(2))
    locations = [row.location for row in store.index.rows(L)]
    assert [location.log_id for location in locations] == [1, 1, 2, 2, 2]
    assert locations[1].offset == 2 * GIB - 4096
    for entry_id in range(1, 5):
        run = store.read(L, EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=MIB)
        assert run is not None and {entry_id: run.frames} == expected(L, [entry_id], 4 * MIB)
    store.close()


def no_room(*_arguments: object) -> None:
    raise OSError("no room")


def failing_begin(
    real: Callable[[MemoryIndex], object], method: str = "commit"
) -> Callable[[MemoryIndex], object]:
    def begin(index: MemoryIndex) -> object:
        update = real(index)
        setattr(update, method, no_room)
        return update

    return begin


@pytest.mark.parametrize(("most", "directories"), [(3, 1), (11, 2)])
def test_flushed_ledger_records_are_not_kept_for_ever(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, most: int, directories: int
) -> None:
    """Several directories share the bound."""
    monkeypatch.setattr("bookie_server.storage.ledgers.directory_store._LEDGER_RECORDS_MAX", most)
    store._directories = directories
    for ledger_id in range(6):
        store.set_ledger_record(LedgerId(ledger_id), LedgerRecord(last_entry=EntryId(ledger_id)))
    store.flush(mark(1))
    assert not store._ledger_records
    for ledger_id in range(6):
        assert store.ledger_record(LedgerId(ledger_id)) == LedgerRecord(
            last_entry=EntryId(ledger_id)
        )


def set_records(store: DirectoryStore, ledgers: range, last_entry: int) -> None:
    for ledger_id in map(LedgerId, ledgers):
        store.set_ledger_record(ledger_id, LedgerRecord(last_entry=EntryId(last_entry)))


def test_ledger_count_is_right_at_each_step_without_a_look_at_the_ledgers(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape asks for it, however many ledgers there are."""
    monkeypatch.setattr("bookie_server.storage.ledgers.directory_store._LEDGER_RECORDS_MAX", 3)
    monkeypatch.setattr(MemoryIndex, "ledger_record", None)
    counts = [store.ledger_count]
    set_records(store, range(6), 0)
    counts.append(store.ledger_count)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryIndex, "begin", failing_begin(MemoryIndex.begin))
        with pytest.raises(OSError, match="no room"):
            store.flush(mark(1))
    set_records(store, range(4, 9), 1)
    counts.append(store.ledger_count)
    store.flush(mark(1))
    counts.append(store.ledger_count)
    set_records(store, range(10), 2)
    counts.append(store.ledger_count)
    store.flush(mark(2))
    counts.append(store.ledger_count)
    assert counts == [0, 6, 9, 9, 10, 10]


def test_adds_wait_for_nothing_that_grows_with_the_cache(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush thread looks at every run without the lock that each add takes."""
    locked: list[bool] = []
    checked = Generation.check

    def check_unlocked(generation: Generation) -> None:
        locked.append(store._lock.locked() or store.cache._lock.locked())
        checked(generation)

    monkeypatch.setattr(Generation, "check", check_unlocked)
    add(store, [0])
    store.flush(mark(1))
    assert locked == [False]


def test_what_a_flush_drops_is_freed_in_small_steps(store: DirectoryStore) -> None:
    add(store, [0])
    frozen = store.cache._active
    store.flush(mark(1))
    assert not frozen.ledgers, "emptied one by one, not freed with its generation"


def test_readers_see_every_entry_while_flushes_run(tmp_path: Path) -> None:
    """No moment between cache and index in which an entry is in neither."""
    store = open_store(
        PosixFileSystem(), tmp_path, LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)
    )
    newest = [-1]
    missing: list[int] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for entry_id in range(max(0, newest[0] - 20), newest[0] + 1):
                found = store.read(L, EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=MIB)
                if found is None:
                    missing.append(entry_id)

    threads = [threading.Thread(target=look) for _number in range(2)]
    for thread in threads:
        thread.start()
    for entry_id in range(300):
        add(store, [entry_id])
        newest[0] = entry_id
        if entry_id % 3 == 0:
            store.flush(mark(entry_id + 1))
    stop.set()
    for thread in threads:
        thread.join()
    store.close()
    assert not missing
