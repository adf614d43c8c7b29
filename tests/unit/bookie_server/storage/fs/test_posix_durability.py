"""The machine's own file system asks the kernel for what it promises, and passes on every refusal.

What was written and not synced looks no different until the power fails. So these tests look at
the system calls.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.fs.vfs import DIRECT_ALIGNMENT, write_file_durably
from bookie_server.storage.index.lmdb_index import LmdbIndex
from spark_ledger.limits import MIB
from spark_ledger.types import LedgerId

BLOCK = b"x" * DIRECT_ALIGNMENT


class Synced:
    """What was synced, by what it was; the kernel is asked as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inodes: list[int] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name)))

    def _noting(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            real(descriptor)
            self.inodes.append(os.fstat(descriptor).st_ino)

        return sync


@pytest.mark.parametrize("direct", [False, True])
def test_a_sync_syncs_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, direct: bool
) -> None:
    files = PosixFileSystem()
    one = files.create(tmp_path / "one", direct=direct)
    two = files.create(tmp_path / "two", direct=direct)
    one.pwritev([BLOCK], 0)
    two.pwritev([BLOCK], 0)
    synced = Synced(monkeypatch)
    two.fdatasync()
    assert synced.inodes == [(tmp_path / "two").stat().st_ino]
    one.close()
    two.close()


def test_a_directory_is_synced_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Synced(monkeypatch)
    PosixFileSystem().sync_directory(tmp_path)
    assert synced.inodes == [tmp_path.stat().st_ino]


def test_a_small_file_is_durable_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(monkeypatch)
    write_file_durably(PosixFileSystem(), tmp_path / "a", b"content")
    assert synced.inodes == [(tmp_path / "a").stat().st_ino, tmp_path.stat().st_ino]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("call", ["fdatasync", "pwritev", "pwrite", "posix_fallocate"])
def test_what_the_kernel_refuses_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, *, direct: bool
) -> None:
    file = PosixFileSystem().create(tmp_path / "a", direct=direct)

    def refuse(*_values: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    if call == "pwrite" and not direct:  # what is left of a short write goes out by it
        monkeypatch.setattr(os, "pwritev", lambda _descriptor, _buffers, _offset: 1)
    if call == "pwritev" and direct:
        monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        if call == "fdatasync":
            file.fdatasync()
        elif call == "posix_fallocate":
            file.preallocate(DIRECT_ALIGNMENT)
        else:
            file.pwritev([BLOCK], 0)
    assert caught.value.errno == number
    file.close()


def test_a_directory_that_cannot_be_synced_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        PosixFileSystem().sync_directory(tmp_path)


def test_blocks_that_are_kept_for_root_are_neither_free_nor_a_part_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie may not use them: counted as free, its water marks would never be reached."""
    asked = SimpleNamespace(f_blocks=1000, f_bfree=300, f_bavail=250, f_frsize=4096, f_bsize=65536)
    monkeypatch.setattr(os, "statvfs", {tmp_path: asked}.__getitem__)
    space = PosixFileSystem().space(tmp_path)
    assert (space.size_bytes, space.free_bytes) == (950 * 4096, 250 * 4096)
    assert space.used_share == pytest.approx(700 / 950), "as df says"


def test_preallocated_blocks_belong_to_the_file(tmp_path: Path) -> None:
    """A size alone is no promise: the disk may be full when the bytes come."""
    file = PosixFileSystem().create(tmp_path / "a")
    file.preallocate(MIB)
    assert (tmp_path / "a").stat().st_blocks * 512 >= MIB
    file.close()


def test_the_index_syncs_every_commit(tmp_path: Path) -> None:
    index = LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)
    update = index.begin()
    update.put_ledger_record(LedgerId(7), LedgerRecord(fenced=True))
    update.commit()
    flags = index._env.flags()
    assert flags["sync"] and flags["metasync"], flags
    assert not flags["writemap"] and not flags["map_async"], flags
    index.close()
