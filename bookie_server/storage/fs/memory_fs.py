"""A file system in memory that can crash: what was not synced is lost, wholly or in part.

It keeps, beside what programs see, what would survive a power cut. ``crash_clone`` is the machine
after one: without a seed everything unsynced is gone; with a seed each unsynced block of 512 bytes
is kept or lost at random, and each directory keeps a random number of the first of its unsynced
changes. That is all that rule S11 lets the storage assume, and the worst that it allows.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from weakref import WeakSet

from bookie_server.core.disk_space import Space
from bookie_server.storage.fs.vfs import DIRECT_ALIGNMENT, File, FileIdentity, Lock, check_aligned

CRASH_BLOCK_BYTES: Final = 512
"""The unit that a disk writes wholly or not at all."""

_ENDLESS_BYTES: Final = 1 << 50


class _Inode:
    """Bytes as programs see them and as the disk holds them, and what a sync would write."""

    def __init__(self, data: bytes | bytearray = b"", number: int = 0) -> None:
        self.number = number
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.dirty: list[tuple[int, int]] = []
        self.holes: set[int] = set()
        """Numbers of the pages that were given back, as programs see them."""

    @property
    def hole_bytes(self) -> int:
        return len(self.holes) * DIRECT_ALIGNMENT

    def write(self, content: bytes, offset: int) -> None:
        end = offset + len(content)
        if end > len(self.data):
            _resize(self.data, end)
        self.data[offset:end] = content
        self.dirty.append((offset, end))
        if self.holes:
            self.holes.difference_update(_pages(offset, end + DIRECT_ALIGNMENT - 1))

    def punch(self, offset: int, length: int) -> None:
        end = min(offset + length, len(self.data))
        self.write(bytes(end - offset), offset)
        self.holes.update(_pages(offset, end))

    def sync(self) -> None:
        if len(self.durable) != len(self.data):
            _resize(self.durable, len(self.data))
        for start, end in self.dirty:
            self.durable[start:end] = self.data[start:end]
        self.dirty.clear()

    def after_crash(self, choose: random.Random | None) -> _Inode:
        if choose is None or self.data == self.durable:
            return self._copied(self.durable)
        size = choose.choice((len(self.data), len(self.durable)))
        mixed = bytearray(self.durable[:size].ljust(size, b"\0"))
        for start in range(0, size, CRASH_BLOCK_BYTES):
            end = min(start + CRASH_BLOCK_BYTES, size)
            block = bytes(self.data[start:end]).ljust(end - start, b"\0")
            if block != mixed[start:end] and choose.random() < 0.5:
                mixed[start:end] = block
        return self._copied(mixed)

    def _copied(self, data: bytearray) -> _Inode:
        """With other bytes, and the holes that are still empty."""
        copied = _Inode(data, self.number)
        for page in self.holes:
            start = page * DIRECT_ALIGNMENT
            if data[start : start + DIRECT_ALIGNMENT].count(0) == DIRECT_ALIGNMENT:
                copied.holes.add(page)
        return copied


def _pages(start: int, end: int) -> range:
    """Numbers of the whole pages between two offsets, the first of which is at or before one."""
    return range(start // DIRECT_ALIGNMENT, end // DIRECT_ALIGNMENT)


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


class _Change:
    """A change of a directory that is not durable yet: names to inodes, None to remove."""

    def __init__(self, names: dict[str, _Inode | None]) -> None:
        self.names = names

    def apply(self, entries: dict[str, _Inode]) -> None:
        for name, inode in self.names.items():
            if inode is None:
                entries.pop(name, None)
            else:
                entries[name] = inode


class _Directory:
    """Names as programs see them, as the disk holds them, and the changes between."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.entries: dict[str, _Inode] = {}
        self.durable: dict[str, _Inode] = {}
        self.unsynced: list[_Change] = []
        self.below: set[str] = set()
        """Names of the directories in it."""

    def change(self, names: dict[str, _Inode | None]) -> None:
        change = _Change(names)
        change.apply(self.entries)
        self.unsynced.append(change)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.unsynced.clear()

    def after_crash(self, choose: random.Random | None) -> dict[str, _Inode]:
        entries = dict(self.durable)
        kept = choose.randint(0, len(self.unsynced)) if choose else 0
        for change in self.unsynced[:kept]:
            change.apply(entries)
        return entries


