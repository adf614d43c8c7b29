"""The lock file of an LMDB index has its blocks before LMDB maps it.

LMDB makes it without any, and writes to it through memory: on a disk without a free block that ends
the process by SIGBUS, which no program can catch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from spark_ledger.limits import KIB

LOCK_NAME: Final = "lock.mdb"
_LOCK_BYTES: Final = 12 * KIB
"""LMDB needs some 8 KiB for 126 readers, and uses what is there."""


def reserve_lock_file(path: Path) -> None:
    """Make the lock file of the index in ``path`` if it is missing; one that is there was in use.

    Raises OSError if there is no space for it.
    """
    if (path / LOCK_NAME).exists():
        return
    unfinished = path / f"{LOCK_NAME}.tmp"
    try:
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
        finally:
            os.close(descriptor)
        unfinished.rename(path / LOCK_NAME)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, f"index {path}: {error.strerror}") from error
