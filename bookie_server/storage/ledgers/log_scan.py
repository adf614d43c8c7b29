"""Finds the blocks of a log, entry log or file of a run log, one behind the other.

Only their headers are read. Where no record is, the search goes on at the next multiple of 4096:
each write begins at one. A record that reaches behind the end of the file is none: the write was
torn, and nothing names it, or the file was cut. So a damaged header hides the blocks of one write
at most; who removes a log asks the index whether all of them were found (rule S20).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from bookie_server.storage.blocks import HEADER_BYTES, BlockFormatError, decode_header
from bookie_server.storage.fs.vfs import DIRECT_ALIGNMENT, File
from bookie_server.storage.index.base import BlockLocation
from bookie_server.storage.records import RECORD_HEADER_BYTES, RecordType, parse_header
from spark_ledger.limits.storage import SCAN_WINDOW_BYTES
from spark_ledger.types import EntryId, LedgerId

_LAST_ID = struct.Struct("<q")
_HEAD_BYTES = RECORD_HEADER_BYTES + HEADER_BYTES


class FoundBlock(NamedTuple):
    """Where a block is, and what its header says. The checksum of the body was not looked at."""

    location: BlockLocation
    ledger_id: LedgerId
    first_entry: EntryId
    last_entry: EntryId


def scan_blocks(file: File, seed: int, log_id: int) -> Iterator[FoundBlock]:
    """All blocks of log ``log_id``; ``seed`` is that of its headers. Raises OSError."""
    window = _Window(file)
    is_run_log = bool(BlockLocation(log_id, 0, 0).run_log_file)
    offset, size = DIRECT_ALIGNMENT, file.size()
    while offset + RECORD_HEADER_BYTES <= size:
        head = window.read(_HEAD_BYTES, offset)
        record = parse_header(head[:RECORD_HEADER_BYTES], seed)
        if record is not None and offset + RECORD_HEADER_BYTES + record.length > size:
            record = None  # torn: no row names it (rule S6)
        if record is None or not (is_run_log or record.sequence == log_id << 32 | offset):
            offset += DIRECT_ALIGNMENT - offset % DIRECT_ALIGNMENT
            continue
        if record.record_type == RecordType.RUN:
            try:
                header = decode_header(head[RECORD_HEADER_BYTES:], record.length)
            except BlockFormatError:
                header = None  # a damaged one: the index still names it, and the log stays
            if header is not None:
                last = header.first_entry + header.entries - 1
                if header.has_ids:
                    at = offset + _HEAD_BYTES + _LAST_ID.size * (header.entries - 1)
                    (last,) = _LAST_ID.unpack(window.read(_LAST_ID.size, at))
                location = BlockLocation(log_id, offset, record.length)
                yield FoundBlock(location, header.ledger_id, header.first_entry, EntryId(last))
        offset += RECORD_HEADER_BYTES + record.length


class _Window:
    """The part of a file that was read last."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._data = b""

    def read(self, length: int, offset: int) -> bytes:
        start = offset - self._start
        if start < 0 or start + length > len(self._data):
            self._start, start = offset, 0
            self._data = self._file.pread(max(length, SCAN_WINDOW_BYTES), offset)
        return self._data[start : start + length]
