"""A torn tail is told from damage wherever the later batch is; a salt cannot be foreseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.journal import journal_files
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.journal.journal_files import (
    journal_numbers,
    journal_path,
    read_file_header,
)
from bookie_server.storage.journal.replay import START_OF_JOURNAL
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from tests.unit.bookie_server.storage.journal.test_journal import DIRECTORY, Writer, read

BATCH_BYTES = 4096


def journal_of_batches(count: int) -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.mkdir(DIRECTORY)
    Writer(files, file_bytes=64 * KIB).write(*range(1, count + 1))
    return files


@pytest.mark.parametrize("piece_bytes", [BATCH_BYTES, 2 * BATCH_BYTES, 1 << 20])
@pytest.mark.parametrize("batches", [3, 4, 5, 6, 7, 8])
def test_a_later_batch_is_found_however_far_it_is(
    batches: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All between the damaged batch and the last one is zeros, as if one huge write was lost."""
    monkeypatch.setattr(journal_files, "_SEARCH_BYTES", piece_bytes)
    files = journal_of_batches(batches)
    assert len(read(files)) == batches
    files.damage(journal_path(DIRECTORY, 1), 2 * BATCH_BYTES, bytes((batches - 2) * BATCH_BYTES))
    with pytest.raises(CorruptionError, match=f"later batch is at offset {batches * BATCH_BYTES}"):
        read(files)
    files.damage(journal_path(DIRECTORY, 1), batches * BATCH_BYTES, bytes(BATCH_BYTES))
    assert read(files) == [[1]], "nothing later is there: a torn tail"


def test_no_two_files_have_the_same_salt() -> None:
    """A client that knew the salt could send bytes that pass for records of the file."""
    salts: list[int] = []
    for _journal in range(3):
        files = MemoryFileSystem()
        files.mkdir(DIRECTORY)
        journal = Journal(
            files,
            DIRECTORY,
            end=START_OF_JOURNAL,
            file_bytes=16 * KIB,
            batch_bytes_max=100,
            post=lambda call: call(),
            on_fatal=lambda _message: None,
        )
        writer = Writer.__new__(Writer)
        writer.journal, writer.answers = journal, {}
        for ledger in range(1, 7):
            writer.append(ledger)
            journal.commit_pending()
        salts += [salt_of(files, number) for number in journal_numbers(files, DIRECTORY)]
    assert len(salts) >= 6 and len(set(salts)) == len(salts)
    assert max(salts) >= 2**40, "of 64 random bits"


def salt_of(files: MemoryFileSystem, number: int) -> int:
    path: Path = journal_path(DIRECTORY, number)
    return read_file_header(files.open(path), number).salt
