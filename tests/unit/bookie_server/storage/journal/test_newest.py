"""The note of the newest file is durable, and a torn write of it leaves the one before."""

from __future__ import annotations

import random

import pytest

from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import DIRECT_ALIGNMENT
from bookie_server.storage.journal.newest import NEWEST_NAME, note_newest, read_newest
from spark_ledger.errors import CorruptionError
from tests.crash.disk import LOST, after_power_cut
from tests.unit.bookie_server.storage.journal.support import DIRECTORY, journal_directory


@pytest.fixture
def files() -> MemoryFileSystem:
    return journal_directory()


def test_newest_number_is_read_in_any_order_of_the_copies(files: MemoryFileSystem) -> None:
    assert read_newest(files, DIRECTORY) is None
    for number in (1, 2, 3, 5, 8, 9, 11):
        note_newest(files, DIRECTORY, number)
        assert read_newest(files, DIRECTORY) == number


@pytest.mark.parametrize("number", [2, 3, 4])
def test_note_that_is_torn_leaves_the_one_before_it(files: MemoryFileSystem, number: int) -> None:
    path = DIRECTORY / NEWEST_NAME
    for each in range(1, number):
        note_newest(files, DIRECTORY, each)
    before = files.open(path).pread(2 * DIRECT_ALIGNMENT, 0)
    note_newest(files, DIRECTORY, number)
    after = files.open(path).pread(2 * DIRECT_ALIGNMENT, 0)
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert len({at // DIRECT_ALIGNMENT for at in changed}) == 1, "one copy is written, in place"
    files.damage(path, changed[0], b"\xa5\x5a\xa5")
    assert read_newest(files, DIRECTORY) == number - 1
    files.damage(path, 0, bytes(2 * DIRECT_ALIGNMENT))
    with pytest.raises(CorruptionError, match="names no journal file"):
        read_newest(files, DIRECTORY)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_note_is_durable_when_it_was_made(files: MemoryFileSystem, number: int) -> None:
    """Behind it the file takes what is acknowledged."""
    for each in range(1, number + 1):
        note_newest(files, DIRECTORY, each)
        cut = after_power_cut(files, LOST, random.Random(1))
        assert read_newest(cut, DIRECTORY) == each
