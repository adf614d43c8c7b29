"""What the disk of a bookie knows of its mark: a file of two copies that are written in turn.

They are written in place: a torn write leaves the other copy, and a full disk needs no new block.
So a bookie whose disk is full collects what was deleted, which makes room there (rule G4).

A copy is 4096 bytes: a JSON object, blanks, the CRC-32 of all that as eight hexadecimal digits, and
a line feed. The one with the higher number counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final
from zlib import crc32

import msgspec

from bookie_server.storage.fs.vfs import FileSystem, write_file_durably
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB

MARK_NAME: Final = "collection.json"
ACCEPTED_MAX: Final = 100
"""Orders that are remembered, the last ones: each is an operator's word after a restore."""
_FORMAT_VERSION: Final = 1
_COPY_BYTES: Final = 4 * KIB
_END_BYTES: Final = 9


class Noted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    format_version: Annotated[int, msgspec.Meta(ge=1, le=_FORMAT_VERSION)]
    marks: Annotated[tuple[str, ...], msgspec.Meta(max_length=2)] = ()
    kept_below: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Copies of ledgers below this id are kept though others are named for them (rule G9)."""
    accepted: Annotated[tuple[str, ...], msgspec.Meta(max_length=ACCEPTED_MAX)] = ()
    """Orders that had other metadata accepted, as words of equal length: each counts once."""
    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of the copy: one more with each that is written."""


NOTHING: Final = Noted(_FORMAT_VERSION)


def read_note(files: FileSystem, path: Path) -> Noted:
    """What was noted last; nothing if there is no file. Raises CorruptionError, OSError."""
    try:
        file = files.open(path, writable=True)
    except FileNotFoundError:
        return NOTHING
    try:
        size = file.size()
        if size > 2 * _COPY_BYTES:
            raise OSError(f"{path}: {size} bytes, at most {2 * _COPY_BYTES} are expected")
        data = file.pread(size, 0)
        copies = [data[at : at + _COPY_BYTES] for at in (0, _COPY_BYTES)]
        found = _decoded(path, copies)
        last = max(found, key=lambda at: found[at].number)
        # What a process left that was killed may be in memory only, as may the file's name behind a
        # write that failed. The next copy is written over the one before it, in a file that has to
        # be found again, so all of it has to be durable first. Behind a sync that failed another
        # one proves nothing (rule S3), so the last copy is written once more. One that stands alone
        # was durable before the other was begun.
        if len(found) > 1:
            file.pwritev([copies[last]], last * _COPY_BYTES)
        file.fdatasync()
        files.sync_directory(path.parent)
    finally:
        file.close()
    return found[last]


def _decoded(path: Path, copies: Sequence[bytes]) -> dict[int, Noted]:
    """The copies that are whole, by their places. Raises CorruptionError if none is."""
    try:
        texts = enumerate(map(_text, copies))
        found = {at: msgspec.json.decode(text, type=Noted) for at, text in texts if text}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"{path} is damaged: {error}") from error
    if not found:
        raise CorruptionError(f"{path} is damaged: neither copy is whole")
    return found


def write_note(files: FileSystem, path: Path, noted: Noted) -> None:
    """Write the next copy, whose number is one more than that of ``read_note``. Raises OSError."""
    text = msgspec.json.encode(noted).ljust(_COPY_BYTES - _END_BYTES)
    copy = text + b"%08x\n" % crc32(text)
    assert len(copy) == _COPY_BYTES, "it does not hold more words than fit"
    # The one time that it needs blocks: as a rule, the bookie is new and its disk has room.
    if not files.exists(path):
        write_file_durably(files, path, copy + copy)
        return
    file = files.open(path, writable=True)
    try:
        file.pwritev([copy], noted.number % 2 * _COPY_BYTES)
        file.fdatasync()
    finally:
        file.close()


def _text(copy: bytes) -> bytes | None:
    """The JSON object of a copy that is whole."""
    text, end = copy[:-_END_BYTES], copy[-_END_BYTES:]
    is_whole = len(copy) == _COPY_BYTES and end == b"%08x\n" % crc32(text)
    return text if is_whole else None
