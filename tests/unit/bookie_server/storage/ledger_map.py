"""Reads the map of bytes by ledger at the end of an entry log, which no product code needs yet."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from google_crc32c import value as crc32c_value

from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.ledgers.entry_log import FOOTER_BYTES, LOG_HEADER_BYTES, log_path
from bookie_server.storage.records import RECORD_HEADER_BYTES, RecordType, parse_header
from spark_ledger.errors import CorruptionError

_FOOT = struct.Struct(">8sQ")
_PAIR = struct.Struct(">QQ")
_MAGIC: Final = b"SLEMAP\r\n"


def read_ledger_map(files: FileSystem, directory: Path, log_id: int) -> dict[int, int] | None:
    """Bytes by ledger; None when the log was not closed in order.

    Raises CorruptionError if the footer is intact and the map it names is not.
    """
    file = files.open(log_path(directory, log_id))
    end = file.size() - FOOTER_BYTES
    footer = file.pread(FOOTER_BYTES, end) if end >= 0 else b""
    if len(footer) < FOOTER_BYTES or footer[_FOOT.size :] != _crc(footer[: _FOOT.size]):
        return None
    magic, offset = _FOOT.unpack_from(footer)
    if magic != _MAGIC:
        return None
    if not LOG_HEADER_BYTES <= offset < end:  # a map of nothing is a record too
        raise CorruptionError(f"a ledger map at offset {offset}")
    found: dict[int, int] = {}
    while offset < end:
        record = parse_header(file.pread(RECORD_HEADER_BYTES, offset), 0)
        if record is None or record[::2] != (RecordType.LEDGER_MAP, log_id << 32 | offset):
            raise CorruptionError(f"no ledger map at offset {offset}")
        body = file.pread(record.length, offset + RECORD_HEADER_BYTES)
        if crc32c_value(body) != record.body_crc or len(body) % _PAIR.size:
            raise CorruptionError(f"wrong checksum of the ledger map at offset {offset}")
        found.update(_PAIR.iter_unpack(body))
        offset += RECORD_HEADER_BYTES + record.length
    return found


def _crc(data: bytes) -> bytes:
    return int(crc32c_value(data)).to_bytes(4, "big")
