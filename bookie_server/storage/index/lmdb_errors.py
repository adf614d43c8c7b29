"""LMDB's errors as those of every index: OSError and CorruptionError."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import lmdb

from bookie_server.storage.fs.vfs import is_no_space
from bookie_server.storage.index.base import IndexLostError
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB

_FILLED_UP_BYTES: Final = MIB
"""A disk with less free than this was filled up by a write that LMDB calls an input/output error.
LMDB writes at most 256 KiB of pages at once, and what a file system keeps back comes on top."""


def found_no_space(error: lmdb.Error, path: Path) -> bool:
    """Whether the disk or the map of the index in ``path`` is full: then nothing was committed, and
    the old pages are in use.

    A disk that has room for a part of the pages takes that part, and LMDB has one error for this
    and for a disk that fails. What is free afterwards tells the two apart; and where that is a
    quota, which not every file system shows as such, what the disk takes.
    """
    if isinstance(error, lmdb.DiskError | lmdb.MapFullError):
        return True
    if os.strerror(errno.EDQUOT) in str(error):  # LMDB has no class for it
        return True
    if os.strerror(errno.EIO) not in str(error):
        return False
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize < _FILLED_UP_BYTES or _refuses_bytes(path)


def _refuses_bytes(path: Path) -> bool:
    """Whether the disk has no room, or the quota on it, for as much as a write of LMDB takes."""
    try:
        with TemporaryFile(dir=path) as file:  # without a name: a kill leaves nothing behind
            os.posix_fallocate(file.fileno(), 0, _FILLED_UP_BYTES)
    except OSError as error:
        return is_no_space(error)
    return False


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn LMDB's errors into OSError and CorruptionError that name the directory."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise OSError(errno.ENOSPC, f"index {path}: {error} (see index_map_bytes)") from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as error:
        raise CorruptionError(f"index {path} is damaged: {error}") from error
    except lmdb.PanicError as error:  # its root may be half written: see ``IndexLostError``
        raise IndexLostError(errno.EIO, f"index {path}: {error}") from error
    except lmdb.Error as error:
        number = errno.EIO if os.strerror(errno.EIO) in str(error) else errno.EINVAL
        if found_no_space(error, path):
            number = errno.ENOSPC  # the three apart: a failed disk is tried again, then replaced
        raise OSError(number, f"index {path}: {error}") from error
