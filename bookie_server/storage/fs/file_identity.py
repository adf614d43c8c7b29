"""Which file or directory a path is, with the time of its birth, which Python does not tell.

A file system gives the inode of a deleted directory to the next one that is made, so a copy in the
place of the original may well have the same number. It never has the same time of birth.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bookie_server.storage.fs.vfs import FileIdentity

_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800


class _Timestamp(ctypes.Structure):
    _fields_ = (
        ("seconds", ctypes.c_int64),
        ("nanoseconds", ctypes.c_uint32),
        ("reserved", ctypes.c_int32),
    )


class _Statx(ctypes.Structure):
    """``struct statx`` of Linux up to what is read here; the kernel fills 256 bytes."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("before_times", ctypes.c_uint8 * 60),
        ("accessed", _Timestamp),
        ("born", _Timestamp),
        ("rest", ctypes.c_uint8 * 160),
    )


assert ctypes.sizeof(_Statx) == 256, "the layout of struct statx"


def file_identity(path: Path) -> FileIdentity:
    """Raises FileNotFoundError if there is nothing. The birth is 0 where it is not known."""
    return FileIdentity(path.stat().st_ino, _born_ns(path))


def _born_ns(path: Path) -> int:
    statx = _statx()
    answer = _Statx()
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, ctypes.byref(answer)):
        return 0
    if not answer.mask & _STATX_BTIME:
        return 0
    seconds: int = answer.born.seconds
    nanoseconds: int = answer.born.nanoseconds
    return seconds * 1_000_000_000 + nanoseconds


@functools.cache
def _statx() -> Callable[..., int] | None:
    """The C library's function; None where there is none."""
    return getattr(ctypes.CDLL(None), "statx", None)
