"""The machine's own file system behind the interface of ``vfs``."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bookie_server.core.disk_space import Space
from bookie_server.storage.fs.direct_file import (
    SPLIT_BYTES_MAX,
    BufferPool,
    DirectTransfers,
    turn_direct,
)
from bookie_server.storage.fs.file_identity import file_identity
from bookie_server.storage.fs.holes import hole_bytes, punch
from bookie_server.storage.fs.vfs import (
    DIRECT_ALIGNMENT,
    File,
    FileIdentity,
    Lock,
    check_aligned,
)
from spark_ledger.limits import KIB

logger = logging.getLogger(__name__)

IOV_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024) if os.sysconf("SC_IOV_MAX") > 0 else 16
"""Buffers one system call takes; POSIX promises 16, Linux has 1024."""

_ZEROS: Final = bytes(256 * KIB)
"""Filled behind a small write into blocks that were never written, up to a multiple of this."""

_FILLED_BEHIND_BYTES_MAX: Final = 32 * KIB
"""Behind a longer write the zeros would cost more than the metadata that they save."""

READ_BYTES_MAX: Final = 1 << 30
"""One read; the kernel itself stops a little below 2 GiB."""


class PosixFile:
    """A file descriptor. One thread writes and syncs; *any thread* reads at the same time.

    Dropping the last reference closes it, so readers need no counting. Whoever calls ``close``
    is the only one that uses the file.
    """

    def __init__(self, path: Path, descriptor: int, direct: DirectTransfers | None = None) -> None:
        assert descriptor >= 0, f"{path} is not open"
        # Any thread: never changed until ``close``.
        self._path = path
        self._descriptor = descriptor
        self._direct = direct
        # Writing thread: allocated blocks that were never written, so they read as zeros.
        self._unwritten_from = self._unwritten_end = 0

    @property
    def path(self) -> Path:
        return self._path

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        if self._unwritten_from < self._unwritten_end:
            buffers = self._with_zeros_behind(buffers, offset)
        if self._direct is not None:
            self._direct.write(self._descriptor, buffers, offset)
            return
        for start in range(0, len(buffers), IOV_MAX):
            group = buffers[start : start + IOV_MAX]
            wanted = sum(map(len, group))
            written = os.pwritev(self._descriptor, group, offset)
            while written < wanted:  # a short write: go on behind it, or learn why it was short
                rest = b"".join(group)[written:]
                step = os.pwrite(self._descriptor, rest, offset + written)
                if step == 0:
                    raise OSError(errno.EIO, "write made no progress", str(self._path))
                written += step
            offset += wanted

    def pread(self, length: int, offset: int) -> bytes:
        assert 0 <= length <= READ_BYTES_MAX, f"read of {length} bytes"
        if self._direct is not None:
            return self._direct.read(self._descriptor, length, offset)
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        have = len(data)
        while have < length:
            data = os.pread(self._descriptor, length - have, offset + have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def pread_split(self, cut: int, length: int, offset: int) -> tuple[bytes, bytes]:
        assert 0 <= cut <= length, f"{cut} of {length} bytes"
        if self._direct is not None and length <= SPLIT_BYTES_MAX:
            return self._direct.read_split(self._descriptor, cut, length, offset)
        return self.pread(cut, offset), self.pread(length - cut, offset + cut)

    def fdatasync(self) -> None:
        os.fdatasync(self._descriptor)

    def drop_cached(self, offset: int, length: int) -> None:
        os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def preallocate(self, size: int, *, unwritten: bool = False) -> None:
        if unwritten or self.size() == 0:
            self._unwritten_end = size - size % DIRECT_ALIGNMENT
        os.posix_fallocate(self._descriptor, 0, size)

    def _with_zeros_behind(self, buffers: Sequence[bytes], offset: int) -> Sequence[bytes]:
        """The buffers, and zeros behind them if these are blocks that were never written.

        The file system records in its metadata which blocks were written for the first time, and
        a sync waits for that. One write of zeros, which is what those blocks read as anyway, makes
        it one such record for many small writes.
        """
        size = sum(map(len, buffers))
        end = offset + size
        if end <= self._unwritten_from:
            return buffers
        filled = end
        if size <= _FILLED_BEHIND_BYTES_MAX:
            filled = max(end, min(end + -end % len(_ZEROS), self._unwritten_end))
        self._unwritten_from = filled
        return [*buffers, _ZEROS[: filled - end]] if filled > end else buffers

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def punch(self, offset: int, length: int) -> None:
        check_aligned(offset, length)
        punch(self._descriptor, offset, length)

    def hole_bytes(self) -> int:
        return hole_bytes(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class PosixLock:
    """An flock on an open descriptor: the kernel releases it when the process dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class PosixFileSystem:
    """Files of this machine, for *any thread*; only owner and group may read new files."""

    def __init__(self) -> None:
        # Any thread: it needs no lock (see there).
        self._buffers = BufferPool()
        # Any thread: from false to true. Two threads at once may both write the line.
        self._refusal_is_logged = False

    def create(self, path: Path, *, direct: bool = False) -> File:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return self._file(path, os.open(path, flags, 0o640), direct)

    def open(self, path: Path, *, writable: bool = False, direct: bool = False) -> File:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        return self._file(path, os.open(path, flags), direct)

    def _file(self, path: Path, descriptor: int, direct: bool) -> PosixFile:
        """The file object, direct if that is wanted and the file system of the file can."""
        transfers = None
        if direct and turn_direct(descriptor):
            transfers = DirectTransfers(path, self._buffers)
        elif direct and not self._refusal_is_logged:
            self._refusal_is_logged = True
            logger.warning("%s: no direct transfers here, the page cache is used", path.parent)
        return PosixFile(path, descriptor, transfers)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def list(self, directory: Path) -> Sequence[str]:
        return sorted(entry.name for entry in directory.iterdir())

    def exists(self, path: Path) -> bool:
        return path.exists()

    def mkdir(self, path: Path) -> None:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def space(self, directory: Path) -> Space:
        found = os.statvfs(directory)
        # As `df` counts: blocks that are kept for root are neither used nor free.
        used_blocks = found.f_blocks - found.f_bfree
        return Space(
            (used_blocks + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize
        )

    def identity(self, path: Path) -> FileIdentity:
        return file_identity(path)

    def lock(self, path: Path) -> Lock:
        if not os.access(path.parent, os.W_OK | os.X_OK):
            # The lock's file may be there all the same; the first flush would be the one to fail.
            raise PermissionError(errno.EACCES, "nothing can be written there", str(path.parent))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return PosixLock(descriptor)
