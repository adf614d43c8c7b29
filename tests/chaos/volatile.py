"""Files whose bytes stay in the process until they are synced: a kill acts as a power cut. Their
disk may be full, hang or be slow (see ``disk``).

The page cache survives a killed process, so a kill alone never shows that something was answered
before it was durable. Here unsynced bytes die with the process. All handles of a file see them,
like the page cache. Names are durable at once; losing those is left to simulated disks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bookie_server.core.disk_space import Space
from bookie_server.storage.fs.posix_fs import PosixFile, PosixFileSystem
from bookie_server.storage.fs.vfs import File
from tests.chaos import disk, wall_clock
from tests.chaos.disk import Disk

SYNC_S = 0.01
"""How long a sync takes. As on a real disk, a power cut can come between an early answer and the
sync."""


class _Unsynced:
    """Unsynced writes to one file, oldest first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.writes: list[tuple[int, bytes, PosixFile]] = []
        self.closing: list[PosixFile] = []
        """Files that were closed with unsynced writes."""

    def end(self) -> int:
        """The end of the last unsynced write; 0 for none."""
        return max((offset + len(data) for offset, data, _ in self.writes), default=0)

    def over(self, data: bytes, offset: int, length: int) -> bytes:
        """What a read of ``length`` bytes returns if the disk has ``data`` there."""
        if not self.writes:
            return data
        seen = bytearray(data)
        grown = min(self.end() - offset, length) - len(seen)
        if grown > 0:
            seen += bytes(grown)
        for at, written, _ in self.writes:
            first, last = max(at, offset), min(at + len(written), offset + length)
            if first < last:
                seen[first - offset : last - offset] = written[first - at : last - at]
        return bytes(seen)


class VolatileFile:
    """A file of ``VolatileFileSystem``."""

    def __init__(self, file: PosixFile, unsynced: _Unsynced, disk: Disk) -> None:
        self._file = file
        self._disk = disk
        self._unsynced = unsynced

    @property
    def path(self) -> Path:
        return self._file.path

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        data = b"".join(buffers)
        if data:
            with self._unsynced.lock:
                if offset + len(data) > max(self._file.size(), self._unsynced.end()):
                    self._disk.grow(self.path)
                self._unsynced.writes.append((offset, data, self._file))

    def pread(self, length: int, offset: int) -> bytes:
        self._disk.read(self.path)
        with self._unsynced.lock:
            return self._unsynced.over(self._file.pread(length, offset), offset, length)

    def pread_split(self, cut: int, length: int, offset: int) -> tuple[bytes, bytes]:
        data = self.pread(length, offset)
        return data[:cut], data[cut:]

    def fdatasync(self) -> None:
        self._disk.sync(self.path)
        time.sleep(SYNC_S)
        with self._unsynced.lock:
            for offset, data, file in self._unsynced.writes:
                file.pwritev([data], offset)
            self._file.fdatasync()
            self._unsynced.writes.clear()
            for file in self._unsynced.closing:
                file.close()
            self._unsynced.closing.clear()

    def drop_cached(self, offset: int, length: int) -> None:
        self._file.drop_cached(offset, length)

    def preallocate(self, size: int, *, unwritten: bool = False) -> None:
        if size > self._file.size():
            self._disk.grow(self.path)
        self._file.preallocate(size, unwritten=unwritten)

    def size(self) -> int:
        with self._unsynced.lock:
            return max(self._file.size(), self._unsynced.end())

    def punch(self, offset: int, length: int) -> None:
        self._file.punch(offset, length)

    def hole_bytes(self) -> int:
        return self._file.hole_bytes()

    def close(self) -> None:
        with self._unsynced.lock:
            if any(file is self._file for _, _, file in self._unsynced.writes):
                self._unsynced.closing.append(self._file)
            else:
                self._file.close()


class VolatileFileSystem(PosixFileSystem):
    """The machine's files, with a page cache that is lost when the process dies."""

    def __init__(self) -> None:
        super().__init__()
        self._unsynced: dict[int, _Unsynced] = {}
        self._disk = Disk()

    def create(self, path: Path, *, direct: bool = False) -> File:
        made = super().create(path, direct=direct)
        self._unsynced[path.stat().st_ino] = _Unsynced()
        return self._volatile(made, path)

    def open(self, path: Path, *, writable: bool = False, direct: bool = False) -> File:
        return self._volatile(super().open(path, writable=writable, direct=direct), path)

    def remove(self, path: Path) -> None:
        inode = path.stat().st_ino
        super().remove(path)
        self._unsynced.pop(inode, None)

    def space(self, directory: Path) -> Space:
        return self._disk.space(directory, super().space(directory))

    def _volatile(self, file: File, path: Path) -> VolatileFile:
        assert isinstance(file, PosixFile)
        unsynced = self._unsynced.setdefault(path.stat().st_ino, _Unsynced())
        return VolatileFile(file, unsynced, self._disk)


def install() -> None:
    """Make bookies of this process use such files."""
    import bookie_server.opening

    bookie_server.opening.PosixFileSystem = VolatileFileSystem  # type: ignore[attr-defined]


def command(python: str, directory: Path, config: Path) -> tuple[list[str], dict[str, str]]:
    """Like ``spark_ledger.local.bookie.command``, for a bookie whose kill is a power cut."""
    from spark_ledger.local.bookie import ready_file

    argv = [python, "-m", "tests.chaos.bookie", "--config", str(config), "--format"]
    argv += ["--ready-file", str(ready_file(directory))]
    root = str(Path(__file__).parent.parent.parent)
    before = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, [root, before]))
    return argv, {
        "PYTHONPATH": path,
        **wall_clock.environment(directory),
        **disk.environment(directory),
    }
