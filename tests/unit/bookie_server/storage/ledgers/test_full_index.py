"""An index whose disk is full, or that has reached its size: refused, and nothing left behind."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from bookie_server.opening import open_bookie
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index import lmdb_update
from bookie_server.storage.index.base import BlockLocation, IndexRow, NotCommittedError
from bookie_server.storage.index.lmdb_errors import translated
from bookie_server.storage.index.lmdb_index import LmdbIndex
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import KnownKeys, make_run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={2 * MIB}", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=False)


def put_rows(index: LmdbIndex, ledger_id: int, count: int) -> None:
    update = index.begin()
    try:
        for entry in range(count):
            row = IndexRow(EntryId(entry), EntryId(entry), BlockLocation(1, 4096, 100), False)
            update.put_row(LedgerId(ledger_id), row)
        update.commit()
    except OSError:
        update.abort()
        raise


@pytest.mark.parametrize("left", [0, 4 * KIB, 120 * KIB])
def test_commit_on_a_full_disk_says_that_nothing_was_committed(small_disk: Path, left: int) -> None:
    """Also where a part of its pages found room, which LMDB calls an input/output error."""
    index = LmdbIndex(small_disk / "index", map_bytes=64 * MIB)
    put_rows(index, 1, 100)
    filler = small_disk / "stranger"
    with filler.open("wb", buffering=0) as file:
        space = os.statvfs(small_disk)
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - left)
    for _again in range(3):
        with pytest.raises(NotCommittedError) as caught:
            put_rows(index, 2, 5000)
        assert caught.value.errno == errno.ENOSPC
        assert len(index.rows(LedgerId(1))) == 100 and not index.rows(LedgerId(2))
    filler.unlink()
    put_rows(index, 2, 5000)
    index.close()
    again = LmdbIndex(small_disk / "index", map_bytes=64 * MIB)
    assert len(again.rows(LedgerId(2))) == 5000
    again.close()


@pytest.mark.parametrize("step", ["put_all", "put_all under a quota", "commit_now"])
def test_flushes_into_a_full_index_leave_no_logs_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Each attempt writes the whole generation, and would take that much of what is left."""
    files = PosixFileSystem()
    journal, ledgers = tmp_path / "j", tmp_path / "l"
    format_directories(files, journal, (ledgers,), cluster_id="c", bookie_id=BookieId("b"))
    config = StorageConfig(
        journal,
        (ledgers,),
        BookieId("b"),
        cluster_id="c",
        journal_file_bytes=256 * KIB,
        index_map_bytes=MIB,
        disk_reserve_bytes=0,
        disk_high_water_mark=1.0,
        disk_low_water_mark=1.0,
    )
    keys = KnownKeys()
    keys.learn(7, b"")
    posted: list[Callable[[], None]] = []
    bookie = open_bookie(
        config,
        post=posted.append,
        on_fatal=lambda text: pytest.fail(text),
        keys=keys,
        threads=False,
    )
    answers: list[BookieStatus] = []

    def add(entry: int) -> None:
        bookie.add(
            make_run(7, [entry], 2000),
            access_key=b"",
            recovery=False,
            last_add_confirmed=EntryId(-1),
            done=lambda status, _text: answers.append(status),
        )
        while bookie.commit_pending() or posted:
            while posted:
                posted.pop(0)()

    def not_committed(_environment: Any, transaction: Any, _path: Path) -> None:
        transaction.abort()
        raise NotCommittedError(errno.ENOSPC, "no space for the index")

    def map_full(*_of: object) -> None:
        raise lmdb.MapFullError("full")

    def over_quota(*_of: object) -> None:
        raise lmdb.Error("mdb_cursor_put: Disk quota exceeded")

    add(0)
    assert answers == [BookieStatus.OK]
    with monkeypatch.context() as patch:
        steps = {"put_all": map_full, "put_all under a quota": over_quota}
        patch.setattr(lmdb_update, step.split()[0], steps.get(step, not_committed))
        for _again in range(4):
            with pytest.raises(OSError, match="index"):
                bookie.flush()
        assert len(list(ledgers.glob("entries-*"))) == 0
        assert "disk full" in bookie.disks.states.reason, "a full index is a full directory"
    bookie.flush()
    assert not bookie.disks.states.reason and len(list(ledgers.glob("entries-*"))) == 1
    outcome = bookie.read(LedgerId(7), EntryId(0), EntryId(0), stride=1, max_bytes=MIB)
    assert outcome.status is BookieStatus.OK
    bookie.close()


@pytest.mark.parametrize(
    ("error", "raised", "number"),
    [
        (lmdb.MapFullError("full"), OSError, errno.ENOSPC),
        (lmdb.DiskError("no room"), OSError, errno.ENOSPC),
        (lmdb.Error("mdb_txn_commit: Disk quota exceeded"), OSError, errno.ENOSPC),
        (lmdb.CorruptedError("bad"), CorruptionError, None),
        (lmdb.PageNotFoundError("bad"), CorruptionError, None),
        (lmdb.InvalidError("bad"), CorruptionError, None),
        (lmdb.ReadersFullError("readers"), OSError, errno.EINVAL),
        (lmdb.Error("Cannot allocate memory"), OSError, errno.EINVAL),
        (lmdb.Error("Input/output error"), OSError, errno.EIO),
    ],
)
def test_error_of_lmdb_is_one_that_callers_know(
    tmp_path: Path, error: Exception, raised: type[Exception], number: int | None
) -> None:
    """Whoever flushes, reads or scrubs catches OSError and CorruptionError, and nothing else."""
    with pytest.raises(raised, match=str(tmp_path)) as caught, translated(tmp_path):
        raise error
    assert getattr(caught.value, "errno", None) == number
