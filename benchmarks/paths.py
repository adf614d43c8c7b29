"""Directories of a benchmark: a cache that lasts (``.bench/``), and scratch space per run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".bench"
"""Jars of the peers, and compiled drivers. ``make clean`` removes it."""

FREE_BYTES_MIN = 12 << 30
"""The largest case writes 1.5 GB three times, to journals and to entry logs: 9 GB."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one run, on the disk of the repository, also for temporary files.

    ``/tmp`` may be in memory, where a synced journal costs nothing. It is removed at the end.
    """
    CACHE.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=CACHE))
    before = tempfile.tempdir
    tempfile.tempdir = str(directory)
    try:
        yield directory
    finally:
        tempfile.tempdir = before
        shutil.rmtree(directory, ignore_errors=True)


def free_bytes() -> int:
    """Free bytes on the disk that benchmarks write to."""
    CACHE.mkdir(exist_ok=True)
    return shutil.disk_usage(CACHE).free
