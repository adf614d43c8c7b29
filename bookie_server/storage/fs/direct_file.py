"""Files past the page cache (O_DIRECT): bytes go through a few aligned buffers that are reused.

Most of the cost of writing a lot is fresh pages of the page cache: each has to be allocated, and
reclaimed later. A direct write copies into memory that is warm, and the disk takes it from there.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bookie_server.storage.fs.vfs import DIRECT_ALIGNMENT, check_aligned
from spark_ledger.limits import MIB

logger = logging.getLogger(__name__)

BUFFER_BYTES: Final = 8 * MIB
"""Most that one system call writes or reads: large, as each call costs some thread switches."""

SPLIT_BYTES_MAX: Final = BUFFER_BYTES - 2 * DIRECT_ALIGNMENT
"""Longest read that is sure to fit into one buffer, wherever it starts."""

_BUFFERS_KEPT_MAX: Final = 8
"""What reads, a flush, a compaction and a scrub use at once. A disk that hangs has each read that
waits for it take one, of all directories: those are given back to the kernel."""

_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
"""0 where the operating system has no such thing."""


class BufferPool:
    """Aligned buffers, of which some are kept to be used again; *any thread*."""

    def __init__(self) -> None:
        # Any thread, without a lock: list.pop and list.append are atomic, and a buffer that was
        # taken is in no list.
        self._free: list[memoryview] = []

    @contextmanager
    def borrow(self) -> Iterator[memoryview]:
        """A buffer of ``BUFFER_BYTES``, whatever was in it."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = _new_buffer()
        try:
            yield buffer
        finally:
            if len(self._free) < _BUFFERS_KEPT_MAX:
                self._free.append(buffer)


def _new_buffer() -> memoryview:
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # huge pages need it
    memory = mmap.mmap(-1, BUFFER_BYTES, flags=private)  # starts at a page, so it is aligned
    assert mmap.PAGESIZE % DIRECT_ALIGNMENT == 0, f"pages of {mmap.PAGESIZE} bytes"
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)  # fewer pages to look up for each transfer
        except OSError as error:
            logger.debug("no huge pages for buffers of direct transfers: %s", error)
    return memoryview(memory)


def turn_direct(descriptor: int) -> bool:
    """Have the descriptor's transfers go past the page cache; False if its file system refuses.

    Opening with O_DIRECT would do the same, but may leave an empty file behind when it fails.
    """
    if not _O_DIRECT:
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _O_DIRECT)
    except OSError as error:
        logger.debug("direct transfers are refused: %s", error)
        return False
    return True


class DirectTransfers:
    """Reads and writes of one descriptor by way of aligned buffers; *any thread*.

    A file system may take O_DIRECT and still refuse a transfer (EINVAL). Then the file goes on
    through the page cache, for all threads that use it.
    """

    def __init__(self, path: Path, buffers: BufferPool) -> None:
        # Any thread: never changed.
        self._path = path
        self._buffers = buffers
        # Any thread, without a lock: from true to false, once.
        self._is_direct = True

    def write(self, descriptor: int, parts: Sequence[bytes], offset: int) -> None:
        """Write all parts from ``offset``; both ends are multiples of ``DIRECT_ALIGNMENT``."""
        size = sum(map(len, parts))
        check_aligned(offset, size)
        with self._buffers.borrow() as buffer:
            filled = 0
            for part in parts:
                if filled + len(part) <= BUFFER_BYTES:
                    buffer[filled : filled + len(part)] = part
                    filled += len(part)
                    continue
                rest = memoryview(part)
                while rest:
                    if filled == BUFFER_BYTES:
                        self._write_filled(descriptor, buffer, offset)
                        offset += filled
                        filled = 0
                    step = min(len(rest), BUFFER_BYTES - filled)
                    buffer[filled : filled + step] = rest[:step]
                    filled += step
                    rest = rest[step:]
            self._write_filled(descriptor, buffer[:filled], offset)

    def _write_filled(self, descriptor: int, filled: memoryview, offset: int) -> None:
        written = 0
        while written < len(filled):
            was_direct = self._is_direct
            try:
                step = os.pwrite(descriptor, filled[written:], offset + written)
            except OSError as error:
                if error.errno != errno.EINVAL or not was_direct:
                    raise
                self._leave_direct(descriptor)
                continue
            if step == 0:
                raise OSError(errno.EIO, "write made no progress", str(self._path))
            written += step

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """Up to ``length`` bytes from any ``offset``; fewer only at the end of the file."""
        parts: list[bytes] = []
        with self._buffers.borrow() as buffer:
            while length > 0:
                skip = offset % DIRECT_ALIGNMENT
                wanted = min(skip + length, BUFFER_BYTES)
                aligned = wanted + -wanted % DIRECT_ALIGNMENT
                found = self._fill(descriptor, buffer[:aligned], offset - skip)
                part = bytes(buffer[skip : min(found, wanted)])
                parts.append(part)
                if found < wanted:
                    break
                length -= len(part)
                offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_split(
        self, descriptor: int, cut: int, length: int, offset: int
    ) -> tuple[bytes, bytes]:
        """``read`` in one go: the first ``cut`` bytes, and those behind them."""
        assert length <= SPLIT_BYTES_MAX, f"{length} bytes may not fit into one buffer"
        skip = offset % DIRECT_ALIGNMENT
        end = skip + length
        with self._buffers.borrow() as buffer:
            aligned = end + -end % DIRECT_ALIGNMENT
            end = min(end, self._fill(descriptor, buffer[:aligned], offset - skip))
            return bytes(buffer[skip : min(skip + cut, end)]), bytes(buffer[skip + cut : end])

    def _fill(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Read into the buffer, up to its end or the end of the file; how many bytes were read.

        A count that is no multiple of the alignment is the end of the file: it ends the loop, as
        the next read would start in mid-block and be refused.
        """
        found = 0
        assert offset % DIRECT_ALIGNMENT == len(buffer) % DIRECT_ALIGNMENT == 0, (
            f"direct read of {len(buffer)} bytes at offset {offset}"
        )
        while found < len(buffer):
            was_direct = self._is_direct
            try:
                step = os.preadv(descriptor, [buffer[found:]], offset + found)
            except OSError as error:
                if error.errno != errno.EINVAL or not was_direct:
                    raise
                self._leave_direct(descriptor)
                continue
            found += step
            if step == 0 or found % DIRECT_ALIGNMENT:
                break
        return found

    def _leave_direct(self, descriptor: int) -> None:
        """Fall back to the page cache; the transfer that was refused is tried again.

        Several threads may be refused at the same time. Each of them began while the file was
        direct, so each tries again, although only the first finds the flag still set.
        """
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if flags & _O_DIRECT:
            logger.warning("%s: direct transfers are refused, the page cache is used", self._path)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_O_DIRECT)
        self._is_direct = False
