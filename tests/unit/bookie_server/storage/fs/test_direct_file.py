"""Files past the page cache: any read, aligned writes, and file systems that refuse."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bookie_server.storage.blocks import encode_run
from bookie_server.storage.fs import direct_file
from bookie_server.storage.fs.direct_file import (
    _BUFFERS_KEPT_MAX,
    BUFFER_BYTES,
    SPLIT_BYTES_MAX,
    BufferPool,
)
from bookie_server.storage.fs.fault_fs import FaultFileSystem
from bookie_server.storage.fs.memory_fs import MemoryFile, MemoryFileSystem
from bookie_server.storage.fs.posix_fs import PosixFile, PosixFileSystem
from bookie_server.storage.fs.vfs import DIRECT_ALIGNMENT, File, FileSystem
from bookie_server.storage.ledgers.entry_log import EntryLogReader, EntryLogWriter
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.types import NO_ENTRY, BookieStatus
from tests.unit.bookie_server.storage.support import (
    Machine,
    expected,
    formatted,
    make_run,
    small_config,
)

Place = tuple[FileSystem, Path]


@pytest.fixture(params=["posix", "memory", "fault"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "posix":
        return PosixFileSystem(), tmp_path
    memory = MemoryFileSystem()
    memory.mkdir(Path("/data"))
    if request.param == "memory":
        return memory, Path("/data")
    return FaultFileSystem(memory, lambda _operation: None), Path("/data")


def is_direct(file: File) -> bool:
    assert isinstance(file, PosixFile)
    return bool(fcntl.fcntl(file._descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def parts_of(content: bytes, cuts: Sequence[int]) -> list[bytes]:
    return [
        content[start:stop] for start, stop in zip((0, *cuts), (*cuts, len(content)), strict=True)
    ]


@pytest.mark.parametrize("size", [DIRECT_ALIGNMENT, BUFFER_BYTES, 2 * BUFFER_BYTES + 8192])
def test_parts_of_any_length_are_written_one_behind_the_other(place: Place, size: int) -> None:
    files, root = place
    choose = random.Random(size)
    content = choose.randbytes(size)
    cuts = [*sorted(choose.sample(range(size), 9)), size - 1]
    file = files.create(root / "a", direct=True)
    file.pwritev([b"", *parts_of(content, cuts), b""], DIRECT_ALIGNMENT)
    file.pwritev([], 0)
    file.fdatasync()
    assert file.size() == DIRECT_ALIGNMENT + size
    for reader in (file, files.open(root / "a"), files.open(root / "a", direct=True)):
        assert reader.pread(size, DIRECT_ALIGNMENT) == content
        assert reader.pread(DIRECT_ALIGNMENT, 0) == bytes(DIRECT_ALIGNMENT)


def test_reads_may_be_anywhere_and_end_with_the_file(place: Place) -> None:
    files, root = place
    content = random.Random(5).randbytes(BUFFER_BYTES + 2 * DIRECT_ALIGNMENT + 1234)
    plain = files.create(root / "a")
    plain.pwritev([content], 0)
    plain.fdatasync()
    file = files.open(root / "a", direct=True)
    end = len(content)
    for offset, length in (
        (0, 1),
        (4095, 2),
        (4096, 4096),
        (1, BUFFER_BYTES),
        (4090, BUFFER_BYTES + 100),
        (end - 3, 100),
        (0, 10 * BUFFER_BYTES),
        (end - 1234, 1234),
        (end, 10),
        (end + 5000, 10),
        (77, 0),
    ):
        assert file.pread(length, offset) == content[offset : offset + length], (offset, length)


def test_a_read_comes_in_two_parts(place: Place) -> None:
    files, root = place
    content = random.Random(6).randbytes(SPLIT_BYTES_MAX + 3 * DIRECT_ALIGNMENT + 77)
    plain = files.create(root / "a")
    plain.pwritev([content], 0)
    plain.fdatasync()
    end = len(content)
    for file in (files.open(root / "a", direct=True), plain):
        for offset, cut, length in (
            (0, 60, 5000),
            (4090, 6, 20),
            (4095, 9000, 9000),
            (5, 0, 100),
            (4095, 70_000, SPLIT_BYTES_MAX),
            (3, 70_000, SPLIT_BYTES_MAX + 1),
            (end - 50, 20, 100),
            (end - 50, 70, 100),
            (end + 1, 10, 20),
        ):
            wanted = content[offset : offset + length]
            assert file.pread_split(cut, length, offset) == (wanted[:cut], wanted[cut:])


@pytest.mark.parametrize(("offset", "size"), [(0, 100), (512, 4096), (4096, 4097)])
def test_a_write_that_is_not_aligned_is_a_bug(place: Place, offset: int, size: int) -> None:
    files, root = place
    files.create(root / "a").close()
    file = files.open(root / "a", writable=True, direct=True)
    with pytest.raises(AssertionError, match="direct write"):
        file.pwritev([bytes(size)], offset)
    assert file.size() == 0


def test_a_direct_write_is_not_durable_before_its_sync() -> None:
    memory = MemoryFileSystem()
    memory.mkdir(Path("/data"))
    file = memory.create(Path("/data/a"), direct=True)
    memory.sync_directory(Path("/data"))
    file.pwritev([b"x" * 4096], 0)
    assert memory.crash_clone(None).open(Path("/data/a")).size() == 0
    file.fdatasync()
    assert memory.crash_clone(None).open(Path("/data/a")).pread(9000, 0) == b"x" * 4096


def test_a_file_system_that_refuses_is_used_with_its_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bookie_server.storage.fs.posix_fs.turn_direct", lambda _descriptor: False)
    files = PosixFileSystem()
    for name in "ab":
        file = files.create(tmp_path / name, direct=True)
        assert not is_direct(file)
        file.pwritev([b"x" * 4096], 4096)
        assert file.pread(9000, 4000) == bytes(96) + b"x" * 4096
    (record,) = caplog.records
    assert str(tmp_path) in record.getMessage()


def test_turning_direct_says_whether_it_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = PosixFileSystem().create(tmp_path / "a")
    assert isinstance(file, PosixFile)

    def refuse(_descriptor: int, operation: int, _flags: int = 0) -> int:
        if operation == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "no")
        return 0

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert not direct_file.turn_direct(file._descriptor)
    monkeypatch.undo()
    monkeypatch.setattr(direct_file, "_O_DIRECT", 0)
    assert not direct_file.turn_direct(file._descriptor)


def failing_first(real: Callable[..., int], errors: list[int]) -> Callable[..., int]:
    def call(*arguments: object) -> int:
        if errors:
            raise OSError(errors.pop(0), "refused")
        return real(*arguments)

    return call


def test_a_transfer_that_is_refused_goes_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = PosixFileSystem()
    file = files.create(tmp_path / "a", direct=True)
    if not is_direct(file):  # the temporary directory is on such a file system
        return
    caplog.clear()
    monkeypatch.setattr(os, "pwrite", failing_first(os.pwrite, [errno.EINVAL]))
    file.pwritev([b"x" * 8192], 0)
    assert not is_direct(file) and len(caplog.records) == 1
    again = files.open(tmp_path / "a", direct=True)
    monkeypatch.setattr(os, "preadv", failing_first(os.preadv, [errno.EINVAL]))
    assert again.pread(8192, 0) == b"x" * 8192
    assert not is_direct(again)
    for error_number in (errno.EINVAL, errno.EIO):
        monkeypatch.setattr(os, "pwrite", failing_first(os.pwrite, [error_number]))
        with pytest.raises(OSError, match="refused"):
            file.pwritev([b"x" * 4096], 0)
        monkeypatch.setattr(os, "preadv", failing_first(os.preadv, [error_number]))
        with pytest.raises(OSError, match="refused"):
            again.pread(10, 0)


def test_short_transfers_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwrite, real_preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, data[:4096], at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: real_preadv(fd, [into[0][:4096]], at))
    content = random.Random(1).randbytes(3 * 4096)
    file = PosixFileSystem().create(tmp_path / "a", direct=True)
    file.pwritev([content[:5000], content[5000:]], 0)
    assert file.pread(20_000, 100) == content[100:]
    monkeypatch.setattr(os, "pwrite", lambda _fd, _data, _at: 0)
    with pytest.raises(OSError, match="no progress"):
        file.pwritev([bytes(4096)], 0)


def test_buffers_are_used_again(tmp_path: Path) -> None:
    files = PosixFileSystem()
    for name in "abc":
        file = files.create(tmp_path / name, direct=True)
        file.pwritev([bytes(4096)], 0)
        assert file.pread(10, 4) == bytes(10)
    if is_direct(file):
        assert len(files._buffers._free) == 1


def test_buffers_of_reads_that_hung_together_are_given_back(tmp_path: Path) -> None:
    """A storage network stands still for a moment under as many readers as there are threads."""
    pool, all_wait = BufferPool(), threading.Barrier(2 * _BUFFERS_KEPT_MAX)

    def read() -> None:
        with pool.borrow() as buffer:
            all_wait.wait(10)
            assert len(buffer) == BUFFER_BYTES

    threads = [threading.Thread(target=read) for _ in range(all_wait.parties)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert 0 < len(pool._free) <= _BUFFERS_KEPT_MAX


@pytest.mark.parametrize("entries", [0, 1, 299, 300, 301, 10**9])
def test_a_wrong_number_of_entries_costs_a_copy_only(entries: int) -> None:
    memory = MemoryFileSystem()
    memory.mkdir(Path("/logs"))
    writer = EntryLogWriter(memory, Path("/logs"), 1)
    runs = [make_run(7, range(300)), make_run(8, range(0, 600, 2))]
    locations = [writer.append(encode_run(run, NO_ENTRY)) for run in runs]
    writer.sync()
    reader = EntryLogReader(memory, Path("/logs"))
    for run, location in zip(runs, locations, strict=True):
        found = reader.read(location, entries=entries)
        assert found.frames == run.frames and list(found.ids()) == list(run.ids())
    with pytest.raises(CorruptionError, match="no block has"):
        reader.read(locations[0]._replace(length=1 << 31), entries=entries)


def test_writes_of_a_log_are_aligned_and_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    real = MemoryFile.pwritev

    def pwritev(file: MemoryFile, buffers: Sequence[bytes], offset: int) -> None:
        sizes.append((offset, sum(map(len, buffers))))
        real(file, buffers, offset)

    monkeypatch.setattr(MemoryFile, "pwritev", pwritev)
    memory = MemoryFileSystem()
    memory.mkdir(Path("/logs"))
    writer = EntryLogWriter(memory, Path("/logs"), 1)
    runs = [make_run(7, [number], size) for number, size in enumerate([MIB, 3 * MIB, 5 * MIB] * 4)]
    locations = [writer.append(encode_run(run, NO_ENTRY)) for run in runs]
    writer.finish()
    ends = [offset + size for offset, size in sizes]
    assert [offset for offset, _size in sizes] == [0, *ends[:-1]], "without gaps"
    assert all(size <= BUFFER_BYTES and size % DIRECT_ALIGNMENT == 0 for _offset, size in sizes)
    assert len(sizes) < len(runs), "blocks are gathered"
    reader = EntryLogReader(memory.crash_clone(None), Path("/logs"))
    for run, location in zip(runs, locations, strict=True):
        assert reader.read(location, entries=1).frames == run.frames


@pytest.mark.parametrize("cached_bytes", [0, MIB])
def test_journal_and_logs_go_past_the_page_cache_unless_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, cached_bytes: int
) -> None:
    asked: set[tuple[str, str, bool]] = set()
    for name in ("create", "open"):
        real = getattr(MemoryFileSystem, name)

        def call(
            files: MemoryFileSystem,
            path: Path,
            *,
            direct: bool = False,
            real: Callable[..., File] = real,
            name: str = name,
            **rest: bool,
        ) -> File:
            if path.name.startswith(("journal-", "entries-")) and rest.get("writable", True):
                asked.add((name, path.name.split("-")[0], direct))
            return real(files, path, direct=direct, **rest)

        monkeypatch.setattr(MemoryFileSystem, name, call)
    machine = Machine(formatted(), small_config(entry_log_cached_bytes=cached_bytes))
    for first in range(0, 80, 20):  # so much that a journal file is used again
        assert machine.add(7, range(first, first + 20), size=2000) is BookieStatus.OK
        machine.flush()
    assert machine.held(7) == expected(7, range(80), 2000)
    logs_direct = cached_bytes == 0
    assert asked >= {
        ("create", "journal", True),
        ("open", "journal", True),
        ("create", "entries", logs_direct),
        ("open", "entries", logs_direct),
    }
    assert ("create", "journal", False) not in asked
    assert {direct for _name, kind, direct in asked if kind == "entries"} == {logs_direct}


def test_a_direct_file_of_an_odd_size_can_be_filled(tmp_path: Path) -> None:
    file = PosixFileSystem().create(tmp_path / "a", direct=True)
    file.preallocate(100_000)
    file.pwritev([b"x" * 4096], 4096)
    file.pwritev([b"y" * 4096], 94_208)
    assert file.pread(1 << 20, 0) == (
        bytes(4096) + b"x" * 4096 + bytes(94_208 - 8192) + b"y" * 4096 + bytes(100_000 - 98_304)
    )


def test_a_refusal_that_two_threads_meet_is_tried_again_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both reads began while the file was direct. The second to be refused finds that the first
    has turned the file to the page cache already; that is no reason to give up."""
    files = PosixFileSystem()
    file = files.create(tmp_path / "a", direct=True)
    if not is_direct(file):  # the temporary directory is on such a file system
        return
    file.pwritev([b"x" * 8192], 0)
    real = os.preadv
    refusals = 2
    others: list[bytes] = []

    def preadv(*arguments: object) -> int:
        nonlocal refusals
        if refusals == 0:
            return real(*arguments)  # type: ignore[arg-type]
        refusals -= 1
        if refusals == 1:  # the other thread comes between this call and its error
            others.append(file.pread(4096, 4096))
        raise OSError(errno.EINVAL, "refused")

    monkeypatch.setattr(os, "preadv", preadv)
    assert file.pread(8192, 0) == b"x" * 8192
    assert others == [b"x" * 4096] and not is_direct(file)
