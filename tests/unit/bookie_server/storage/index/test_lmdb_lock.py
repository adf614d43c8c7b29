"""The lock file of an index: a full disk is said to be full, and is no SIGBUS."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.lmdb_lock import LOCK_NAME
from spark_ledger.limits import MIB


def no_space(_descriptor: int, _offset: int, _length: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_lock_file_of_a_new_index_has_all_its_blocks(tmp_path: Path) -> None:
    index = LmdbIndex(tmp_path / "index", map_bytes=MIB)
    status = (tmp_path / "index" / LOCK_NAME).stat()
    assert 512 * status.st_blocks >= status.st_size > 0
    assert status.st_mode & 0o007 == 0, "as LMDB makes it"
    index.close()


def test_disk_without_a_free_block_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_space)
        with pytest.raises(OSError, match=r"index .*No space left") as raised:
            LmdbIndex(tmp_path / "index", map_bytes=MIB)
    assert raised.value.errno == errno.ENOSPC
    assert list((tmp_path / "index").iterdir()) == []
    LmdbIndex(tmp_path / "index", map_bytes=MIB).close()


def test_index_that_was_used_before_is_opened_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LmdbIndex(tmp_path / "index", map_bytes=MIB).close()
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    LmdbIndex(tmp_path / "index", map_bytes=MIB).close()
    LmdbIndex(tmp_path / "index", map_bytes=MIB, read_only=True).close()


def test_index_that_is_only_read_is_not_changed(tmp_path: Path) -> None:
    LmdbIndex(tmp_path / "index", map_bytes=MIB).close()
    (tmp_path / "index" / LOCK_NAME).unlink()
    LmdbIndex(tmp_path / "index", map_bytes=MIB, read_only=True).close()
    assert not (tmp_path / "index" / LOCK_NAME).exists()
