"""Which logs of a directory are worth copying, so that their dead bytes are freed. Pure.

A log that is copied costs its live bytes, in reads and writes, and frees its dead ones. With half
of it dead each byte that is freed costs at most one that is copied. Below that it is done only
while much of the directory is dead, which bounds what the disk holds beside the live bytes, or
while the disk is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_ledger.limits.storage import (
    COMPACTED_GARBAGE_SHARE,
    COMPACTED_GARBAGE_SHARE_CROWDED,
    COMPACTED_GARBAGE_SHARE_FULL,
    DIRECTORY_GARBAGE_SHARE_MAX,
)


class LogState(NamedTuple):
    """A log that takes no more: what its file takes on the disk, and what rows name of it."""

    log_id: int
    byte_count: int
    rows: int
    live_bytes: int

    @property
    def garbage_bytes(self) -> int:
        """Bytes that nothing needs."""
        return max(0, self.byte_count - self.live_bytes)

    @property
    def garbage_share(self) -> float:
        """The same as a share of the file, from 0 to 1."""
        return self.garbage_bytes / self.byte_count if self.byte_count else 0.0


def logs_to_compact(
    logs: Sequence[LogState], *, free_bytes: int, disk_is_full: bool
) -> list[LogState]:
    """The logs to copy, the one with the least to copy for what it gives back first.

    Only those of which a copy fits into what is free, as both are there for a while.
    """
    assert all(log.rows > 0 for log in logs), "a log without rows goes without a copy"
    total = sum(log.byte_count for log in logs)
    garbage = sum(log.garbage_bytes for log in logs)
    if disk_is_full:
        lowest = COMPACTED_GARBAGE_SHARE_FULL
    elif garbage > DIRECTORY_GARBAGE_SHARE_MAX * total:
        lowest = COMPACTED_GARBAGE_SHARE_CROWDED
    else:
        lowest = COMPACTED_GARBAGE_SHARE
    chosen = [log for log in logs if log.garbage_share >= lowest and log.live_bytes <= free_bytes]
    return sorted(chosen, key=lambda log: (-log.garbage_share, log.log_id))
