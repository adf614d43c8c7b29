"""Entry log files: blocks one behind the other.

    offset  bytes  field
    0       8      magic "SLELOG\\r\\n"
    8       4      format version, 1, big endian, as all numbers
    12      4      log id
    16      4      CRC32C of the 16 bytes above
    20      ..     zeros up to offset 4096
    4096    ..     blocks: records of type RUN whose sequence is log id << 32 | offset

What is written at once starts and ends at multiples of 4096 bytes, zeros fill the space: no
sector is written twice. Logs of older programs may have something else behind their last block,
which nobody reads. Logs are never appended to after a restart. A block is where the index says, or
the log is damaged: that is CorruptionError, never "no such entry" (rule S9).
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c_value

from bookie_server.storage.blocks import (
    BLOCK_BYTES_MAX,
    HEADER_BYTES,
    Block,
    BlockFormatError,
    consecutive_numbers_bytes,
    decode_header,
    decode_run,
)
from bookie_server.storage.fs.vfs import DIRECT_ALIGNMENT, TEMPORARY_SUFFIX, File, FileSystem
from bookie_server.storage.index.base import BlockLocation
from bookie_server.storage.journal.files import journal_path, read_file_header
from bookie_server.storage.records import (
    RECORD_HEADER_BYTES,
    RecordType,
    pack_header,
    parse_header,
)
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import BOOKIE_OPEN_LOGS_MAX
from spark_ledger.runs import EntryRun

_NAME = re.compile(r"entries-(\d{10})\.log")
_HEAD = struct.Struct(">8sII")
_CRC = struct.Struct(">I")
_HEAD_MAGIC: Final = b"SLELOG\r\n"
_VERSION: Final = 1
LOG_HEADER_BYTES: Final = DIRECT_ALIGNMENT
_SEED: Final = 0
_WRITE_BYTES: Final = 8 * MIB
"""Blocks are buffered up to this many bytes, and written by one call."""
_DROP_BYTES: Final = 4 * MIB
"""Old bytes are dropped from the page cache in pieces of this size or more."""
_ZEROS: Final = bytes(DIRECT_ALIGNMENT)


def log_path(directory: Path, log_id: int) -> Path:
    """Where the entry log with this id is."""
    return directory / f"entries-{log_id:010d}.log"


def block_path(directory: Path, location: BlockLocation) -> Path:
    """The file that a block is in."""
    if location.run_log_file:
        return journal_path(directory, location.run_log_file)
    return log_path(directory, location.log_id)


def log_ids(file_system: FileSystem, directory: Path) -> list[int]:
    """Ids of the entry logs that are there, ascending."""
    matches = map(_NAME.fullmatch, file_system.list(directory))
    return sorted(int(match.group(1)) for match in matches if match)


class MissingLogError(CorruptionError):
    """A log is not there; or its blocks were copied since the row was read (rule S20)."""


class EntryLogWriter:
    """The log that takes blocks; *flush thread*. After an OSError it takes no more: ``abandon`` it.

    What failed to be written or synced is never tried again in the same file (rule S3): the blocks
    are still in the write cache, and the next flush writes them to a new log.
    """

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        log_id: int,
        *,
        cached_bytes: int = 0,
    ) -> None:
        """Make the log file, durably.

        The newest ``cached_bytes`` stay in the page cache for readers that follow closely; what
        is older is dropped from it once it is durable. With 0 the log is written past it. Raises
        OSError if the file cannot be made.
        """
        assert 0 < log_id < 1 << 32, f"log id {log_id}: a record's sequence has 32 bits for it"
        # Flush thread: all fields.
        self._cached_bytes = cached_bytes
        self._dropped_to = 0
        self.log_id = log_id
        self._file_system = file_system
        self._path = log_path(directory, log_id)
        head = _HEAD.pack(_HEAD_MAGIC, _VERSION, log_id)
        temporary = self._path.with_name(self._path.name + TEMPORARY_SUFFIX)
        self._file = file_system.create(temporary, direct=cached_bytes == 0)
        try:
            header = (head + _CRC.pack(crc32c_value(head))).ljust(LOG_HEADER_BYTES, b"\0")
            self._file.pwritev([header], 0)
            self._file.fdatasync()
            file_system.rename(temporary, self._path)
            file_system.sync_directory(directory)
        except OSError:
            self._file.close()
            # The next attempt has another id: on a full disk each would leave a file behind.
            for path in (temporary, self._path):
                with suppress(OSError):
                    file_system.remove(path)
            raise
        self._written = LOG_HEADER_BYTES
        self._size = LOG_HEADER_BYTES
        self._buffers: list[bytes] = []

    @property
    def size(self) -> int:
        """Bytes of the log, buffered ones included."""
        return self._size

    def append(self, block: Block) -> BlockLocation:
        """Add a block behind the others; it can be read after ``write_buffered``."""
        record_bytes = RECORD_HEADER_BYTES + block.length
        if self._size + record_bytes - self._written > _WRITE_BYTES:
            self.write_buffered()
        offset = self._size
        assert offset < 1 << 32, f"block at offset {offset}: the index has 32 bits for it"
        sequence = self.log_id << 32 | offset
        header = pack_header(RecordType.RUN, block.length, sequence, block.crc, _SEED)
        self._buffers.append(header)
        self._buffers.extend(block.buffers)
        self._size += record_bytes
        return BlockLocation(self.log_id, offset, block.length)

    def write_buffered(self) -> None:
        """Hand buffered blocks to the file system."""
        if self._buffers:
            # To the end of the last sector with zeros: the next write starts in a sector of its
            # own, so it cannot tear blocks that the index names (rule S11).
            zeros = -self._size % DIRECT_ALIGNMENT
            self._buffers.append(_ZEROS[:zeros])
            self._size += zeros
            assert self._written % DIRECT_ALIGNMENT == 0, f"a write starts at {self._written}"
            buffered = sum(map(len, self._buffers))
            assert self._written + buffered == self._size, "blocks are where they were promised"
            self._file.pwritev(self._buffers, self._written)
            self._buffers = []
            self._written = self._size

    def sync(self) -> None:
        """Make all blocks durable. The index may name them afterwards, not before (rule S6)."""
        self.write_buffered()
        self._file.fdatasync()
        assert self._written == self._size and not self._buffers, "a block was not synced"
        drop_to = self._written - self._cached_bytes
        if drop_to - self._dropped_to >= _DROP_BYTES:
            self._file.drop_cached(self._dropped_to, drop_to - self._dropped_to)
            self._dropped_to = drop_to

    def finish(self) -> None:
        """Make all blocks durable, and close the file."""
        self.sync()
        self._file.close()

    def abandon(self, *, named_bytes: int) -> None:
        """Close as it is. Behind ``named_bytes`` no block is in the index: the disk gets that
        back, the whole file if there is none before it. Raises OSError."""
        self._file.close()
        if not named_bytes:
            self._file_system.remove(self._path)
        elif named_bytes < self._size:
            assert named_bytes % DIRECT_ALIGNMENT == 0, f"a commit ended at {named_bytes}"
            file = self._file_system.open(self._path, writable=True)
            try:
                tail = file.size() - named_bytes
                if tail > 0:
                    file.punch(named_bytes, tail + -tail % DIRECT_ALIGNMENT)
            finally:
                file.close()


class EntryLogReader:
    """Reads blocks of all logs of one directory, run log included; *any thread*.

    Files are shared by threads: every read names its offset. A file that is pushed out is closed
    by its last reader, when Python frees it.
    """

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        *,
        direct: bool = True,
        open_logs_max: int = BOOKIE_OPEN_LOGS_MAX,
    ) -> None:
        """``direct``: read past the page cache, as the logs were written. Of more than
        ``open_logs_max`` open files the least recently used one is closed."""
        assert open_logs_max >= 1, "the log that is read is open"
        # Any thread: never changed.
        self._file_system = file_system
        self._directory = directory
        self._direct = direct
        self._open_logs_max = open_logs_max
        # Protected by _lock: the open files, least recently used first.
        self._lock = Lock()
        self._files: OrderedDict[int, tuple[File, int]] = OrderedDict()

    def read(self, location: BlockLocation, *, entries: int = 0) -> EntryRun:
        """The run in a block, verified.

        ``entries``: how many the block has, which saves a copy if it is right. Raises
        CorruptionError if the block is not what it should be, OSError if the disk fails.
        """
        file, seed = self._open(location)
        start, length = location.offset, location.length
        if length > BLOCK_BYTES_MAX:
            raise _damaged(file.path, start, f"no block has {length} bytes")
        cut = RECORD_HEADER_BYTES + min(length, consecutive_numbers_bytes(entries))
        head, frames = file.pread_split(cut, RECORD_HEADER_BYTES + length, start)
        record = parse_header(head[:RECORD_HEADER_BYTES], seed)
        if record is None or record[:2] != (RecordType.RUN, length):
            raise _damaged(file.path, start, "no such record")
        # In a run log the sequence is that of its batch; whose run it is the caller looks at.
        if not location.run_log_file and record.sequence != location.log_id << 32 | start:
            raise _damaged(file.path, start, "no such record")
        try:
            prefix = head[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + HEADER_BYTES]
            header = decode_header(prefix, length)
            frames_start = RECORD_HEADER_BYTES + header.frames_offset
            if frames_start != cut:
                head += frames
                head, frames = head[:frames_start], head[frames_start:]
            numbers = head[RECORD_HEADER_BYTES:]
            if crc32c_extend(crc32c_value(numbers), frames) != record.body_crc:
                raise _damaged(file.path, start, "wrong checksum")
            return decode_run(header, numbers, frames)
        except BlockFormatError as error:
            raise _damaged(file.path, start, str(error)) from error

    def read_block(self, location: BlockLocation) -> Block:
        """A block as it is stored, verified. Raises as ``read``."""
        file, seed = self._open(location)
        data = file.pread(RECORD_HEADER_BYTES + location.length, location.offset)
        record = parse_header(data[:RECORD_HEADER_BYTES], seed)
        body = data[RECORD_HEADER_BYTES:]
        if record is None or record[:2] != (RecordType.RUN, len(body)):
            raise _damaged(file.path, location.offset, "no such record")
        if crc32c_value(body) != record.body_crc:
            raise _damaged(file.path, location.offset, "wrong checksum")
        return Block((body,), len(body), record.body_crc)

    def open_log(self, log_id: int) -> tuple[File, int]:
        """A log, and the seed of its headers. Raises as ``read``."""
        return self._open(BlockLocation(log_id, 0, 0))

    def forget(self, log_id: int) -> None:
        """Close a log that was removed, once its last reader lets it go."""
        with self._lock:
            self._files.pop(log_id, None)

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            self._files.clear()

    def _open(self, location: BlockLocation) -> tuple[File, int]:
        """The file that a block is in, and the seed of its headers."""
        log_id = location.log_id
        with self._lock:
            known = self._files.get(log_id)
            if known is not None:
                self._files.move_to_end(log_id)
                return known
            path = block_path(self._directory, location)
            try:
                file = self._file_system.open(path, direct=self._direct)
            except FileNotFoundError as error:
                raise MissingLogError(
                    f"log {path} is missing, and the index names entries in it"
                ) from error
            seed = _SEED
            if location.run_log_file:
                seed = read_file_header(file, location.run_log_file).seed
            else:
                _check_head(file, log_id)
            self._files[log_id] = (file, seed)
            if len(self._files) > self._open_logs_max:
                self._files.popitem(last=False)  # closed once the last reader lets it go
            assert len(self._files) <= self._open_logs_max, "one file is opened at a time"
            return file, seed


def _check_head(file: File, log_id: int) -> None:
    size = _HEAD.size + _CRC.size
    head = file.pread(size, 0)
    if len(head) < size or _CRC.unpack_from(head, _HEAD.size)[0] != crc32c_value(
        head[: _HEAD.size]
    ):
        raise _damaged(file.path, 0, "damaged file header")
    if _HEAD.unpack_from(head) != (_HEAD_MAGIC, _VERSION, log_id):
        raise _damaged(file.path, 0, f"not version {_VERSION} of log {log_id}")


def _damaged(path: Path, offset: int, what: str) -> CorruptionError:
    return CorruptionError(f"entry log {path}: damaged at offset {offset}: {what}")
