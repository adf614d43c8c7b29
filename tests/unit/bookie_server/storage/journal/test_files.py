"""Reading a journal: a torn tail is cut, damage is named, a batch is whole or is not there."""

from __future__ import annotations

import pytest

from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.journal import files as journal_files
from bookie_server.storage.journal.changes import fence_body
from bookie_server.storage.journal.files import journal_numbers, journal_path, read_file_header
from bookie_server.storage.records import (
    BATCH_ALIGNMENT,
    FILE_HEADER_BYTES,
    RecordType,
    pack_header,
)
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.types import LedgerId
from tests.unit.bookie_server.storage.journal.support import (
    DIRECTORY,
    Writer,
    batch_offset,
    end_of,
    journal_directory,
    read,
)

BATCH_BYTES = 4096


@pytest.fixture
def files() -> MemoryFileSystem:
    return journal_directory()


def test_reading_starts_at_the_mark(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(1, 2)
    mark = writer.journal.durable_mark
    writer.write(3)
    assert read(files, mark) == [[3]]
    files.damage(journal_path(DIRECTORY, 1), FILE_HEADER_BYTES + 5, b"XX")
    assert read(files, mark) == [[3]], "what lies before the mark is not needed"


@pytest.mark.parametrize("place", [0, 8, 20, 26, 33, 60])
def test_damaged_last_batch_is_cut_as_a_torn_tail(files: MemoryFileSystem, place: int) -> None:
    Writer(files).write(1, 2, 3)
    files.damage(journal_path(DIRECTORY, 1), batch_offset(3) + place, b"\xa5")
    assert read(files) == [[1], [2]]
    again = Writer(files, end_of(files))
    again.write(4)
    assert read(files) == [[1], [2], [4]], "the tail stays cut once there is a newer file"


@pytest.mark.parametrize("place", [0, 8, 20, 26, 33, 60])
@pytest.mark.parametrize("content", [b"\xa5", bytes(4096 - 60)])
def test_damage_before_the_last_batch_is_refused(
    files: MemoryFileSystem, place: int, content: bytes
) -> None:
    Writer(files).write(1, 2, 3)
    files.damage(journal_path(DIRECTORY, 1), batch_offset(2) + place, content)
    with pytest.raises(CorruptionError) as caught:
        read(files)
    assert str(journal_path(DIRECTORY, 1)) in str(caught.value)
    assert f"offset {batch_offset(2)}" in str(caught.value)


def test_damage_at_the_end_of_a_full_file_is_refused(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(*range(16))
    assert journal_numbers(files, DIRECTORY) == [1, 2]
    files.damage(journal_path(DIRECTORY, 1), batch_offset(15), bytes(4096))
    with pytest.raises(CorruptionError, match=f"batch 15 at offset {batch_offset(15)}"):
        read(files)


def test_missing_renamed_and_cut_files_are_refused(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(*range(40))
    second, third = journal_path(DIRECTORY, 2), journal_path(DIRECTORY, 3)
    clone = files.crash_clone(None)
    clone.remove(journal_path(DIRECTORY, 1))
    with pytest.raises(CorruptionError, match=r"0000000001\.log is missing"):
        read(clone)
    clone = files.crash_clone(None)
    clone.remove(second)
    with pytest.raises(CorruptionError, match="begins with batch 31"):
        read(clone)
    clone = files.crash_clone(None)
    clone.rename(third, second)
    with pytest.raises(CorruptionError, match="says it is file 3"):
        read(clone)
    clone = files.crash_clone(None)
    clone.cut(second, batch_offset(4))
    with pytest.raises(
        CorruptionError, match=r"has 16384 bytes, but was made with 69632.*format a new bookie"
    ):
        read(clone)
    clone = files.crash_clone(None)
    clone.damage(second, 9, b"\xff")
    with pytest.raises(CorruptionError, match="damaged file header"):
        read(clone)
    clone = files.crash_clone(None)
    clone.cut(third, FILE_HEADER_BYTES)
    with pytest.raises(CorruptionError, match="it was cut"):
        read(clone, writer.journal.durable_mark)


@pytest.mark.parametrize("lost", [(3,), (2, 3)])
def test_journal_without_its_newest_files_is_refused(
    files: MemoryFileSystem, lost: tuple[int, ...]
) -> None:
    """A file names the one after it before anything in that one is acknowledged."""
    Writer(files).write(*range(31))
    for number in lost:
        files.remove(journal_path(DIRECTORY, number))
    with pytest.raises(CorruptionError, match=rf"{lost[0]:016d}\.log is missing"):
        read(files)


def test_file_that_a_crash_left_without_its_end_is_followed_by_any_other() -> None:
    """The end of a file is written behind the next file: a crash may come between the two."""
    files = journal_directory()
    Writer(files).write(*range(16))
    end = FILE_HEADER_BYTES + 15 * BATCH_ALIGNMENT
    files.damage(journal_path(DIRECTORY, 1), end, bytes(BATCH_ALIGNMENT))
    assert read(files) == [[ledger] for ledger in range(16)]


def test_damaged_last_batch_of_a_closed_journal_is_refused(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(0, 1, 2)
    writer.journal.close()
    assert read(files) == [[0], [1], [2]]
    files.damage(journal_path(DIRECTORY, 1), batch_offset(3) + 30, b"\xff")
    with pytest.raises(CorruptionError, match="batch 3 at offset"):
        read(files)


def test_oversized_batch_leaves_room_for_the_end_of_its_file(files: MemoryFileSystem) -> None:
    writer = Writer(files, file_bytes=8 * KIB)
    writer.write(0, 1)
    assert journal_numbers(files, DIRECTORY) == [1, 2]
    assert files.open(journal_path(DIRECTORY, 1)).size() == 12 * KIB
    files.remove(journal_path(DIRECTORY, 2))
    with pytest.raises(CorruptionError, match=r"0000000002\.log is missing"):
        read(files)


def test_every_flipped_byte_is_harmless_or_refused(files: MemoryFileSystem) -> None:
    """Exhaustive rot of a small journal: a wrong record is never returned."""
    Writer(files).write(1, 2, 3)
    path = journal_path(DIRECTORY, 1)
    data = files.open(path).pread(1 << 20, 0)
    whole = [[1], [2], [3]]
    places = [p for p in range(batch_offset(4)) if data[p] or p % 512 == 0 or p % 4096 < 120]
    outcomes: set[str] = set()
    for place in places:
        clone = files.crash_clone(None)
        clone.damage(path, place, bytes([data[place] ^ 0x41]))
        try:
            found = read(clone)
        except CorruptionError:
            outcomes.add("refused")
            continue
        outcomes.add(f"{len(found)} batches")
        assert found == whole or (found == whole[:2] and place >= batch_offset(3)), place
    assert outcomes == {"refused", "3 batches", "2 batches"}


# -- how far a later batch is looked for ---------------------------------------------------------


def journal_of_batches(count: int) -> MemoryFileSystem:
    files = journal_directory()
    Writer(files, file_bytes=64 * KIB).write(*range(1, count + 1))
    return files


@pytest.mark.parametrize("piece_bytes", [BATCH_BYTES, 2 * BATCH_BYTES, 1 << 20])
@pytest.mark.parametrize("batches", [3, 4, 5, 6, 7, 8])
def test_later_batch_is_found_at_any_distance(
    batches: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything between the damaged batch and the last one is zeros: a huge write was lost."""
    monkeypatch.setattr(journal_files, "_SEARCH_BYTES", piece_bytes)
    files = journal_of_batches(batches)
    assert len(read(files)) == batches
    files.damage(journal_path(DIRECTORY, 1), 2 * BATCH_BYTES, bytes((batches - 2) * BATCH_BYTES))
    with pytest.raises(CorruptionError, match=f"later batch is at offset {batches * BATCH_BYTES}"):
        read(files)
    files.damage(journal_path(DIRECTORY, 1), batches * BATCH_BYTES, bytes(BATCH_BYTES))
    assert read(files) == [[1]], "nothing later is there: a torn tail"


# -- the chain -----------------------------------------------------------------------------------


def put_another_record(files: MemoryFileSystem, batch: int) -> None:
    """Replace the batch's record by another of the same size whose own checksums are right."""
    path = journal_path(DIRECTORY, 1)
    body = fence_body(LedgerId(77))
    header = read_file_header(files.open(path), 1)
    head = pack_header(RecordType.FENCE, body.length, batch, body.crc, header.seed)
    files.damage(path, batch * BATCH_BYTES, head + b"".join(body.buffers))


def test_intact_record_that_the_trailer_does_not_cover_is_damage() -> None:
    files = journal_directory()
    Writer(files).write(1, 2, 3)
    assert read(files) == [[1], [2], [3]]
    last = files.crash_clone(None)
    put_another_record(last, 3)
    assert read(last) == [[1], [2]]
    put_another_record(files, 2)
    with pytest.raises(
        CorruptionError, match=r"batch 2 at offset 8192 is damaged .*format a new bookie in empty"
    ):
        read(files)


@pytest.mark.parametrize("others", [(11, 12, 13, 14, 15), (11, 12)])
def test_file_of_another_journal_is_refused(others: tuple[int, ...]) -> None:
    """The foreign file has the right number. Its first batch has the right number or not."""
    journals = []
    for ledgers in ((1, 2, 3, 4, 5), others):
        files = journal_directory()
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
