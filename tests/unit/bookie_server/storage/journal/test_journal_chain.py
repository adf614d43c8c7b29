"""A batch is one only if its records are those that its trailer was written for."""

from __future__ import annotations

import pytest

from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.journal.changes import fence_body
from bookie_server.storage.journal.journal_files import journal_path, read_file_header
from bookie_server.storage.records import RecordType, pack_header
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.types import LedgerId
from tests.unit.bookie_server.storage.journal.test_journal import DIRECTORY, Writer, read

BATCH_BYTES = 4096


def put_another_record(files: MemoryFileSystem, batch: int) -> None:
    """In place of the batch's record: one of the same size, right in itself, of another time."""
    path = journal_path(DIRECTORY, 1)
    body = fence_body(LedgerId(77))
    header = read_file_header(files.open(path), 1)
    head = pack_header(RecordType.FENCE, body.length, batch, body.crc, header.seed)
    files.damage(path, batch * BATCH_BYTES, head + b"".join(body.buffers))


def test_a_record_of_another_time_is_not_taken_into_a_batch() -> None:
    files = MemoryFileSystem()
    files.mkdir(DIRECTORY)
    Writer(files).write(1, 2, 3)
    assert read(files) == [[1], [2], [3]]
    last = files.crash_clone(None)
    put_another_record(last, 3)
    assert read(last) == [[1], [2]]
    put_another_record(files, 2)
    with pytest.raises(CorruptionError, match="batch 2 at offset 8192 is damaged"):
        read(files)


@pytest.mark.parametrize("others", [(11, 12, 13, 14, 15), (11, 12)])
def test_a_file_of_another_journal_does_not_continue_this_one(others: tuple[int, ...]) -> None:
    """Of the right number; with the right first batch, too, or without."""
    journals = []
    for ledgers in ((1, 2, 3, 4, 5), others):
        files = MemoryFileSystem()
        files.mkdir(DIRECTORY)
        writer = Writer(files, file_bytes=16 * KIB)
        writer.write(*ledgers)
        if len(ledgers) < 3:
            end = writer.journal.durable_mark
            Writer(files, end, file_bytes=16 * KIB).write(99)
        journals.append(files)
    ours, theirs = journals
    assert read(ours) == [[1], [2], [3], [4], [5]]
    path = journal_path(DIRECTORY, 2)
    data = theirs.open(path).pread(1 << 20, 0)
    ours.remove(path)
    ours.create(path).pwritev([data], 0)
    with pytest.raises(CorruptionError, match="not of this journal"):
        read(ours)
