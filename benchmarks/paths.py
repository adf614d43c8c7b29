"""Where a benchmark keeps what lasts (``.bench/``) and what goes when it ends (scratch)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".bench"
"""Jars of the peers and compiled drivers. ``make clean`` removes it."""

FREE_BYTES_MIN = 12 << 30
"""The largest case writes 1.5 GB three times over, to journals and to entry logs: 9 GB."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one run, on the disk of the repository, where temporary files go as well.

    ``/tmp`` may be memory, where a synced journal costs nothing. Everything goes at the end.
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
    """What is free on the disk that a benchmark writes to."""
    CACHE.mkdir(exist_ok=True)
    return shutil.disk_usage(CACHE).free
