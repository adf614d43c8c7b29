"""Indexes may lie on other disks than their directories: one of another directory is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bookie_server.checking import main
from bookie_server.storage.cookie import INDEX_NAME, format_directories
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index.base import Index
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.memory_index import MemoryIndex
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.types import BookieId, BookieStatus
from tests.unit.bookie_server.storage.support import BOOKIE_ID, Machine, expected, small_config

LEDGERS = (2, 3, 4)


def made(root: Path, bookie_id: BookieId = BOOKIE_ID) -> Path:
    directories = [root / "ledgers-0", root / "ledgers-1"]
    root.mkdir()
    format_directories(
        PosixFileSystem(), root / "journal", directories, cluster_id="c", bookie_id=bookie_id
    )
    return root


def opened(root: Path) -> Machine:
    config = small_config(
        journal_directory=root / "journal",
        ledger_directories=(root / "ledgers-0", root / "ledgers-1"),
        disk_reserve_bytes=0,
    )
    object.__setattr__(config, "bookie_id", "")  # whoever was formatted there
    return Machine(
        PosixFileSystem(),
        config,
        open_index=lambda path: LmdbIndex(path, map_bytes=MIB),  # type: ignore[arg-type,return-value]
    )


def filled(root: Path) -> Path:
    """Ledgers of which only the indexes know by now: the journal files of them are gone."""
    for ledgers in (LEDGERS[:2], LEDGERS[2:]):
        machine = opened(root)
        for ledger_id in ledgers:
            assert machine.add(ledger_id, range(50)) is BookieStatus.OK
            assert machine.fence(ledger_id) is BookieStatus.OK
        machine.flush()
        machine.close()
    return root


def exchange(left: Path, right: Path) -> None:
    aside = left.with_name("aside")
    left.rename(aside)
    right.rename(left)
    aside.rename(right)


def forget_owners(root: Path) -> None:
    """As a program of before has left the indexes."""
    for number in (0, 1):
        path = root / f"ledgers-{number}" / INDEX_NAME
        with (
            closing(LmdbIndex(path, map_bytes=MIB)) as index,
            index._env.begin(write=True) as transaction,
        ):
            assert transaction.delete(b"owner", db=index._meta)


def names(root: Path) -> list[str]:
    return sorted(name for number in (0, 1) for name in os.listdir(root / f"ledgers-{number}"))


@pytest.mark.parametrize("program", ["this", "of before"])
def test_start_with_exchanged_indexes_is_refused_and_serves_once_they_are_back(
    program: str, tmp_path: Path
) -> None:
    root = filled(made(tmp_path / "b"))
    if program != "this":
        forget_owners(root)
    indexes = [root / f"ledgers-{number}" / INDEX_NAME for number in (0, 1)]
    before = names(root)
    exchange(*indexes)
    with pytest.raises(ConfigurationError, match=r"index .*ledgers-1.*where links lead"):
        opened(root)
    assert names(root) == before
    exchange(*indexes)
    for _restarted in range(2):
        machine = opened(root)
        machine.bookie._storage.compactor.run_once(full=True, paced=False)
        for ledger_id in LEDGERS:
            assert machine.held(ledger_id) == expected(ledger_id, range(50))
            assert machine.is_fenced(ledger_id)
        machine.close()


def test_start_with_the_index_of_another_bookie_is_refused(tmp_path: Path) -> None:
    roots = [filled(made(tmp_path / name, BookieId(name))) for name in ("one", "two")]
    exchange(*(root / "ledgers-1" / INDEX_NAME for root in roots))
    for root in roots:
        with pytest.raises(ConfigurationError, match=r"ledgers-1 of bookie .* not of ledgers-1 of"):
            opened(root)


@pytest.mark.parametrize("program", ["this", "of before"])
@pytest.mark.parametrize("option", ["", "--repair"])
def test_check_of_a_directory_with_the_index_of_another_one_takes_nothing_out(
    program: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = filled(made(tmp_path / "b"))
    if program != "this":
        forget_owners(root)
    indexes = [root / f"ledgers-{number}" / INDEX_NAME for number in (0, 1)]
    exchange(*indexes)
    for directory in (root / "ledgers-0", root / "ledgers-1"):
        assert main(["check", str(directory), *option.split()]) == 2
        assert "check what is mounted there" in capsys.readouterr().err
    exchange(*indexes)
    with closing(opened(root)) as machine:
        for ledger_id in LEDGERS:
            assert machine.held(ledger_id) == expected(ledger_id, range(50))


# -- the index ------------------------------------------------------------------------------------


@pytest.fixture(params=["lmdb", "memory"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Index]:
    if request.param == "lmdb":
        return lambda: LmdbIndex(tmp_path / "index", map_bytes=MIB)
    memory = MemoryFileSystem()
    return lambda: MemoryIndex(memory, Path("/index"))


def test_index_says_whose_it_is_from_the_next_commit_on(reopen: Callable[[], Index]) -> None:
    for attempt in ("nobody commits", "aborted"):
        with closing(reopen()) as index:
            index.claim(f"somebody who opened it by mistake: {attempt}")
            if attempt == "aborted":
                index.begin().abort()
    with closing(reopen()) as index:
        index.claim("it")
        index.begin().commit()
    for _opened_again in range(2):
        with closing(reopen()) as index:
            with pytest.raises(ConfigurationError, match=r"is that of it, and not of another"):
                index.claim("another")
            index.begin().commit()
            index.claim("it")


def test_damaged_note_of_whose_an_index_is_refuses_to_serve(tmp_path: Path) -> None:
    with closing(LmdbIndex(tmp_path / "index", map_bytes=MIB)) as index:
        index.claim("it")
        index.begin().commit()
        with index._env.begin(write=True) as transaction:
            transaction.put(b"owner", b"is" + bytes(4), db=index._meta)
        with pytest.raises(CorruptionError, match="wrong checksum of a note"):
            index.claim("it")
