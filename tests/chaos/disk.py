"""A disk that is full, hangs or is slow for one bookie, while a file says so.

The index's own file (LMDB) is written past it. A full disk still takes what fits into blocks that
were reserved before, as a real one does.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Final

from bookie_server.core.disk_space import Space

VARIABLE: Final = "SPARK_LEDGER_TEST_DISK"
"""Environment variable that names the file: a state and a directory's name, as text."""

STATES: Final = ("full", "hangs-at-syncs", "hangs-at-reads", "slow")
SLOW_S: Final = 0.3
LOOK_S: Final = 0.02


def environment(directory: Path) -> dict[str, str]:
    """The environment of a bookie whose disk can be made sick, in this directory."""
    return {VARIABLE: str(directory / "disk")}


def fall_sick(directory: Path, state: str, part: str) -> None:
    """From now on: the journal's disk, or that of the ledgers, of the bookie in a directory."""
    assert state in STATES, state
    temporary = directory / "disk.new"
    temporary.write_text(f"{state} {part}")
    temporary.replace(directory / "disk")


def get_well(directory: Path) -> None:
    """Nothing happens if it is well."""
    (directory / "disk").unlink(missing_ok=True)


class Disk:
    """The disk of this process, as the storage meets it."""

    def __init__(self) -> None:
        self._file = Path(os.environ.get(VARIABLE, "/nonexistent"))

    def grow(self, path: Path) -> None:
        """A file takes more blocks. Raises OSError while the disk is full."""
        if self._is(path, "full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def sync(self, path: Path) -> None:
        """A file is synced: hangs, or takes its time."""
        while self._is(path, "hangs-at-syncs"):
            time.sleep(LOOK_S)
        if self._is(path, "slow"):
            time.sleep(SLOW_S)

    def read(self, path: Path) -> None:
        """A file is read: hangs."""
        while self._is(path, "hangs-at-reads"):
            time.sleep(LOOK_S)

    def space(self, path: Path, real: Space) -> Space:
        """What the disk says of itself."""
        return real._replace(free_bytes=0) if self._is(path, "full") else real

    def _is(self, path: Path, state: str) -> bool:
        try:
            now, _, part = self._file.read_text().partition(" ")
        except FileNotFoundError:
            return False
        return now == state and part in path.parts
