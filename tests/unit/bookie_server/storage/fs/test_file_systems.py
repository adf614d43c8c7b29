"""Both file systems keep one contract; the memory one crashes as disks do; faults are exact."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie_server.storage.fs import holes
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryDisk, MemoryFileSystem
from bookie_server.storage.fs.posix_fs import IOV_MAX, PosixFileSystem
from bookie_server.storage.fs.vfs import FileSystem, read_file, write_file_durably
from spark_ledger.limits import KIB, MIB

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


def test_a_file_holds_what_was_written(place: Place) -> None:
    files, root = place
    file = files.create(root / "a")
    assert file.path == root / "a"
    file.pwritev([b"one", b"", b"two"], 0)
    file.pwritev([b"!"], 10)
    file.fdatasync()
    assert file.size() == 11
    assert file.pread(100, 0) == b"onetwo\0\0\0\0!"
    assert file.pread(3, 3) == b"two"
    assert file.pread(3, 11) == b""
    file.preallocate(3)
    assert file.size() == 11
    file.preallocate(4096)
    assert file.size() == 4096
    file.close()
    file.close()
    assert files.open(root / "a").pread(2, 0) == b"on"


def test_a_preallocated_file_holds_what_was_written_and_zeros(place: Place) -> None:
    files, root = place
    seed = 7
    print("seed", seed)
    choose = random.Random(seed)
    for size in (3 * MIB, 700_001):
        file = files.create(root / f"{size}")
        file.preallocate(size)
        model = bytearray(size)
        offset = 0
        for _ in range(60):
            data = bytes([choose.randrange(1, 256)]) * choose.choice([1, 4096, 50_000, 300_000])
            data = data[: size - offset]
            file.pwritev([data], offset)
            model[offset : offset + len(data)] = data
            offset = choose.choice([offset + len(data), choose.randrange(size)]) % size
        assert file.pread(2 * size, 0) == model
        file.close()


def test_punched_range_reads_as_zeros_and_takes_nothing(place: Place) -> None:
    files, root = place
    file = files.create(root / "a")
    file.preallocate(256 * KIB)
    file.pwritev([b"x" * 128 * KIB], 0)
    file.fdatasync()
    assert file.hole_bytes() == 0, "blocks that were reserved are there"
    file.punch(8 * KIB, 64 * KIB)
    file.punch(8 * KIB, 4 * KIB)
    file.fdatasync()
    assert (file.size(), file.hole_bytes()) == (256 * KIB, 64 * KIB)
    file.close()
    file = files.open(root / "a", writable=True)
    assert file.hole_bytes() == 64 * KIB
    before, hole, behind = b"x" * 8 * KIB, bytes(64 * KIB), b"x" * 56 * KIB
    assert file.pread(128 * KIB, 0) == before + hole + behind
    file.pwritev([b"y"], 9 * KIB)
    assert file.hole_bytes() == 60 * KIB, "a page is there again"
    for end in (0, 1):
        with pytest.raises(AssertionError):
            file.punch(4 * KIB + end, 4 * KIB + 1 - end)
    file.close()


def test_file_without_blocks_for_its_end_has_a_hole_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as sparse:
        sparse.write(b"x" * 4 * KIB)
        sparse.truncate(64 * KIB)
    assert PosixFileSystem().open(path).hole_bytes() == 60 * KIB
    with path.open("wb") as sparse:
        sparse.truncate(64 * KIB)
    assert PosixFileSystem().open(path).hole_bytes() == 64 * KIB


def test_compressed_file_has_no_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PosixFileSystem().create(tmp_path / "a")
    file.pwritev([b"x" * 64 * KIB], 0)
    monkeypatch.setattr(
        "bookie_server.storage.fs.holes.os.fstat",
        lambda _descriptor: SimpleNamespace(st_size=64 * KIB, st_blocks=16),
    )
    assert file.hole_bytes() == 0


def test_system_without_holes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PosixFileSystem().create(tmp_path / "a")
    monkeypatch.setattr("bookie_server.storage.fs.holes._fallocate", lambda: None)
    with pytest.raises(OSError, match="not supported") as told:
        file.punch(0, 4 * KIB)
    assert told.value.errno == errno.EOPNOTSUPP
    monkeypatch.undo()
    with pytest.raises(OSError, match="descriptor"):
        holes.punch(PosixFileSystem().open(tmp_path / "a")._descriptor, 0, 4 * KIB)  # type: ignore[attr-defined]


def test_crash_may_undo_a_hole_and_leaves_it_empty_or_as_it_was(memory: MemoryFileSystem) -> None:
    path = Path("/data/a")
    write(memory, path, b"x" * 16 * KIB)
    memory.sync_directory(path.parent)
    file = memory.open(path, writable=True)
    file.fdatasync()
    file.punch(4 * KIB, 8 * KIB)
    assert memory.crash_clone(None).open(path).hole_bytes() == 0
    assert memory.copy().open(path).hole_bytes() == 8 * KIB
    seen = {memory.crash_clone(seed).open(path).hole_bytes() for seed in range(20)}
    assert 0 in seen and memory.open(path).pread(4 * KIB, 0) == b"x" * 4 * KIB
    file.fdatasync()
    after = memory.crash_clone(None).open(path)
    assert after.hole_bytes() == 8 * KIB and after.pread(16 * KIB, 0).count(0) == 8 * KIB
    memory.cut(path, 8 * KIB)
    assert memory.open(path).hole_bytes() == 4 * KIB


def test_small_writes_into_new_blocks_are_followed_by_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def pwritev(descriptor: int, buffers: Sequence[bytes], offset: int) -> int:
        written.append(sum(map(len, buffers)))
        return os.pwritev(descriptor, buffers, offset)

    monkeypatch.setattr("bookie_server.storage.fs.posix_fs.os", SimpleNamespace(
        **{name: getattr(os, name) for name in dir(os)} | {"pwritev": pwritev}
    ))  # fmt: skip
    file = PosixFileSystem().create(tmp_path / "a")
    file.preallocate(2 * MIB)
    for offset in range(0, 260 * KIB, 4 * KIB):
        file.pwritev([bytes(4 * KIB)], offset)
    assert written == [256 * KIB, *[4 * KIB] * 63, 256 * KIB]
    file.pwritev([bytes(64 * KIB)], 512 * KIB)
    file.pwritev([bytes(4 * KIB)], 576 * KIB)
    assert written[-2:] == [64 * KIB, 192 * KIB], "a longer write is not made much longer"
    again = PosixFileSystem().open(tmp_path / "a", writable=True)
    again.preallocate(2 * MIB)
    again.pwritev([bytes(4 * KIB)], MIB)
    assert written[-1] == 4 * KIB, "what an older file held stays"


def test_many_buffers_go_out_in_order(place: Place) -> None:
    files, root = place
    file = files.create(root / "a")
    buffers = [b"%05d" % number for number in range(2 * IOV_MAX + 7)]
    file.pwritev(buffers, 3)
    assert file.pread(1 << 20, 3) == b"".join(buffers)
    file.close()


def test_names_are_created_renamed_and_removed(place: Place) -> None:
    files, root = place
    files.create(root / "b").close()
    files.create(root / "a").close()
    with pytest.raises(FileExistsError):
        files.create(root / "a")
    assert list(files.list(root)) == ["a", "b"]
    files.rename(root / "a", root / "b")
    assert list(files.list(root)) == ["b"]
    assert files.exists(root / "b") and not files.exists(root / "a")
    files.remove(root / "b")
    files.sync_directory(root)
    assert list(files.list(root)) == []
    for action in (
        lambda: files.open(root / "b"),
        lambda: files.remove(root / "b"),
        lambda: files.list(root / "c"),
        lambda: files.rename(root / "b", root / "c"),
    ):
        with pytest.raises(FileNotFoundError):
            action()
    files.mkdir(root / "c" / "d")
    files.mkdir(root / "c" / "d")
    assert files.exists(root / "c" / "d") and list(files.list(root)) == ["c"]


def test_a_lock_is_exclusive_until_released(place: Place) -> None:
    files, root = place
    lock = files.lock(root / "lock")
    with pytest.raises(BlockingIOError):
        files.lock(root / "lock")
    lock.release()
    lock.release()
    files.lock(root / "lock").release()


def test_small_files_are_replaced_whole(place: Place) -> None:
    files, root = place
    write_file_durably(files, root / "a", b"old")
    files.create(root / "a.tmp").close()  # left by a crash
    write_file_durably(files, root / "a", b"new")
    assert read_file(files, root / "a", size_max=3) == b"new"
    assert list(files.list(root)) == ["a"]
    with pytest.raises(OSError, match="3 bytes, at most 2"):
        read_file(files, root / "a", size_max=2)


def test_posix_finishes_short_writes_and_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_pwrite, real_pread = os.pwrite, os.pread
    monkeypatch.setattr(
        os, "pwritev", lambda fd, buffers, at: real_pwrite(fd, b"".join(buffers)[:3], at)
    )
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, data[:2], at))
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real_pread(fd, min(length, 4), at))
    file = PosixFileSystem().create(tmp_path / "a")
    file.pwritev([b"abcd", b"efghij"], 1)
    assert file.pread(20, 0) == b"\0abcdefghij"
    monkeypatch.setattr(os, "pwrite", lambda _fd, _data, _at: 0)
    with pytest.raises(OSError, match="no progress"):
        file.pwritev([b"abcd"], 0)
    file.close()


def write(files: FileSystem, path: Path, content: bytes) -> None:
    file = files.create(path)
    file.pwritev([content], 0)
    file.close()


@pytest.fixture
def memory() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.mkdir(Path("/data"))
    return files


def test_a_crash_loses_what_was_not_synced(memory: MemoryFileSystem) -> None:
    path = Path("/data/a")
    write(memory, path, b"old")
    assert not memory.crash_clone(None).exists(path), "its name was not synced"
    memory.sync_directory(path.parent)
    assert memory.crash_clone(None).open(path).size() == 0, "its bytes were not synced"
    file = memory.open(path, writable=True)
    file.fdatasync()
    file.pwritev([b"newer"], 0)
    assert memory.crash_clone(None).open(path).pread(9, 0) == b"old"
    assert memory.open(path).pread(9, 0) == b"newer", "the original runs on"
    memory.rename(path, Path("/data/b"))
    assert list(memory.crash_clone(None).list(Path("/data"))) == ["a"]
    memory.sync_directory(path.parent)
    memory.remove(Path("/data/b"))
    assert list(memory.crash_clone(None).list(Path("/data"))) == ["b"]


def test_what_a_failed_sync_covered_never_becomes_durable(memory: MemoryFileSystem) -> None:
    path = Path("/data/a")
    failing = True
    files = FaultFileSystem(
        memory, lambda op: Fault(errno.EIO) if failing and op.kind == "fdatasync" else None
    )
    file = files.create(path)
    files.sync_directory(path.parent)
    file.pwritev([b"lost"], 0)
    with pytest.raises(OSError, match="Input/output"):
        file.fdatasync()
    failing = False
    file.pwritev([b"kept"], 4)
    file.fdatasync()
    assert file.pread(9, 0) == b"lostkept", "the page cache shows it"
    assert memory.crash_clone(None).open(path).pread(9, 0) == b"\0\0\0\0kept"


def test_a_lottery_keeps_some_blocks_and_a_prefix_of_names(memory: MemoryFileSystem) -> None:
    path = Path("/data/a")
    write(memory, path, b"o" * 4096)
    memory.open(path).fdatasync()
    memory.sync_directory(path.parent)
    memory.open(path, writable=True).pwritev([b"n" * 6144], 0)
    for name in "xyz":
        write(memory, Path("/data") / name, b"")
    blocks, names = set(), set()
    for seed in range(40):
        clone = memory.crash_clone(seed)
        data = clone.open(path).pread(9000, 0)
        assert len(data) in (4096, 6144)
        for start in range(0, len(data), 512):
            block = data[start : start + 512]
            assert len(set(block)) == 1, "a block is whole"
            blocks.add(block[:1])
        names.add("".join(clone.list(Path("/data"))))
        again = memory.crash_clone(seed)
        assert again.open(path).pread(9000, 0) == data, f"seed {seed} decides all"
    assert blocks == {b"o", b"n", b"\0"}
    assert names == {"a", "ax", "axy", "axyz"}


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        ("create", lambda files: files.create(Path("/data/n"))),
        ("open", lambda files: files.open(Path("/data/a"))),
        ("rename", lambda files: files.rename(Path("/data/a"), Path("/data/n"))),
        ("remove", lambda files: files.remove(Path("/data/a"))),
        ("list", lambda files: files.list(Path("/data"))),
        ("mkdir", lambda files: files.mkdir(Path("/n"))),
        ("sync_directory", lambda files: files.sync_directory(Path("/data"))),
        ("pwritev", lambda files: files.open(Path("/data/a")).pwritev([b"x" * 8], 0)),
        ("pread", lambda files: files.open(Path("/data/a")).pread(1, 0)),
        ("fdatasync", lambda files: files.open(Path("/data/a")).fdatasync()),
        ("preallocate", lambda files: files.open(Path("/data/a")).preallocate(9)),
    ],
)
def test_faults_hit_what_the_plan_names(
    memory: MemoryFileSystem, kind: str, act: Callable[[FileSystem], object]
) -> None:
    write(memory, Path("/data/a"), b"abcd")

    def plan(operation: Operation) -> Fault | None:
        return Fault(errno.ENOSPC, write_part=0.5) if operation.kind == kind else None

    with pytest.raises(OSError, match="No space") as caught:
        act(FaultFileSystem(memory, plan))
    assert caught.value.errno == errno.ENOSPC
    content = memory.open(Path("/data/a")).pread(9, 0)
    assert content == (b"xxxx" if kind == "pwritev" else b"abcd")


def test_file_that_is_opened_beside_a_look_at_the_space_disturbs_it_not() -> None:
    """Another thread may open one at any moment; here it does in the middle."""

    class Watched(MemoryDisk):
        def holds(self, path: str) -> bool:
            if meanwhile:
                meanwhile.pop()()
            return super().holds(path)

    place, meanwhile, opened = Path("/d"), list[Callable[[], object]](), list[object]()
    memory = MemoryFileSystem()
    memory.mkdir(place)
    memory.disks = (Watched(1000, [place]),)
    for name in "abc":
        file = memory.create(place / name)
        file.pwritev([b"x" * 10], 0)
        opened.append(file)
    # The first question finds the disk, the next ones are about the files.
    meanwhile += [lambda: opened.append(memory.open(place / "a")), lambda: None]
    assert memory.space(place).free_bytes == 970
    assert len(opened) == 4
