"""A commit that failed says whether anything of it can appear later (rule S14)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest

from bookie_server.storage.index.base import NotCommittedError
from bookie_server.storage.index.lmdb_commit import commit_now
from bookie_server.storage.index.lmdb_errors import found_no_space
from spark_ledger.limits import GIB, KIB

INDEX = Path("/index")


class Transaction:
    """A write transaction whose commit finds no space."""

    def id(self) -> int:
        return 7

    def commit(self) -> None:
        raise lmdb.MapFullError("no space")


class Environment:
    """Its newest root is of transaction ``newest``."""

    def __init__(self, newest: int) -> None:
        self.newest = newest

    @contextmanager
    def begin(self) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(id=lambda: self.newest)


@pytest.mark.parametrize(("newest", "is_there"), [(6, False), (7, True)])
def test_commit_that_failed_is_undone_only_if_its_root_is_not_there(
    newest: int, is_there: bool
) -> None:
    """Else logs would be removed that rows name."""
    expected = lmdb.MapFullError if is_there else NotCommittedError
    with pytest.raises(expected):
        commit_now(Environment(newest), Transaction(), INDEX)


@pytest.mark.parametrize(
    ("free", "kept_for_root", "is_full"),
    [(GIB, 0, False), (0, 0, True), (0, GIB, True), (100 * KIB, GIB, True)],
)
def test_disk_with_blocks_for_root_only_is_full(
    monkeypatch: pytest.MonkeyPatch, free: int, kept_for_root: int, is_full: bool
) -> None:
    """LMDB has one error for a write that found room for a part, and for a disk that fails."""
    space = SimpleNamespace(
        f_frsize=4096, f_bavail=free // 4096, f_bfree=(free + kept_for_root) // 4096
    )
    monkeypatch.setattr(os, "statvfs", lambda _path: space)
    error = lmdb.Error(f"mdb_txn_commit: {os.strerror(errno.EIO)}")
    assert found_no_space(error, INDEX) is is_full


@pytest.mark.parametrize(
    ("number", "is_full"),
    [(errno.EDQUOT, True), (errno.ENOSPC, True), (errno.EIO, False), (errno.EOPNOTSUPP, False)],
)
def test_disk_that_takes_no_more_under_a_quota_is_full_whatever_it_says_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_full: bool
) -> None:
    """Quotas of users are not in what ``statvfs`` says."""

    def refused(_descriptor: int, _offset: int, length: int) -> None:
        if length > 256 * KIB:  # what LMDB writes at once
            raise OSError(number, os.strerror(number))

    error = lmdb.Error(f"mdb_txn_commit: {os.strerror(errno.EIO)}")
    assert not found_no_space(error, tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", refused)
    assert found_no_space(error, tmp_path) is is_full
    assert not list(tmp_path.iterdir())
