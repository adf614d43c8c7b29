"""A list of what is lacking that was lost is missed: what it named is never denied (rule S22)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bookie_server.checking import main
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import read_file, write_file_durably
from bookie_server.storage.index.base import Index
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.memory_index import MemoryIndex
from bookie_server.storage.ledgers.lacking import LACKING_NAME
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.types import BookieStatus, LedgerId
from tests.crash.disk import after_kill
from tests.unit.bookie_server.storage.ledgers.test_scrub import (
    CONFIG,
    EVEN,
    files_of,
    flip,
    rows_of,
    scrub,
    status_of,
)
from tests.unit.bookie_server.storage.ledgers.test_scrub import machine as machine
from tests.unit.bookie_server.storage.support import Machine
from tests.unit.bookie_server.test_checking import hurt_second_block
from tests.unit.bookie_server.test_checking import root as root

L = 2
PATH = EVEN / LACKING_NAME


def damaged(machine: Machine) -> None:
    flip(machine, rows_of(machine, L)[1].location)
    assert scrub(machine).lacking == 1
    assert status_of(machine, L, 10) is BookieStatus.IO_ERROR


def killed(machine: Machine) -> MemoryFileSystem:
    return after_kill(files_of(machine))


def powered_off(machine: Machine) -> MemoryFileSystem:
    return files_of(machine).crash_clone(None)


def closed(machine: Machine) -> MemoryFileSystem:
    machine.close()
    return files_of(machine)


@pytest.mark.parametrize("ended", [killed, powered_off, closed])
def test_start_without_the_list_is_refused_and_serves_once_it_is_back(
    machine: Machine, ended: Callable[[Machine], MemoryFileSystem]
) -> None:
    damaged(machine)
    files = ended(machine)
    content = read_file(files, PATH, size_max=MIB)
    files.remove(PATH)
    for _again in range(2):
        with pytest.raises(CorruptionError, match=f"{PATH} is missing.*put back"):
            Machine(files, CONFIG)
    write_file_durably(files, PATH, content)
    assert status_of(Machine(files, CONFIG), L, 10) is BookieStatus.IO_ERROR


def test_list_that_a_program_of_before_made_is_missed_as_well(machine: Machine) -> None:
    damaged(machine)
    index = machine.bookie._storage._stores[0].index
    index.note_lacks(False)
    index.begin().commit()
    files = files_of(machine).crash_clone(None)
    Machine(files, CONFIG).close()
    files.remove(PATH)
    with pytest.raises(CorruptionError, match="is missing"):
        Machine(files, CONFIG)


def test_list_that_became_empty_is_not_missed_until_it_has_something_again(
    machine: Machine,
) -> None:
    damaged(machine)
    lacking = machine.bookie.lacking
    assert lacking.refetched(lacking.of(LedgerId(L))) == 1
    assert machine.add(4, range(5)) is BookieStatus.OK  # so that the last flush commits
    machine.close()
    files = files_of(machine)
    files.remove(PATH)
    again = Machine(files, CONFIG)
    assert again.add(L, range(10, 20), recovery=True) is BookieStatus.OK
    again.flush()
    damaged(again)
    files = files.crash_clone(None)
    files.remove(PATH)
    with pytest.raises(CorruptionError, match="is missing"):
        Machine(files, CONFIG)


@pytest.mark.leaves_open("file", reason="errors in the log that pytest keeps hold them")
@pytest.mark.parametrize("option", ["", "--repair"])
def test_check_tells_that_the_list_is_missing(
    root: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hurt_second_block(root)
    assert main(["check", str(root / "ledgers"), "--repair"]) == 1
    assert main(["check", str(root / "ledgers")]) == 1
    assert "lacking ledger 2 entries 10 to 19: awaits" in capsys.readouterr().out
    (root / "ledgers" / LACKING_NAME).unlink()
    assert main(["check", str(root / "ledgers"), *option.split()]) == 1
    assert f"{LACKING_NAME} is missing" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["lmdb", "memory"])
def test_index_notes_the_list_with_its_next_commit(tmp_path: Path, kind: str) -> None:
    memory = MemoryFileSystem()

    def reopen() -> Index:
        if kind == "lmdb":
            return LmdbIndex(tmp_path / "index", map_bytes=MIB)
        return MemoryIndex(memory, Path("/index"))

    noted = False
    for has_lacks in (True, False, True):
        for commits in (False, True):
            with closing(reopen()) as index:
                assert index.has_lacks() is noted
                index.note_lacks(has_lacks)
                update = index.begin()
                update.commit() if commits else update.abort()
                noted = has_lacks if commits else noted
                assert index.has_lacks() is noted
