"""A bookie's disk: files in memory that survive crashes as a disk would let them, or nearly.

Faults are asked for by name and strike at the next operations. ``PowerCut`` is no error that the
storage could handle: the machine is off, and what the disk holds is settled at that instant.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Final, Self

from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, failure
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.ledgers.entry_log import log_path
from bookie_server.storage.ledgers.index import BlockLocation
from bookie_server.storage.records import RECORD_HEADER_BYTES
from spark_ledger.types import BookieId
from tests.sim.base import SimBase


class _Path(PosixPath):
    """Joins the same names once only: a bookie's files have few names, and paths are slow."""

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

_formatted: dict[str, MemoryFileSystem] = {}


class PowerCut(BaseException):
    """The machine stopped in the middle of an operation."""


def formatted(bookie_id: BookieId) -> MemoryFileSystem:
    """The disk of a new bookie."""
    files = _formatted.get(bookie_id)
    if files is None:
        files = _formatted[bookie_id] = MemoryFileSystem()
        format_directories(files, JOURNAL, LEDGERS, cluster_id="sim", bookie_id=bookie_id)
    return files.crash_clone(None)


class Disk:
    """One machine's disk over all its crashes."""

    def __init__(self, world: SimBase, bookie_id: BookieId) -> None:
        self.world = world
        self.bookie_id = bookie_id
        self.draw: random.Random = world.stream(f"disk {bookie_id}")
        self.files = formatted(bookie_id)
        self.full = False
        self.error_in = 0
        """The so-manyth change from now on fails with EIO; 0: none."""
        self.cut_in = 0
        """The so-manyth change from now on never ends, because the power is cut; 0: none."""
        self.meanwhile: Callable[[], None] | None = None
        """Called before an operation: what other threads do while this one waits for the disk."""
        self._dead = False

    def attach(self) -> FaultFileSystem:
        """The disk as the next run of the bookie sees it."""
        self._dead = False
        return _FileSystem(self)

    def crash(self, kind: str) -> None:
        """The machine or the process stops. ``kind``: process, power, lottery."""
        if self._dead:
            return  # settled already, in the middle of an operation
        self._dead = True
        self.error_in = self.cut_in = 0
        if kind == "process":
            self.files._locks.clear()
            return  # the kernel lives and keeps what was written
        seed = None if kind == "power" else self.draw.getrandbits(32)
        self.files = self.files.crash_clone(seed)

    def flip(self) -> str:
        """Change one bit in an entry log; where, or "" if there is nothing yet.

        Not in the journal: damage of its last batch is a torn tail to whoever reads it, and costs
        a bookie fences that it has answered. No quorum is made for that.
        """
        logs = [
            directory / name
            for directory in LEDGERS
            for name in self.files.list(directory)
            if name.endswith(".log")
        ]
        logs = [path for path in logs if self.files.open(path).size() > 0]
        if not logs:
            return ""
        path = self.draw.choice(logs)
        return self.flip_at(path, self.draw.randrange(self.files.open(path).size()))

    def lose_block(self, block: BlockLocation) -> str:
        """A block never reached the disk, although a sync said that it had."""
        path = log_path(LEDGERS[0], block.log_id)
        self.files.damage(path, block.offset, bytes(RECORD_HEADER_BYTES + block.length))
        return f"{path.name}, block at {block.offset}"

    def misdirect_block(self, block: BlockLocation, place: BlockLocation) -> str:
        """A block was written where another one is."""
        source = self.files.open(log_path(LEDGERS[0], block.log_id))
        length = RECORD_HEADER_BYTES + min(block.length, place.length)
        path = log_path(LEDGERS[0], place.log_id)
        self.files.damage(path, place.offset, source.pread(length, block.offset))
        return f"{path.name}, block at {place.offset}"

    def flip_at(self, path: Path, offset: int) -> str:
        """Change one bit of a byte."""
        (byte,) = self.files.open(path).pread(1, offset)
        self.files.damage(path, offset, bytes([byte ^ (1 << self.draw.randrange(8))]))
        return f"{path.name}, byte {offset}"

    def plan(self, kind: str, path: Path) -> Fault | None:
        """How an operation ends."""
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
        if self.full and kind in _WRITES and "journal" not in path.parts[2]:
            return Fault(errno.ENOSPC)
        return None


class _FileSystem(FaultFileSystem):
    """Asks the disk about an operation without making a record of it."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.files, lambda operation: disk.plan(operation.kind, operation.path))
        self.ask = disk.plan  # type: ignore[method-assign]

    def check(self, kind: str, path: Path) -> None:
        fault = self.ask(kind, path)
        if fault is not None:
            raise failure(fault, path)
