"""Tells the C library to keep freed memory, for a process that handles messages of a megabyte.

By default glibc gives the memory of each large message back to the kernel and takes it again for
the next one, page fault by page fault; measured on a virtual machine, that doubles the processor
time of sending and receiving messages. Elsewhere than on glibc this does nothing.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Final

from spark_ledger.limits import MIB

logger = logging.getLogger(__name__)

# mallopt parameters, from malloc.h
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

_MMAP_THRESHOLD_BYTES: Final = 8 * MIB
"""What is larger is taken from the kernel and given back each time. Messages of the usual size are
far below; large entries would leave holes that nothing else fits into."""

_TOP_PAD_BYTES: Final = 8 * MIB
"""Memory is taken from the kernel in steps of this size."""


_HEAPS: Final = 2
"""For all threads of a process. By default each thread gets one of its own, up to eight for each
processor, and memory that was freed in one is of no use to the others: a bookie whose messages came
to several threads in turn had 700 MB of it beside 100 MB in use."""


def keep_freed_memory(up_to_bytes: int) -> None:
    """Keep that much freed memory, for the whole process. Cheap; may be called again."""
    _set(
        (_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES),
        (_TRIM_THRESHOLD, up_to_bytes),
        (_TOP_PAD, _TOP_PAD_BYTES),
    )


def share_heaps() -> None:
    """Have all threads that begin from now on share few heaps, for a process with a budget."""
    _set((_ARENA_MAX, _HEAPS))


def _set(*parameters: tuple[int, int]) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        logger.info("this C library has no mallopt: large messages may cost page faults")
        return
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    for parameter, value in parameters:
        if mallopt(parameter, value) != 1:
            logger.info("mallopt(%d, %d) was refused", parameter, value)
