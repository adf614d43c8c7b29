"""Tells the C library to keep freed memory, for a process that handles messages of a megabyte.

By default glibc gives the memory of each large message back to the kernel and takes it again for
the next one, page fault by page fault; on virtual machines that costs more than copying the
message. Elsewhere than on glibc this does nothing.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Final

from spark_ledger.limits import MIB

_log = logging.getLogger(__name__)

# mallopt parameters, from malloc.h
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3

_SETTINGS: Final = (
    (_MMAP_THRESHOLD, 32 * MIB),  # the most glibc takes; above the largest message
    (_TRIM_THRESHOLD, 256 * MIB),
    (_TOP_PAD, 16 * MIB),
)


def keep_freed_memory() -> None:
    """Set the allocator for the whole process. Call once, early."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        _log.info("this C library has no mallopt: large messages may cost page faults")
        return
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    for parameter, value in _SETTINGS:
        if mallopt(parameter, value) != 1:
            _log.info("mallopt(%d, %d) was refused", parameter, value)
