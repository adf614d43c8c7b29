"""Unsynced bytes are seen by all handles, and by nobody after the process is gone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookie_server.storage.fs.posix_fs import PosixFileSystem
from tests.chaos.volatile import VolatileFileSystem


def on_disk(path: Path) -> bytes:
    return path.read_bytes()


def test_unsynced_bytes_are_readable_and_reach_the_disk_at_a_sync(tmp_path: Path) -> None:
    files, path = VolatileFileSystem(), tmp_path / "f"
    writer = files.create(path)
    writer.pwritev([b"abc", b"def"], 2)
    reader = files.open(path)
    assert (reader.pread(10, 0), reader.size()) == (b"\0\0abcdef", 8)
    assert reader.pread_split(3, 5, 1) == (b"\0ab", b"cd")
    assert on_disk(path) == b""
    files.open(path).fdatasync()
    assert on_disk(path) == b"\0\0abcdef"
    writer.pwritev([b"X"], 0)
    assert on_disk(path)[:1] == b"\0"
    assert VolatileFileSystem().open(path).pread(2, 0) == b"\0\0", "another process sees the disk"


def test_file_made_again_has_no_old_bytes(tmp_path: Path) -> None:
    files, path = VolatileFileSystem(), tmp_path / "f"
    files.create(path).pwritev([b"old"], 0)
    files.remove(path)
    with pytest.raises(FileNotFoundError):
        files.open(path)
    assert files.create(path).size() == 0


def test_renamed_file_keeps_its_unsynced_bytes(tmp_path: Path) -> None:
    files = VolatileFileSystem()
    files.create(tmp_path / "f").pwritev([b"new"], 0)
    files.rename(tmp_path / "f", tmp_path / "g")
    assert files.open(tmp_path / "g").pread(9, 0) == b"new"


def test_volatile_file_behaves_like_a_real_one(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    ours = VolatileFileSystem().create(tmp_path / "ours")
    real = PosixFileSystem().create(tmp_path / "real")
    for _ in range(400):
        offset, length = rng.randrange(200), rng.randrange(60)
        data = rng.randbytes(length)
        action = rng.random()
        for file in (ours, real):
            if action < 0.5:
                file.pwritev([data[:7], data[7:]], offset)
            elif action < 0.55:
                file.truncate(offset)
            elif action < 0.65:
                file.fdatasync()
        assert ours.pread(length, offset) == real.pread(length, offset), f"seed {seed}"
        assert ours.size() == real.size(), f"seed {seed}"
    ours.fdatasync()
    assert on_disk(tmp_path / "ours") == on_disk(tmp_path / "real"), f"seed {seed}"
