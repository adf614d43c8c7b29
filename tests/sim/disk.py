"""A simulated disk of a bookie: files in memory, and what a crash leaves of them.

Faults are requested by name and strike at the next operations. ``PowerCut`` is not an error that
storage could handle: the machine is off, and the content of the disk is settled at that moment.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Final, Self

from bookie_server.core.disk_space import Space
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, failure
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index.base import BlockLocation
from bookie_server.storage.journal.files import journal_numbers, journal_path
from bookie_server.storage.ledgers.entry_log import block_path
from bookie_server.storage.records import RECORD_HEADER_BYTES
from spark_ledger.types import BookieId
from tests.sim.base import SimBase


class _Path(PosixPath):
    """A path that caches its joins: a bookie's files have few names, and building paths is slow."""

    def __truediv__(self, name: str) -> Self:  # type: ignore[override]
        known: dict[str, Self] = self.__dict__
        path = known.get(name)
        if path is None:
            path = known[name] = super().__truediv__(name)
        return path

    def with_name(self, name: str) -> Self:
        known: dict[str, Self] = self.__dict__
        path = known.get(f"../{name}")
        if path is None:
            path = known[f"../{name}"] = super().with_name(name)
        return path


ROOT: Final = _Path("/bookie")
JOURNAL: Final = ROOT / "journal"
LEDGERS: Final = (ROOT / "ledgers",)

_WRITES: Final = frozenset({"create", "pwritev", "preallocate"})
_CHANGES: Final = _WRITES | {"fdatasync", "rename", "remove", "sync_directory"}

_DISK_BYTES: Final = 1 << 40

_formatted: dict[str, MemoryFileSystem] = {}


class PowerCut(BaseException):
    """The machine lost power in the middle of an operation."""


def formatted(bookie_id: BookieId) -> MemoryFileSystem:
    """A new bookie's disk."""
    files = _formatted.get(bookie_id)
    if files is None:
        files = _formatted[bookie_id] = MemoryFileSystem()
        format_directories(files, JOURNAL, LEDGERS, cluster_id="sim", bookie_id=bookie_id)
    return files.crash_clone(None)


class Disk:
    """The disk of one machine, through all its crashes."""

    def __init__(self, world: SimBase, bookie_id: BookieId) -> None:
        self.world = world
        self.bookie_id = bookie_id
        self.draw: random.Random = world.random_for(f"disk {bookie_id}")
        self.files = formatted(bookie_id)
        self.full: frozenset[str] = frozenset()
        """Which of ``journal`` and ``ledgers`` have no room."""
        self.error_in = 0
        """The nth change from now on fails with EIO; 0: none."""
        self.cut_in = 0
        """The power is cut in the nth change from now on; 0: none."""
        self.meanwhile: Callable[[], None] | None = None
        """Called before each operation: what other threads do while this one waits for the disk."""
        self._dead = False
        self.attached: FaultFileSystem
        """What the bookie's last run uses."""

    def attach(self) -> FaultFileSystem:
        """The file system for the bookie's next run."""
        self._dead = False
        self.attached = _FileSystem(self)
        return self.attached

    def crash(self, kind: str) -> None:
        """The process (``process``) or the machine stops. The machine loses everything unsynced
        (``power``), or a random part of it (``lottery``)."""
        if self._dead:
            return  # a power cut in an operation has settled the content
        self._dead = True
        self.error_in = self.cut_in = 0
        if kind == "process":
            self.files._locks.clear()
            return  # the kernel lives and keeps what was written
        seed = None if kind == "power" else self.draw.getrandbits(32)
        self.files = self.files.crash_clone(seed)

    def flip(self) -> str:
        """Flip one bit in an entry log. Returns where, or "" if there is no log yet.

        Never in the journal: damage to its last batch looks like a torn tail, and the bookie would
        lose fences that it has answered. Quorums do not protect against that. Nor in a run log,
        which is a journal, too: of that blocks are lost or misdirected that the index has.
        """
        logs = [
            directory / name
            for directory in LEDGERS
            for name in self.files.list(directory)
            if name.startswith("entries-") and name.endswith(".log")
        ]
        logs = [path for path in logs if self.files.open(path).size() > 0]
        if not logs:
            return ""
        path = self.draw.choice(logs)
        return self.flip_at(path, self.draw.randrange(self.files.open(path).size()))

    def lose_block(self, block: BlockLocation) -> str:
        """Lose a block that a sync reported as written. Returns where."""
        path = block_path(LEDGERS[0], block)
        self.files.damage(path, block.offset, bytes(RECORD_HEADER_BYTES + block.length))
        return f"{path.name}, block at {block.offset}"

    def misdirect_block(self, block: BlockLocation, place: BlockLocation) -> str:
        """Write a block where another one belongs. Returns where."""
        source = self.files.open(block_path(LEDGERS[0], block))
        length = RECORD_HEADER_BYTES + min(block.length, place.length)
        path = block_path(LEDGERS[0], place)
        self.files.damage(path, place.offset, source.pread(length, block.offset))
        return f"{path.name}, block at {place.offset}"

    def lose_newest_journal_file(self) -> str:
        """Remove the newest journal file, which was perhaps made after the last checkpoint. Replay
        has to notice all the same. Returns its name."""
        path = journal_path(JOURNAL, journal_numbers(self.files, JOURNAL)[-1])
        self.files.remove(path)
        self.files.sync_directory(JOURNAL)
        return path.name

    def flip_at(self, path: Path, offset: int) -> str:
        """Flip one bit of a byte. Returns where."""
        (byte,) = self.files.open(path).pread(1, offset)
        self.files.damage(path, offset, bytes([byte ^ (1 << self.draw.randrange(8))]))
        return f"{path.name}, byte {offset}"

    def plan(self, kind: str, path: Path) -> Fault | None:
        """The fault that strikes at an operation, if any."""
        if self._dead:
            raise PowerCut
        if kind not in _CHANGES:
            return None
        if self.meanwhile is not None:
            self.meanwhile()
        if self.cut_in:
            self.cut_in -= 1
            if not self.cut_in:
                self.world.fault("power cut in an operation", f"{self.bookie_id} {kind}")
                self.crash("lottery")
                raise PowerCut
        if self.error_in:
            self.error_in -= 1
            if not self.error_in:
                self.world.fault("disk error", f"{self.bookie_id} {kind} {path.name}")
                part = self.draw.choice([0.0, 0.5])
                return Fault(errno.EIO, part if kind == "pwritev" else 0.0)
        if kind in _WRITES and path.parts[2] in self.full and self._grows(kind, path):
            return Fault(errno.ENOSPC)
        return None

    def _grows(self, kind: str, path: Path) -> bool:
        """Whether an operation takes new blocks: files of the journal have theirs from the start,
        and so have spares."""
        if path.parts[2] != JOURNAL.name or kind == "create":
            return True
        return kind == "preallocate" and not self.files.open(path).size()

    def space(self, directory: Path) -> Space:
        """What the disk says of itself: the marks are passed once it is full."""
        return Space(_DISK_BYTES, 0 if directory.name in self.full else _DISK_BYTES)


class _FileSystem(FaultFileSystem):
    """A file system that asks the disk about each operation without recording it."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.files, lambda operation: disk.plan(operation.kind, operation.path))
        self._disk = disk
        self.ask = disk.plan  # type: ignore[method-assign]

    def space(self, directory: Path) -> Space:
        return self._disk.space(directory)

    def check(self, kind: str, path: Path) -> None:
        fault = self.ask(kind, path)
        if fault is not None:
            raise failure(fault, path)
