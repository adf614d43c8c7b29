"""LMDB's errors as those of every index: OSError and CorruptionError."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import lmdb

from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB

_FILLED_UP_BYTES: Final = MIB
"""A disk with less free than this was filled up by a write that LMDB calls an input/output error.
LMDB writes at most 256 KiB of pages at once, and what a file system keeps back comes on top."""


def found_no_space(error: lmdb.Error, path: Path) -> bool:
    """Whether the disk or the map of the index in ``path`` is full: then nothing was committed, and
    the old pages are in use.

    A disk that has room for a part of the pages takes that part, and LMDB has one error for this
    and for a disk that fails. What is free afterwards tells the two apart.
    """
    if isinstance(error, lmdb.DiskError | lmdb.MapFullError):
        return True
    if os.strerror(errno.EIO) not in str(error):
        return False
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize < _FILLED_UP_BYTES


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn LMDB's errors into OSError and CorruptionError that name the directory."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise OSError(errno.ENOSPC, f"index {path}: {error} (see index_map_bytes)") from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as error:
        raise CorruptionError(f"index {path} is damaged: {error}") from error
    except lmdb.Error as error:
        number = errno.ENOSPC if found_no_space(error, path) else errno.EIO
        raise OSError(number, f"index {path}: {error}") from error