class MemoryDisk:
    """The disk under some directories: its size, and what others have stored on it."""

    def __init__(self, size_bytes: int, directories: Sequence[Path]) -> None:
        self.size_bytes = size_bytes
        self.directories = tuple(str(directory) for directory in directories)
        self.others_bytes = 0
        """Stored by somebody else. A test fills and empties the disk with it."""

    def holds(self, path: str) -> bool:
        """Whether a directory is on this disk."""
        return any(path == each or path.startswith(f"{each}/") for each in self.directories)


class MemoryFile:
    """See ``vfs.File``."""

    def __init__(
        self,
        path: Path,
        inode: _Inode,
        *,
        direct: bool = False,
        take: Callable[[int], None] | None = None,
    ) -> None:
        """``take`` raises ENOSPC unless so many more bytes fit on the disk."""
        self._path = path
        self._inode = inode
        self._direct = direct
        self._take = take
        self.is_closed = False

    @property
    def path(self) -> Path:
        return self._path

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        content = b"".join(buffers)
        if self._direct:  # and a cache of the disk may still lose it, as it may lose any other
            check_aligned(offset, len(content))
        self._grow(offset + len(content))
        self._inode.write(content, offset)

    def pread(self, length: int, offset: int) -> bytes:
        assert offset >= 0 and length >= 0, f"read of {length} bytes at offset {offset}"
        return bytes(self._inode.data[offset : offset + length])

    def pread_split(self, cut: int, length: int, offset: int) -> tuple[bytes, bytes]:
        data = self.pread(length, offset)
        return data[:cut], data[cut:]

    def fdatasync(self) -> None:
        self._inode.sync()

    def fail_sync(self) -> None:
        """Do what a kernel does when a sync fails: the pages stay readable and count as clean, so
        a later sync that succeeds does not write them."""
        self._inode.dirty.clear()

    def drop_cached(self, offset: int, length: int) -> None:
        pass  # all of it is memory

    def _grow(self, size: int) -> None:
        growth = size - len(self._inode.data)
        if growth > 0 and self._take is not None:
            self._take(growth)

    def preallocate(self, size: int, *, unwritten: bool = False) -> None:
        self._grow(size)
        _resize(self._inode.data, max(size, len(self._inode.data)))

    def size(self) -> int:
        return len(self._inode.data)

    def punch(self, offset: int, length: int) -> None:
        check_aligned(offset, length)
        self._inode.punch(offset, length)

    def hole_bytes(self) -> int:
        return self._inode.hole_bytes

    def close(self) -> None:
        self.is_closed = True


class _MemoryLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


def _split(path: Path) -> tuple[str, str]:
    """A path's directory and its name there. Texts are many times cheaper to compare than paths,
    and simulations open files all the time."""
    directory, _, name = str(path).rpartition("/")
    return directory or "/", name


