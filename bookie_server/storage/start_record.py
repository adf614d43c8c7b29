"""The start record of a directory, ``start.json``: which start it took part in last (rule S13).

It is replaced as a whole by each start, and by each clean stop. A directory that was formatted by
an older program has none until its first start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from bookie_server.core.identity import DirectoryStart
from bookie_server.storage.cookie import COOKIE_NAME
from bookie_server.storage.fs.vfs import FileSystem, read_file, write_file_durably
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStart, DirectoryPlace

RECORD_NAME: Final = "start.json"
FORMAT_VERSION: Final = 2
"""A ledger directory may have a run log (rule S16). A program that knows none would miss what was
acknowledged in it, so it must not start here; the record is written before anything else is."""
_RECORD_BYTES_MAX: Final = 64 * KIB


class StartRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See ``core.identity.DirectoryStart``."""

    format_version: Annotated[int, msgspec.Meta(ge=1)]
    place: DirectoryPlace
    current: BookieStart | None
    pending: BookieStart | None


def read_start(file_system: FileSystem, directory: Path) -> DirectoryStart:
    """Which directory this is, and what it knows of the last start.

    Raises CorruptionError if the record is damaged, ConfigurationError if it is of a later version,
    OSError if the disk fails.
    """
    place, path = _place(file_system, directory), directory / RECORD_NAME
    try:
        data = read_file(file_system, path, size_max=_RECORD_BYTES_MAX)
    except FileNotFoundError:
        return DirectoryStart(place, noted=None, current=None, pending=None)
    try:
        record = msgspec.json.decode(data, type=StartRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"{path} is damaged: {error}") from error
    if record.format_version != FORMAT_VERSION:
        raise ConfigurationError(
            f"{path} has format version {record.format_version}, this program reads "
            f"{FORMAT_VERSION}: use the version that wrote it"
        )
    return DirectoryStart(place, record.place, record.current, record.pending)


def write_start(
    file_system: FileSystem,
    directory: Path,
    *,
    place: DirectoryPlace,
    current: BookieStart | None,
    pending: BookieStart | None,
) -> None:
    """Replace the record, durably. Raises OSError if the disk fails or is full."""
    record = StartRecord(FORMAT_VERSION, place, current, pending)
    data = msgspec.json.encode(record) + b"\n"
    write_file_durably(file_system, directory / RECORD_NAME, data)


def _place(file_system: FileSystem, directory: Path) -> DirectoryPlace:
    itself = file_system.identity(directory)
    cookie = file_system.identity(directory / COOKIE_NAME)
    return DirectoryPlace(
        str(directory), itself.inode, itself.born_ns, cookie.inode, cookie.born_ns
    )
