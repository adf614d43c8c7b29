"""A bookie that cannot be opened says why, and leaves its directories as they were."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie_server import opening
from bookie_server.core.disk_space import DirectoryState, WaterMarks
from bookie_server.opening import open_bookie
from bookie_server.storage.cookie import INDEX_NAME
from bookie_server.storage.disks import ask_disk
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryDisk
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.index.memory_index import MemoryIndex
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieId, BookieStatus
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    LEDGERS,
    Machine,
    formatted,
    small_config,
)

IO_ERROR = BookieStatus.IO_ERROR


def test_open_that_fails_releases_the_directories() -> None:
    files = formatted()
    wrong = small_config()
    object.__setattr__(wrong, "bookie_id", BookieId("somebody-else"))
    for _again in range(2):
        with pytest.raises(ConfigurationError, match="somebody-else"):
            Machine(files, wrong)
    assert Machine(files).add(7, [0]) is BookieStatus.OK


@pytest.mark.parametrize("kind", ["list", "fdatasync", "pread", "rename"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_open_on_a_failing_disk_names_the_directory(kind: str, number: int) -> None:
    """A restart may mend an error of the disk, and nothing that is set up wrongly."""
    files = formatted()
    Machine(files).close()

    def plan(operation: Operation) -> Fault | None:
        fails = operation.kind == kind and operation.path.is_relative_to(JOURNAL)
        return Fault(number) if fails else None

    with pytest.raises(ConfigurationError, match=f"cannot be .*{JOURNAL}") as raised:
        Machine(FaultFileSystem(files, plan))
    cause = raised.value.__cause__
    assert isinstance(cause, OSError) and cause.errno == number
    assert Machine(files).add(7, [0]) is BookieStatus.OK, "it let go of its directories"


def test_open_of_directories_of_another_cluster_is_refused() -> None:
    files = formatted()
    with pytest.raises(ConfigurationError, match="another-cluster"):
        Machine(files, small_config(cluster_id="another-cluster"))
    assert Machine(files, small_config(cluster_id="test")).add(7, [0]) is BookieStatus.OK


def test_each_setting_reaches_the_part_that_it_is_for() -> None:
    """No two of them are equal, so none stands for another."""
    config = small_config(
        journal_file_bytes=65 * KIB,
        journal_batch_bytes_max=17 * KIB,
        write_cache_bytes=88 * KIB,
        flush_interval_s=11.0,
        entry_log_bytes=18 * KIB,
        entry_log_cached_bytes=5 * KIB,
        block_cache_bytes=6 * KIB,
        write_once_bytes=7 * KIB,
        compaction_bytes_per_s=1001,
        scrub_bytes_per_s=1002,
        scrub_interval_s=12.0,
        disk_high_water_mark=0.7,
        disk_low_water_mark=0.6,
        disk_reserve_bytes=1003,
        disk_check_interval_s=13.0,
    )
    bookie = Machine(formatted(), config).bookie
    journal, storage, disks = bookie._journal, bookie._storage, bookie.disks
    assert journal._batch_bytes_max == 17 * KIB
    assert journal._file_bytes == journal._logs.journal.file_bytes == 65 * KIB
    assert [each.log.file_bytes for each in journal._logs._run_logs] == [65 * KIB] * 2
    assert [each.log.directory for each in journal._logs._run_logs] == list(LEDGERS)
    assert storage._generation_bytes == 22 * KIB, "of two directories, and of two generations"
    assert (storage._flush_interval_s, storage._write_once_bytes) == (11.0, 7 * KIB)
    compactor, scrubber = storage.compactor, storage.scrubber
    assert (compactor._log_bytes, compactor._bytes_per_s) == (18 * KIB, 1001)
    assert (scrubber._bytes_per_s, scrubber._interval_s) == (1002, 12.0)
    for store in storage._stores:
        assert (store.logs._entry_log_bytes, store.logs._cached_bytes) == (18 * KIB, 5 * KIB)
        assert not store._reader._direct, "what is in the page cache is read from there"
        assert store._blocks._capacity_bytes == 3 * KIB, "of two directories"
        assert store._directories == 2
    assert (disks._marks, disks._interval_s) == (WaterMarks(0.7, 0.6, 1003), 13.0)
    assert disks._directories == (JOURNAL, *LEDGERS)


def test_index_has_the_size_that_is_configured_and_readers_the_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = formatted()
    made: list[tuple[Path, int, int]] = []

    def index(path: Path, *, map_bytes: int, directories: int) -> MemoryIndex:
        made.append((path, map_bytes, directories))
        return MemoryIndex(files, path)

    monkeypatch.setattr(opening, "LmdbIndex", index)
    bookie = open_bookie(
        small_config(index_map_bytes=3 * MIB),
        post=lambda call: call(),
        on_fatal=lambda _message: None,
        file_system=files,
        threads=False,
        open_logs_max=77,
    )
    assert made == [(directory / INDEX_NAME, 3 * MIB, 2) for directory in LEDGERS]
    assert {store._reader._open_logs_max for store in bookie._storage._stores} == {77}
    bookie.close()


def test_disk_that_fills_up_is_told_on_the_service_thread_and_a_flush_has_it_looked_at() -> None:
    files = formatted()
    disk = MemoryDisk(64 * MIB, [JOURNAL, *LEDGERS])
    files.disks = (disk,)
    posted: list[Callable[[], None]] = []
    changes: list[str] = []
    bookie = open_bookie(
        small_config(disk_reserve_bytes=MIB),
        post=posted.append,
        on_fatal=lambda _message: None,
        on_state_changed=lambda: changes.append(bookie.disks.states.reason),
        file_system=files,
        open_index=lambda path: MemoryIndex(files, path),
        threads=False,
    )
    disk.others_bytes = 64 * MIB
    bookie.disks.check()
    assert not changes and len(posted) == 1
    posted.pop()()
    assert len(changes) == 1 and "disk full" in changes[0]
    bookie.disks._wanted.clear()
    bookie._storage._on_flushed()
    assert bookie.disks._wanted.is_set() and posted == [bookie.on_flushed]
    bookie.close()


@pytest.mark.parametrize("full", [JOURNAL, *LEDGERS])
def test_each_run_log_has_room_while_the_disk_of_its_own_directory_has(
    full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large run goes to the journal where only its own directory's disk is full."""

    def asked(files: FileSystem, directory: Path, marks: WaterMarks) -> DirectoryState:
        state = ask_disk(files, directory, marks)
        return state._replace(reason="full") if directory == full else state

    monkeypatch.setattr(opening, "ask_disk", asked)
    bookie = Machine(formatted(), small_config(write_once_bytes=7 * KIB)).bookie
    rooms = [log._has_room() for log in bookie._journal._logs._run_logs]
    assert rooms == [directory != full for directory in LEDGERS]
