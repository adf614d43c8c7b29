"""Holes in files: ranges whose disk blocks were given back, and that read as zeros. Linux only."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from typing import Final

_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2
_STAT_BLOCK_BYTES: Final = 512


def punch(descriptor: int, offset: int, length: int) -> None:
    """Give the disk blocks of a range back. Raises OSError, with EOPNOTSUPP where the operating
    system or the file system has no such thing."""
    fallocate = _fallocate()
    if fallocate is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    if fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length):
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number))


def hole_bytes(descriptor: int) -> int:
    """Bytes of a file that no disk block holds.

    A file system that compresses takes fewer blocks for a file without holes, and one that reserves
    blocks may show them as holes until they are written. So a hole is what both say.
    """
    found = os.fstat(descriptor)
    missing = found.st_size - found.st_blocks * _STAT_BLOCK_BYTES
    if missing <= 0:
        return 0
    data_bytes = end = 0
    while end < found.st_size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # a hole up to the end
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        data_bytes += end - start
    return max(0, min(missing, found.st_size - data_bytes))


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """``fallocate`` of the C library, if it has one."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    found: Callable[[int, int, int, int], int] = function
    return found