class MemoryFileSystem:
    """See ``vfs.FileSystem``. Directories are durable at once: they are made at format time."""

    def __init__(self) -> None:
        self._directories: dict[str, _Directory] = {}
        self._locks: set[str] = set()
        self._numbered = 0
        """Files and directories are numbered as they are made."""
        self.disks: tuple[MemoryDisk, ...] = ()
        """Disks of a limited size; crashes leave them as they are. Without any, all is free."""
        self._opened_lock = threading.Lock()
        self._opened: WeakSet[MemoryFile] = WeakSet()
        """Of files on such disks: one that was removed takes its space until the last is closed."""

    def space(self, directory: Path) -> Space:
        disk = self._disk(str(directory))
        if disk is None:
            return Space(_ENDLESS_BYTES, _ENDLESS_BYTES)
        return Space(disk.size_bytes, max(0, self._free_bytes(disk)))

    def _disk(self, directory: str) -> MemoryDisk | None:
        return next((disk for disk in self.disks if disk.holds(directory)), None)

    def _free_bytes(self, disk: MemoryDisk) -> int:
        with self._opened_lock:  # another thread may open one meanwhile
            opened = list(self._opened)
        inodes = {
            file._inode
            for file in opened
            if not file.is_closed and disk.holds(_split(file.path)[0])
        }
        for path, directory in self._directories.items():
            if disk.holds(path):
                inodes.update(directory.entries.values())
        used = sum(len(inode.data) - inode.hole_bytes for inode in inodes)
        return disk.size_bytes - disk.others_bytes - used

    def _taking(self, path: Path) -> Callable[[int], None] | None:
        disk = self._disk(_split(path)[0]) if self.disks else None
        if disk is None:
            return None

        def take(growth: int) -> None:
            if growth > self._free_bytes(disk):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        return take

    def create(self, path: Path, *, direct: bool = False) -> File:
        parent, name = _split(path)
        directory = self._directory(parent)
        if name in directory.entries:
            raise FileExistsError(errno.EEXIST, "file exists", str(path))
        inode = _Inode(number=self._next_number())
        directory.change({name: inode})
        return self._file(path, inode, direct=direct)

    def open(self, path: Path, *, writable: bool = False, direct: bool = False) -> File:
        return self._file(path, self._inode(path), direct=direct)

    def _file(self, path: Path, inode: _Inode, *, direct: bool) -> MemoryFile:
        take = self._taking(path)
        file = MemoryFile(path, inode, direct=direct, take=take)
        if take is not None:
            with self._opened_lock:
                self._opened.add(file)
        return file

    def rename(self, source: Path, target: Path) -> None:
        (parent, old), (target_parent, new) = _split(source), _split(target)
        assert parent == target_parent, "renames stay in their directory"
        inode = self._inode(source)
        self._directory(parent).change({old: None, new: inode})

    def remove(self, path: Path) -> None:
        self._inode(path)
        parent, name = _split(path)
        self._directory(parent).change({name: None})

    def list(self, directory: Path) -> Sequence[str]:
        found = self._directory(str(directory))
        return sorted(found.entries.keys() | found.below)

    def exists(self, path: Path) -> bool:
        parent, name = _split(path)
        directory = self._directories.get(parent)
        if directory is not None and name in directory.entries:
            return True
        return str(path) in self._directories

    def mkdir(self, path: Path) -> None:
        if str(path) in self._directories:
            return
        for directory in (*reversed(path.parents), path):
            if str(directory) not in self._directories:
                self._directories[str(directory)] = _Directory(self._next_number())
                place, name = _split(directory)
                if name:
                    self._directories[place].below.add(name)

    def sync_directory(self, path: Path) -> None:
        self._directory(str(path)).sync()

    def identity(self, path: Path) -> FileIdentity:
        directory = self._directories.get(str(path))
        number = self._inode(path).number if directory is None else directory.number
        return FileIdentity(number, number)

    def lock(self, path: Path) -> Lock:
        self._directory(_split(path)[0])
        if str(path) in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "lock is held", str(path))
        self._locks.add(str(path))
        return _MemoryLock(self._locks, str(path))

    def crash_clone(self, seed: int | None) -> MemoryFileSystem:
        """What is on the disk after a power cut now; the file system itself stays as it is."""
        choose = None if seed is None else random.Random(seed)  # noqa: S311
        clone = MemoryFileSystem()
        clone.disks = self.disks
        survivors: dict[int, _Inode] = {}
        for path in sorted(self._directories, key=lambda path: path.split("/")):
            directory = self._directories[path]
            copied = clone._directories[path] = _Directory(directory.number)
            copied.below = set(directory.below)
            for name, inode in sorted(directory.after_crash(choose).items()):
                if id(inode) not in survivors:
                    survivors[id(inode)] = inode.after_crash(choose)
                copied.entries[name] = survivors[id(inode)]
            copied.sync()
        clone._numbered = self._numbered
        return clone

    def copy(self) -> MemoryFileSystem:
        """A copy of everything that programs see now, by other files and directories."""
        made = MemoryFileSystem()
        made._numbered = self._numbered
        for path, directory in self._directories.items():
            copied = made._directories[path] = _Directory(made._next_number())
            copied.below = set(directory.below)
            for name, inode in directory.entries.items():
                copied.entries[name] = _Inode(inode.data, made._next_number())
                copied.entries[name].holes |= inode.holes
            copied.sync()
        return made

    def damage(self, path: Path, offset: int, content: bytes) -> None:
        """Overwrite stored bytes, as a failing disk does."""
        inode = self._inode(path)
        assert offset + len(content) <= len(inode.data), "damage is inside the file"
        inode.write(content, offset)
        inode.sync()

    def cut(self, path: Path, size: int) -> None:
        """Take the end of a stored file away, as a failing file system does."""
        inode = self._inode(path)
        assert size <= len(inode.data), "a file is cut, not extended"
        inode.dirty = [(start, min(end, size)) for start, end in inode.dirty]
        _resize(inode.data, size)
        inode.holes.intersection_update(_pages(0, size))
        inode.sync()

    def _next_number(self) -> int:
        self._numbered += 1
        return self._numbered

    def _directory(self, path: str) -> _Directory:
        try:
            return self._directories[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path) from None

    def _inode(self, path: Path) -> _Inode:
        parent, name = _split(path)
        inode = self._directory(parent).entries.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return inode
