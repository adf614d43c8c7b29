"""Interfaces of files and file systems: every file operation of the storage goes through them.

Implementations: ``posix_fs`` (the machine's), ``memory_fs`` (for simulation; can be crashed),
``fault_fs`` (a wrapper that fails chosen operations). All raise OSError with an errno.

What the storage assumes of a disk (rule S11): data are durable once ``fdatasync`` has returned;
names are durable once ``sync_directory`` of their directory has returned; an interrupted write may
leave any of its sectors written, but harms no byte outside the range written; a file's size may
become durable apart from its data.

A file may be opened ``direct``: its bytes go past the page cache, where that is possible. Writes to
it start and end at multiples of ``DIRECT_ALIGNMENT``; reads may be anywhere. It promises nothing
more: its bytes, too, are durable once ``fdatasync`` has returned.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from bookie_server.core.disk_space import Space

DIRECT_ALIGNMENT: Final = 4096
"""Disks write sectors of 512 or 4096 bytes, and take nothing else from memory directly."""


_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_no_space(error: BaseException) -> bool:
    """Whether an operation was refused because the disk, or the quota on it, is full."""
    return isinstance(error, OSError) and error.errno in _NO_SPACE


class File(Protocol):
    """An open file. Positions are explicit, so threads may read while one thread writes."""

    @property
    def path(self) -> Path:
        """The name the file was opened by, for messages."""

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        """Write all buffers one behind the other from ``offset``: everything, or OSError."""

    def pread(self, length: int, offset: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end of the file."""

    def pread_split(self, cut: int, length: int, offset: int) -> tuple[bytes, bytes]:
        """What ``pread`` returns, in two parts: the first ``cut`` bytes, and those behind them."""

    def fdatasync(self) -> None:
        """Make written bytes, and the size needed to read them, durable."""

    def drop_cached(self, offset: int, length: int) -> None:
        """A hint: durable bytes from ``offset`` on will hardly be read, keep them out of memory."""

    def preallocate(self, size: int, *, unwritten: bool = False) -> None:
        """Reserve disk blocks so that the file is at least ``size`` bytes, zeros where new.

        ``unwritten``: all its blocks were reserved by an earlier call, and none was written.
        """

    def size(self) -> int:
        """Bytes in the file."""

    def punch(self, offset: int, length: int) -> None:
        """Give the disk blocks of a range back: it reads as zeros, and the size stays.

        Both ends are multiples of ``DIRECT_ALIGNMENT``. A crash may bring the bytes back. Raises
        OSError with EOPNOTSUPP where the file system cannot.
        """

    def hole_bytes(self) -> int:
        """Bytes of the file that no disk block holds: those that were punched."""

    def close(self) -> None:
        """Release the file. Closing twice is allowed."""


class Lock(Protocol):
    """A held lock on a file."""

    def release(self) -> None:
        """Give the lock back; another process may take it."""


class FileIdentity(NamedTuple):
    """Which file or directory a name stands for: no other one that is there now has the same, and
    none that comes later has the same time of birth (0: the file system does not tell)."""

    inode: int
    born_ns: int


class FileSystem(Protocol):
    """Files and directories by absolute path."""

    def create(self, path: Path, *, direct: bool = False) -> File:
        """A new empty file for reading and writing; FileExistsError when the name is taken."""

    def open(self, path: Path, *, writable: bool = False, direct: bool = False) -> File:
        """An existing file; FileNotFoundError when there is none."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing the target in one step."""

    def remove(self, path: Path) -> None:
        """Remove a file; FileNotFoundError when there is none."""

    def list(self, directory: Path) -> Sequence[str]:
        """Names in a directory, sorted; FileNotFoundError when there is no such directory."""

    def exists(self, path: Path) -> bool:
        """Whether a file or directory has this name."""

    def mkdir(self, path: Path) -> None:
        """Make a directory and its parents; nothing happens when it is there."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""

    def space(self, directory: Path) -> Space:
        """What the disk under a directory says of its size and of what is free."""

    def identity(self, path: Path) -> FileIdentity:
        """Which file or directory this is; FileNotFoundError when there is none."""

    def lock(self, path: Path) -> Lock:
        """Take an exclusive lock on a file, made if need be; BlockingIOError when it is held."""


def check_aligned(offset: int, size_bytes: int) -> None:
    """Assert that a direct write is aligned, also on a file system that would take any."""
    assert offset % DIRECT_ALIGNMENT == 0, f"direct write at offset {offset}"
    assert size_bytes % DIRECT_ALIGNMENT == 0, f"direct write of {size_bytes} bytes"


def write_file_durably(file_system: FileSystem, path: Path, content: bytes) -> None:
    """Create or replace a file so that a crash leaves the old one or the new one, never a part.

    The content is durable before the name is (rule S11): a name that came first could stand for an
    empty file after a power cut. Raises OSError if the disk fails.
    """
    assert not path.name.endswith(TEMPORARY_SUFFIX), f"{path} would be removed at the next start"
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    if file_system.exists(temporary):
        file_system.remove(temporary)
    file = file_system.create(temporary)
    try:
        file.pwritev([content], 0)
        file.fdatasync()
    finally:
        file.close()
    file_system.rename(temporary, path)
    file_system.sync_directory(path.parent)


def read_file(file_system: FileSystem, path: Path, *, size_max: int) -> bytes:
    """The bytes of a small file. Raises OSError if it is larger than ``size_max``."""
    file = file_system.open(path)
    try:
        size = file.size()
        if size > size_max:
            raise OSError(f"{path}: {size} bytes, at most {size_max} are expected")
        return file.pread(size, 0)
    finally:
        file.close()


TEMPORARY_SUFFIX = ".tmp"
"""Files with this suffix are unfinished; whoever made them removes them at the next start."""
