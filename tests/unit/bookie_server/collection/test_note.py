"""The file in which a bookie keeps its mark: on a full disk, torn, of older versions (rule G4)."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from bookie_server.collection.note import NOTHING, Noted, read_note, write_note
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryDisk, MemoryFile, MemoryFileSystem
from bookie_server.storage.fs.vfs import write_file_durably
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from tests.unit.bookie_server.collection.cluster import World
from tests.unit.virtual_time import run_in_virtual_time

LEDGERS = Path("/ledgers")
PATH = LEDGERS / "collection.json"
COPY = 4 * KIB


def noted(number: int) -> Noted:
    return msgspec.structs.replace(NOTHING, marks=(f"mark-{number}",), number=number)


def files_of(*numbers: int) -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.mkdir(LEDGERS)
    for number in numbers:
        write_note(files, PATH, noted(number))
    return files


def test_full_disk_does_not_hold_up_the_deletions_that_make_room() -> None:
    async def main() -> None:
        world = World()
        disk = MemoryDisk(1_000 * KIB, [LEDGERS])
        world.files.disks = (disk,)
        await world.make(1, 2, 3)
        await world.collector().run_pass()
        disk.others_bytes = disk.size_bytes
        await world.delete(2)
        for deleted in (1, 0):
            report = await world.collector().run_pass()
            assert (report.aborted, report.deleted) == ("", deleted)

    run_in_virtual_time(main())


@pytest.mark.parametrize("last", [1, 2, 3, 10])
def test_copy_that_is_torn_leaves_the_one_before(last: int) -> None:
    numbers = range(1, last + 1)
    for at in (0, 1):
        files = files_of(*numbers)
        files.damage(PATH, at * COPY + 20, b"?")
        is_last = last % 2 == at and last > 1
        assert read_note(files, PATH) == noted(last - is_last)
        files.damage(PATH, (1 - at) * COPY + 20, b"?")
        with pytest.raises(CorruptionError, match="neither copy is whole"):
            read_note(files, PATH)
    assert read_note(files_of(*numbers), PATH) == noted(last)


def test_copy_that_a_killed_process_left_in_memory_is_durable_once_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one is written over the copy before it: a power cut could leave neither."""

    def killed(_file: MemoryFile) -> None:
        raise OSError(errno.EIO, "the process dies")

    files = files_of(1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(MemoryFile, "fdatasync", killed)
        with pytest.raises(OSError, match="dies"):
            write_note(files, PATH, noted(3))
    assert read_note(files, PATH) == noted(3)
    assert read_note(files.crash_clone(None), PATH) == noted(3)


@pytest.mark.parametrize("last", [2, 3, 4])
def test_copy_whose_sync_has_failed_outlives_a_power_cut_in_the_next_write(last: int) -> None:
    """The kernel tells of it once, and takes the pages for clean: another sync proves nothing."""
    fails = False

    def plan(operation: Operation) -> Fault | None:
        return Fault(errno.EIO) if fails and operation.kind == "fdatasync" else None

    inner = files_of(*range(1, last))
    files = FaultFileSystem(inner, plan)
    for tried_again in (False, True):
        fails = not tried_again
        if fails:
            with pytest.raises(OSError, match="Input/output"):
                write_note(files, PATH, noted(last))
        else:
            assert read_note(files, PATH) == noted(last)
    fails = True
    with pytest.raises(OSError, match="Input/output"):
        write_note(files, PATH, noted(last + 1))
    after = inner.crash_clone(None)
    after.damage(PATH, (last + 1) % 2 * COPY + 20, b"?")
    assert read_note(after, PATH) == noted(last)


def test_copy_that_stands_alone_is_not_written_again() -> None:
    """It is all that there is: a power cut in the middle of that would leave nothing."""
    written: list[str] = []
    files = files_of(1, 2, 3)
    files.damage(PATH, 20, b"?")

    def plan(operation: Operation) -> Fault | None:
        written.append(operation.kind)
        return None

    assert read_note(FaultFileSystem(files, plan), PATH) == noted(3)
    assert "pwritev" not in written and "fdatasync" in written


def test_file_whose_name_was_in_memory_only_is_durable_once_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mark of the next copy goes to the metadata: without the file nothing knew it."""
    files = MemoryFileSystem()
    files.mkdir(LEDGERS)

    def fail(_files: MemoryFileSystem, _path: Path) -> None:
        raise OSError(errno.EIO, "the disk fails for a moment")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "sync_directory", fail)
        with pytest.raises(OSError, match="for a moment"):
            write_note(files, PATH, noted(1))
    assert read_note(files, PATH) == noted(1)
    write_note(files, PATH, noted(2))
    assert read_note(files.crash_clone(None), PATH) == noted(2)


def test_note_with_all_the_orders_that_are_kept_fits() -> None:
    files = files_of(1)
    most = msgspec.structs.replace(
        noted(2**62),
        marks=("f" * 16, "0" * 16),
        kept_below=2**62,
        accepted=tuple(f"{number:016x}" for number in range(100)),
    )
    write_note(files, PATH, most)
    assert read_note(files, PATH) == most


@pytest.mark.parametrize("size", [2 * COPY - 1, 2 * COPY + 1])
def test_file_of_another_size_is_no_note(size: int) -> None:
    files = files_of()
    write_file_durably(files, PATH, b"x" * size)
    with pytest.raises((CorruptionError, OSError), match=r"whole|are expected"):
        read_note(files, PATH)
