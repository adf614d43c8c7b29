"""A file system around another one that fails where it is told to. For tests and simulation.

``plan`` is asked before every operation, and may let it pass, make it fail with an errno, make a
write stop half-way with an errno, or do anything else by raising (a simulated crash).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bookie_server.core.disk_space import Space
from bookie_server.storage.fs.memory_fs import MemoryFile
from bookie_server.storage.fs.vfs import File, FileIdentity, FileSystem, Lock, check_aligned


class Operation(NamedTuple):
    """One call. ``kind`` is the method's name; ``number`` counts all calls from 1."""

    kind: str
    path: Path
    number: int


class Fault(NamedTuple):
    """How an operation fails. ``write_part`` of a write's bytes are written before."""

    error_number: int
    write_part: float = 0.0


Plan = Callable[[Operation], Fault | None]


class FaultFileSystem:
    """See ``vfs.FileSystem``. Changes and reads are counted and may fail; closing never does.

    Direct files are not direct inside: a write that fails half-way ends anywhere.
    """

    def __init__(self, inner: FileSystem, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan
        self.operations = 0

    def ask(self, kind: str, path: Path) -> Fault | None:
        """Count an operation and ask the plan about it."""
        self.operations += 1
        return self._plan(Operation(kind, path, self.operations))

    def check(self, kind: str, path: Path) -> None:
        """Count an operation and fail it if the plan says so."""
        fault = self.ask(kind, path)
        if fault is not None:
            raise failure(fault, path)

    def create(self, path: Path, *, direct: bool = False) -> File:
        self.check("create", path)
        return _FaultFile(self, self._inner.create(path), direct)

    def open(self, path: Path, *, writable: bool = False, direct: bool = False) -> File:
        self.check("open", path)
        return _FaultFile(self, self._inner.open(path, writable=writable), direct)

    def rename(self, source: Path, target: Path) -> None:
        self.check("rename", source)
        self._inner.rename(source, target)

    def remove(self, path: Path) -> None:
        self.check("remove", path)
        self._inner.remove(path)

    def list(self, directory: Path) -> Sequence[str]:
        self.check("list", directory)
        return self._inner.list(directory)

    def exists(self, path: Path) -> bool:
        return self._inner.exists(path)

    def mkdir(self, path: Path) -> None:
        self.check("mkdir", path)
        self._inner.mkdir(path)

    def sync_directory(self, path: Path) -> None:
        self.check("sync_directory", path)
        self._inner.sync_directory(path)

    def space(self, directory: Path) -> Space:
        return self._inner.space(directory)

    def identity(self, path: Path) -> FileIdentity:
        return self._inner.identity(path)

    def lock(self, path: Path) -> Lock:
        return self._inner.lock(path)


class _FaultFile:
    """See ``vfs.File``."""

    def __init__(self, file_system: FaultFileSystem, inner: File, direct: bool) -> None:
        self._file_system = file_system
        self._inner = inner
        self._direct = direct

    @property
    def path(self) -> Path:
        return self._inner.path

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        if self._direct:
            check_aligned(offset, sum(map(len, buffers)))
        fault = self._file_system.ask("pwritev", self.path)
        if fault is None:
            self._inner.pwritev(buffers, offset)
            return
        content = b"".join(buffers)
        written = content[: int(len(content) * fault.write_part)]
        if written:
            self._inner.pwritev([written], offset)
        raise failure(fault, self.path)

    def pread(self, length: int, offset: int) -> bytes:
        self._file_system.check("pread", self.path)
        return self._inner.pread(length, offset)

    def pread_split(self, cut: int, length: int, offset: int) -> tuple[bytes, bytes]:
        self._file_system.check("pread", self.path)
        return self._inner.pread_split(cut, length, offset)

    def fdatasync(self) -> None:
        fault = self._file_system.ask("fdatasync", self.path)
        if fault is not None:
            if isinstance(self._inner, MemoryFile):
                self._inner.fail_sync()
            raise failure(fault, self.path)
        self._inner.fdatasync()

    def drop_cached(self, offset: int, length: int) -> None:
        self._inner.drop_cached(offset, length)

    def preallocate(self, size: int, *, unwritten: bool = False) -> None:
        self._file_system.check("preallocate", self.path)
        self._inner.preallocate(size, unwritten=unwritten)

    def size(self) -> int:
        return self._inner.size()

    def punch(self, offset: int, length: int) -> None:
        self._file_system.check("punch", self.path)
        self._inner.punch(offset, length)

    def hole_bytes(self) -> int:
        return self._inner.hole_bytes()

    def close(self) -> None:
        self._inner.close()


def failure(fault: Fault, path: Path) -> OSError:
    """The error of a fault; its class follows the errno, as the system's own do."""
    return OSError(fault.error_number, os.strerror(fault.error_number), str(path))
