"""Old journal files become spares, also over faults, and it is told whether a next one is ready."""

from __future__ import annotations

import errno
import itertools

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFile, MemoryFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.journal.files import journal_numbers, journal_path, spare_paths
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.journal.supply import FileSupply, NoRoomError
from spark_ledger.limits import KIB
from tests.unit.bookie_server.storage.journal.support import DIRECTORY, journal_directory

FILE_BYTES = 64 * KIB


def supply_of(files: FileSystem, file_bytes: int = FILE_BYTES) -> FileSupply:
    salts = itertools.count(1)
    return FileSupply(files, DIRECTORY, file_bytes=file_bytes, new_salt=lambda: next(salts))


def take(supply: FileSupply, number: int) -> None:
    file, _seed = supply.take(number, Mark(number - 1, 4096, number, 5), is_first=number == 1)
    file.close()


def found(files: MemoryFileSystem) -> tuple[list[int], list[str]]:
    """The journal files and the spares that a power cut leaves."""
    clone = files.crash_clone(None)
    return journal_numbers(clone, DIRECTORY), [path.name for path in spare_paths(clone, DIRECTORY)]


def test_giving_up_that_fails_at_any_step_is_ended_by_the_next_call() -> None:
    """A spare that is forgotten takes its space for good, and the next file is made anew."""
    for step in itertools.count(1):
        left = 0

        def plan(operation: Operation) -> Fault | None:
            nonlocal left
            left -= 1
            return Fault(errno.EIO) if left == 0 else None

        memory = journal_directory()
        files = FaultFileSystem(memory, plan)
        supply = supply_of(files)
        for number in range(1, 5):
            take(supply, number)
        left = step
        try:
            supply.give_up(4)
        except OSError:
            supply.give_up(4)
        else:
            break
        spares = ["journal-0000000000000001.free", "journal-0000000000000002.free"]
        assert found(memory) == ([4], spares), f"step {step}"
        for number in (5, 6):
            take(supply, number)
        assert found(memory) == ([4, 5, 6], []), "both are used again"
    assert step > 5


@pytest.mark.parametrize("file_bytes", [FILE_BYTES // 2, 2 * FILE_BYTES])
def test_file_of_another_size_is_no_spare(file_bytes: int) -> None:
    """Of another configuration, or of one large batch: it would take its space for ever."""
    files = journal_directory()
    take(supply_of(files, file_bytes), 1)
    supply = supply_of(files)
    take(supply, 2)
    take(supply, 3)
    supply.give_up(3)
    assert found(files) == ([3], ["journal-0000000000000002.free"])


def test_refusal_is_told_while_no_next_file_is_ready_for_want_of_space() -> None:
    error = 0

    def plan(operation: Operation) -> Fault | None:
        return Fault(error) if error and operation.kind == "preallocate" else None

    supply = supply_of(FaultFileSystem(journal_directory(), plan))
    assert supply.refusal == ""
    error = errno.EIO
    supply.prepare()
    assert supply.refusal == "", "no want of space"
    error = errno.ENOSPC
    supply.prepare()
    assert "no room" in supply.refusal
    error = 0
    supply.prepare()
    assert supply.refusal == ""
    take(supply, 1)
    assert supply.refusal == "", "of before, and nothing was tried since"
    error = errno.ENOSPC
    with pytest.raises(NoRoomError):
        take(supply, 2)
    assert supply.refusal != ""
    error = 0
    take(supply, 2)
    assert supply.refusal == ""


@pytest.mark.parametrize("kind", ["preallocate", "fdatasync", "rename", "sync_directory"])
def test_preparation_that_fails_leaves_nothing_half_made(kind: str) -> None:
    fails = True

    def plan(operation: Operation) -> Fault | None:
        return Fault(errno.ENOSPC) if fails and operation.kind == kind else None

    files = journal_directory()
    supply = supply_of(FaultFileSystem(files, plan))
    for _ in range(2):
        supply.prepare()
        assert not [name for name in files.list(DIRECTORY) if name.endswith(".tmp")]
    fails = False
    supply.prepare()
    take(supply, 1)
    assert found(files) == ([1], [])


def test_only_of_a_prepared_file_it_is_said_that_no_block_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[bool] = []
    preallocate = MemoryFile.preallocate

    def noted(self: MemoryFile, size: int, *, unwritten: bool = False) -> None:
        said.append(unwritten)
        preallocate(self, size, unwritten=unwritten)

    files = journal_directory()
    supply = supply_of(files)
    supply.prepare()
    monkeypatch.setattr(MemoryFile, "preallocate", noted)
    take(supply, 1)  # the prepared one
    take(supply, 2)  # a new one
    supply.give_up(2)
    take(supply, 3)  # an old one
    assert said == [True, False, False]
    assert files.open(journal_path(DIRECTORY, 3)).size() == FILE_BYTES
