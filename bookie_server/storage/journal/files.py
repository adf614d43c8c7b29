"""Names and reading of journal files: batches in order, torn tail told from damage (rule S5).

A file is named by its number, ``journal-0000000000000007.log``. It is made under a temporary
name, preallocated, headed and synced before it gets its own, so a journal file without a valid
header is damage. A file that is no longer needed becomes a spare, named ``.free``, and gets another
number and header later: its blocks are on the disk already, so writing them again is several times
cheaper, and a sync has no file metadata to write. Each header has a new salt, so what a spare held
is no record of the file it becomes (rule S4).

``read_batches`` stops at the first offset that holds no whole batch. What is there is a torn tail,
which nobody was promised, unless a later batch was ever begun: that happens only after the batch
before it is durable. The traces of a later batch are a record header with a higher sequence further
on in the file, or a next file whose header names a higher first sequence. With such a trace the
bytes are damage: CorruptionError, and nothing is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from google_crc32c import value as crc32c_value

from bookie_server.storage.fs.vfs import TEMPORARY_SUFFIX, File, FileSystem
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.records import (
    BATCH_ALIGNMENT,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    JournalFileHeader,
    RecordType,
    extend_chain,
    find_later_batch,
    padding,
    parse_file_end,
    parse_file_header,
    parse_header,
    parse_trailer,
)
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB

_NAME = re.compile(r"journal-(\d{16})\.log")
_SPARE = re.compile(r"journal-\d{16}\.free")
PREPARED_NUMBER: Final = 0
"""Of the spare that was made as one: a number that no journal file has. None of it was written."""

_SEARCH_BYTES: Final = 1 * MIB
"""How much is read at once in the search for a later batch; a multiple of the alignment."""

REPLACE_BOOKIE: Final = (
    "put back what was moved away, or else format a new bookie in empty directories: what this one "
    "held is copied from the other bookies"
)
"""What can be done about a damaged or missing file. An older copy of it is no replacement."""


class JournalRecord(NamedTuple):
    """A record whose checksums are right."""

    record_type: int
    body: bytes


class JournalBatch(NamedTuple):
    """A whole synced batch; ``end`` is the checkpoint mark behind it."""

    records: list[JournalRecord]
    end: Mark
    offset: int
    """Where its first record is in the file."""


def journal_path(directory: Path, number: int) -> Path:
    """Where the journal file of this number is."""
    return directory / f"journal-{number:016d}.log"


def journal_numbers(file_system: FileSystem, directory: Path) -> list[int]:
    """Numbers of the journal files that are there, ascending."""
    matches = map(_NAME.fullmatch, file_system.list(directory))
    return sorted(int(match.group(1)) for match in matches if match)


def spare_path(directory: Path, number: int) -> Path:
    """What the journal file of this number is called once it is a spare."""
    return directory / f"journal-{number:016d}.free"


def spare_paths(file_system: FileSystem, directory: Path) -> list[Path]:
    """The spare files that are there."""
    return [directory / name for name in file_system.list(directory) if _SPARE.fullmatch(name)]


def file_size(file_system: FileSystem, path: Path) -> int:
    """Bytes of a file."""
    file = file_system.open(path)
    try:
        return file.size()
    finally:
        file.close()


def remove_unfinished(file_system: FileSystem, directory: Path) -> None:
    """Remove files that a crash left under a temporary name; nothing depends on them."""
    for name in file_system.list(directory):
        if name.endswith(TEMPORARY_SUFFIX):
            file_system.remove(directory / name)


def sync_files(file_system: FileSystem, directory: Path, first_number: int) -> None:
    """Make durable what the journal files from ``first_number`` on show (rule S11).

    After a crash of the process the page cache may hold batches that never reached the disk. They
    are indistinguishable from durable ones, so they are made durable before they are believed.
    """
    for number in journal_numbers(file_system, directory):
        if number >= first_number:
            file = file_system.open(journal_path(directory, number), writable=True)
            try:
                file.fdatasync()
            finally:
                file.close()


def read_file_header(file: File, number: int) -> JournalFileHeader:
    """The header of journal file ``number``.

    Raises CorruptionError if the header is damaged or another file's, or the file was cut. A cut
    file would otherwise look like one with a torn tail, and lose what was acknowledged behind it.
    """
    header = parse_file_header(file.pread(FILE_HEADER_BYTES, 0))
    if header is None:
        raise CorruptionError(f"journal file {file.path}: damaged file header at offset 0")
    if header.number != number:
        raise CorruptionError(
            f"journal file {file.path}: its header says it is file {header.number}; "
            "it was renamed or copied here"
        )
    if file.size() < header.size_bytes:
        raise CorruptionError(
            f"journal file {file.path}: has {file.size()} bytes, but was made with "
            f"{header.size_bytes}: it was cut at offset {file.size()}, and synced batches may be "
            f"missing; {REPLACE_BOOKIE}"
        )
    return header


def read_batches(file_system: FileSystem, directory: Path, start: Mark) -> Iterator[JournalBatch]:
    """All whole batches behind ``start``, up to the journal's end or torn tail.

    Raises CorruptionError, which names file and offset, if a file is missing or there is damage
    that is not a torn tail; OSError if the disk fails.
    """
    numbers = [n for n in journal_numbers(file_system, directory) if n >= start.file_number]
    if not numbers or numbers[0] != start.file_number:
        raise missing_file(directory, start.file_number)
    position = start
    for index, number in enumerate(numbers):
        following = numbers[index + 1] if index + 1 < len(numbers) else None
        file = file_system.open(journal_path(directory, number))
        try:
            header = read_file_header(file, number)
            # A later file repeats in its header where the one before it ended: sequence and chain.
            # In the first file the mark itself says where to begin.
            if index > 0:
                _check_continues(file.path, header, position)
                position = Mark(number, FILE_HEADER_BYTES, position.sequence, position.chain)
            elif file.size() < position.offset:
                raise CorruptionError(
                    f"journal file {file.path} has {file.size()} bytes, but entries up to offset "
                    f"{position.offset} were synced: it was cut"
                )
            while (batch := _read_batch(file, header, position)) is not None:
                assert position.is_behind(batch.end), f"{batch.end} does not follow {position}"
                yield batch
                position = batch.end
            _check_torn(file_system, directory, file, header, position, following)
            _check_follows(directory, file, header, position, following)
        finally:
            file.close()


def _read_batch(file: File, header: JournalFileHeader, start: Mark) -> JournalBatch | None:
    """The batch at ``start``, or None when no whole one is there.

    Whole means: every header and body has its checksum, all headers have the next sequence, and
    the trailer names the same bytes, records and chain. A disk may write the sectors of a torn
    batch in any order, so no single one of these would do.
    """
    assert start.offset % BATCH_ALIGNMENT == 0, f"a batch starts in mid-block: {start}"
    sequence = start.sequence + 1
    records: list[JournalRecord] = []
    headers: list[bytes] = []
    offset = start.offset
    while True:
        head = file.pread(RECORD_HEADER_BYTES, offset)
        record = parse_header(head, header.seed)
        if record is None or record.sequence != sequence:
            return None
        body = file.pread(record.length, offset + RECORD_HEADER_BYTES)
        if len(body) != record.length or crc32c_value(body) != record.body_crc:
            return None
        if record.record_type == RecordType.TRAILER:
            break
        records.append(JournalRecord(record.record_type, body))
        headers.append(head)
        offset += RECORD_HEADER_BYTES + record.length
    trailer = parse_trailer(body)
    chain = extend_chain(start.chain, b"".join(headers))
    if trailer is None or trailer != (offset - start.offset, len(records), chain):
        return None
    assert len(records) == len(headers), "the chain is over the headers of the records"
    # The next batch begins at a block of its own, behind zeros (rule S11).
    end = offset + RECORD_HEADER_BYTES + len(body)
    end_mark = Mark(start.file_number, end + padding(end), sequence, chain)
    return JournalBatch(records, end_mark, start.offset)


def _check_continues(path: Path, header: JournalFileHeader, position: Mark) -> None:
    """Raise CorruptionError unless a later file begins where the one before it ended."""
    if (header.first_sequence, header.chain) != (position.sequence + 1, position.chain):
        raise CorruptionError(
            f"journal file {path}: begins with batch {header.first_sequence}, but the file before "
            f"it ends with batch {position.sequence}: a file is missing or not of this journal"
        )


def missing_file(directory: Path, number: int) -> CorruptionError:
    """The error of a journal file that must be there and is not."""
    return CorruptionError(
        f"journal file {journal_path(directory, number)} is missing, and its entries are nowhere "
        f"else on this bookie: {REPLACE_BOOKIE}"
    )


def _check_follows(
    directory: Path, file: File, header: JournalFileHeader, end: Mark, next_number: int | None
) -> None:
    """Raise CorruptionError if the file names the one after it, and that one is not there.

    A file is named by the one before it before anything in it is acknowledged. So the loss of the
    newest file is noticed as the loss of any other.
    """
    block = file.pread(BATCH_ALIGNMENT, end.offset)
    named = parse_file_end(block, end.sequence + 1, header.seed)
    if named and named != next_number:
        raise missing_file(directory, named)


def _check_torn(
    file_system: FileSystem,
    directory: Path,
    file: File,
    header: JournalFileHeader,
    end: Mark,
    next_number: int | None,
) -> None:
    """Raise CorruptionError if a batch behind ``end`` was durable and is not in the next file.

    All the rest of the file is searched, as a batch that was lost may be as long as the file.
    """
    assert end.offset % BATCH_ALIGNMENT == 0, f"the search starts in mid-block: {end}"
    torn_sequence = end.sequence + 1
    offset = end.offset
    while data := file.pread(_SEARCH_BYTES, offset):
        found = find_later_batch(data, torn_sequence, header.seed)
        if found is not None:
            raise _damage(file.path, end, f"a later batch is at offset {offset + found}")
        offset += len(data)
    if next_number is None:
        return
    # Nothing later in this file. The next one may begin with the torn batch's number: then a start
    # cut the tail and went on there, and nothing is missing.
    later = file_system.open(journal_path(directory, next_number))
    try:
        later_header = read_file_header(later, next_number)
    finally:
        later.close()
    if later_header.first_sequence > torn_sequence:
        trace = f"{later.path.name} begins with batch {later_header.first_sequence}"
        raise _damage(file.path, end, trace)


def _damage(path: Path, end: Mark, trace: str) -> CorruptionError:
    """The error of a batch that was synced and is not there; ``trace`` says how we know."""
    return CorruptionError(
        f"journal file {path}: batch {end.sequence + 1} at offset {end.offset} is damaged or "
        f"missing, and it was synced ({trace}): {REPLACE_BOOKIE}"
    )
