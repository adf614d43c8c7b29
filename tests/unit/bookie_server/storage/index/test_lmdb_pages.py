"""A damaged index file is refused in one sentence: LMDB would end the process by a signal."""

from __future__ import annotations

import os
import struct
from contextlib import closing
from pathlib import Path

import pytest

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.opening import open_bookie
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import INDEX_NAME, format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index.base import BlockLocation, IndexRow
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.lmdb_pages import check_pages
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.types import BookieId, EntryId, LedgerId

PAGE = 4096
LEDGERS = 90


def fill(index: LmdbIndex) -> None:
    """Several commits, so that there are free pages, and more rows than one page has."""
    for commit in range(4):
        update = index.begin()
        for ledger in range(commit, LEDGERS, 3):
            for first in range(commit * 100, commit * 100 + 12):
                row = IndexRow(EntryId(first), EntryId(first), BlockLocation(1, PAGE, 9), False)
                update.put_row(LedgerId(ledger), row)
            update.put_ledger_record(LedgerId(ledger), LedgerRecord())
        update.commit()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("index") / "index"
    with closing(LmdbIndex(path, map_bytes=64 * MIB)) as index:
        fill(index)
    check_pages(path)
    return (path / "data.mdb").read_bytes()


def write(directory: Path, data: bytes | bytearray) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "data.mdb").write_bytes(data)
    return directory


@pytest.mark.parametrize("size", [1, 100, PAGE, 2 * PAGE - 1, 2 * PAGE, 3 * PAGE, -PAGE, -1])
def test_cut_file_is_refused_in_one_sentence(good: bytes, tmp_path: Path, size: int) -> None:
    directory = write(tmp_path / "cut", good[:size])
    with pytest.raises(CorruptionError, match=r"data\.mdb: .*(cut|behind).*format a new") as caught:
        LmdbIndex(directory, map_bytes=64 * MIB)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_file_of_zeros_from_some_page_on_is_refused(
    good: bytes, tmp_path: Path, first: int
) -> None:
    data = good[: first * PAGE].ljust(len(good), b"\0")
    with pytest.raises(CorruptionError, match=r"data\.mdb: page \d+ is n"):
        LmdbIndex(write(tmp_path / "zeros", data), map_bytes=64 * MIB)


def test_missing_and_empty_files_are_new_indexes(tmp_path: Path) -> None:
    for directory in (tmp_path / "missing", write(tmp_path / "empty", b"")):
        with closing(LmdbIndex(directory, map_bytes=64 * MIB)) as index:
            assert index.mark() is None


def test_index_larger_than_its_map_is_opened(good: bytes, tmp_path: Path) -> None:
    with closing(LmdbIndex(write(tmp_path / "small", good), map_bytes=64 * 1024)) as index:
        assert index.ledger_count() == LEDGERS


def test_strange_lock_file_is_written_anew(good: bytes, tmp_path: Path) -> None:
    directory = write(tmp_path / "lock", good)
    (directory / "lock.mdb").write_bytes(b"\xa5" * 8192)
    with closing(LmdbIndex(directory, map_bytes=64 * MIB)) as index:
        assert index.ledger_count() == LEDGERS


def newest_root(data: bytes) -> int:
    """Where the root that counts begins: the one of the higher transaction."""
    return max((0, PAGE), key=lambda at: struct.unpack_from("<Q", data, at + 152 - 8)[0])


def test_free_page_that_is_in_use_is_refused(good: bytes, tmp_path: Path) -> None:
    """LMDB would write over it at the next commit."""
    root = newest_root(good)
    (free_root,) = struct.unpack_from("<Q", good, root + 40 + 40)
    (tables_root,) = struct.unpack_from("<Q", good, root + 88 + 40)
    (pointer,) = struct.unpack_from("<H", good, free_root * PAGE + 16)
    data = bytearray(good)
    count_at = free_root * PAGE + pointer + 8 + 8
    assert struct.unpack_from("<Q", data, count_at)[0] > 0
    struct.pack_into("<Q", data, count_at + 8, tables_root)
    with pytest.raises(CorruptionError, match=f"page {tables_root} is in use and in the list"):
        check_pages(write(tmp_path / "free", data))


def ends_by_a_signal(directory: Path) -> bool:
    """Whether opening, reading and writing an index ends the process that does it."""
    child = os.fork()
    if child == 0:
        try:
            index = LmdbIndex(directory, map_bytes=64 * MIB)
            for ledger_id, _record in index.ledger_records():
                index.rows(ledger_id)
            fill(index)
        except (CorruptionError, OSError, AssertionError):
            os._exit(1)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("damage", ["zeros", "noise", "neighbour", "head"])
def test_damaged_page_is_an_error_and_never_a_signal(
    good: bytes, tmp_path: Path, damage: str
) -> None:
    noise = bytes((index * 73 + 11) % 251 for index in range(PAGE))
    first = {"zeros": 2, "noise": 3, "neighbour": 4, "head": 5}[damage]
    for start in range(first * PAGE, len(good), 5 * PAGE):
        data = bytearray(good)
        other = (start + PAGE) % len(good)
        page = {
            "zeros": bytes(PAGE),
            "noise": noise,
            "neighbour": good[other : other + PAGE],
            "head": good[start : start + 12] + noise[:4] + good[start + 16 : start + PAGE],
        }[damage]
        data[start : start + PAGE] = page
        assert not ends_by_a_signal(write(tmp_path / "page", data)), f"page {start // PAGE}"


def test_bookie_with_a_cut_index_refuses_to_start(tmp_path: Path) -> None:
    journal, ledgers = tmp_path / "journal", tmp_path / "ledgers"
    format_directories(PosixFileSystem(), journal, [ledgers], cluster_id="test")
    config = StorageConfig(journal, (ledgers,), BookieId(""))
    open_bookie(config, post=lambda call: call(), on_fatal=print, threads=False).close()
    path = ledgers / INDEX_NAME / "data.mdb"
    os.truncate(path, 2 * PAGE)
    with pytest.raises(CorruptionError, match=str(path)):
        open_bookie(config, post=lambda call: call(), on_fatal=print, threads=False)


def test_directory_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, ledgers = tmp_path / "journal", tmp_path / "ledgers"
    format_directories(PosixFileSystem(), journal, [ledgers], cluster_id="test")
    monkeypatch.setattr(os, "access", lambda path, _mode: path != ledgers)  # root may write all
    config = StorageConfig(journal, (ledgers,), BookieId(""))
    with pytest.raises(ConfigurationError, match=str(ledgers)):
        open_bookie(config, post=lambda call: call(), on_fatal=print, threads=False)
