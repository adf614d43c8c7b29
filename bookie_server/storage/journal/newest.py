"""The durable note of the file that a run of the journal began with.

A journal whose last file is missing looks like a shorter journal, and a bookie that believed it
would deny what it acknowledged. So every file is named elsewhere before anything in it is
acknowledged: by the end of the file before it and, the first one of a run, by this note (rule S5).
The checkpoint marks would name it as well, once they have moved; on a full disk they may not.

    offset  bytes  field
    0       8      magic "SLENEW\\r\\n"
    8       8      number of the file, big endian
    16      4      CRC32C of the 16 bytes above
    20      ..     zeros up to 4096; behind them a second copy of the same form

The copies are written in turn, in place: a torn write leaves the other one, and a full disk needs
no new block for it.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from google_crc32c import value as crc32c_value

from bookie_server.storage.fs.vfs import DIRECT_ALIGNMENT, FileSystem, write_file_durably
from spark_ledger.errors import CorruptionError

NEWEST_NAME: Final = "journal.newest"
_BODY = struct.Struct(">8sQ")
_CRC = struct.Struct(">I")
_MAGIC: Final = b"SLENEW\r\n"


def read_newest(file_system: FileSystem, directory: Path) -> int | None:
    """The number of the file that the last run began with; None if no note was ever made.

    Raises CorruptionError if no copy is whole, OSError if the disk fails.
    """
    path = directory / NEWEST_NAME
    if not file_system.exists(path):
        return None
    file = file_system.open(path)
    try:
        copies = [file.pread(DIRECT_ALIGNMENT, at * DIRECT_ALIGNMENT) for at in (0, 1)]
    finally:
        file.close()
    numbers = [number for number in map(_parse, copies) if number is not None]
    if not numbers:
        raise CorruptionError(f"{path} is damaged: it names no journal file")
    return max(numbers)


def note_newest(file_system: FileSystem, directory: Path, number: int) -> None:
    """Note that journal file ``number`` is about to take the first batch of a run.

    Raises OSError; then the file must not be used.
    """
    path = directory / NEWEST_NAME
    copy = _pack(number)
    # The one time that it needs a block. A bookie on a full disk was made when there was room.
    if not file_system.exists(path):
        write_file_durably(file_system, path, copy + copy)
        return
    file = file_system.open(path, writable=True)
    try:
        file.pwritev([copy], number % 2 * DIRECT_ALIGNMENT)
        file.fdatasync()
    finally:
        file.close()


def _pack(number: int) -> bytes:
    body = _BODY.pack(_MAGIC, number)
    return (body + _CRC.pack(crc32c_value(body))).ljust(DIRECT_ALIGNMENT, b"\0")


def _parse(copy: bytes) -> int | None:
    body = copy[: _BODY.size]
    if len(copy) < DIRECT_ALIGNMENT or copy != body + _CRC.pack(crc32c_value(body)).ljust(
        DIRECT_ALIGNMENT - _BODY.size, b"\0"
    ):
        return None
    magic, number = _BODY.unpack(body)
    return int(number) if magic == _MAGIC else None
