"""Blocks that no row names any more: what they take is given back where they are (rule S25).

In memory only, as nothing depends on it: a block that is forgotten goes with its log, or when what
is alive beside it is copied (rule S20).
"""

from __future__ import annotations

from array import array
from threading import Lock
from typing import NamedTuple

from bookie_server.storage.blocks import HEADER_BYTES
from bookie_server.storage.fs.vfs import DIRECT_ALIGNMENT
from bookie_server.storage.index.base import BlockLocation
from bookie_server.storage.records import RECORD_HEADER_BYTES
from spark_ledger.limits.storage import DEAD_BLOCKS_MAX, HOLE_BYTES_MIN


class Hole(NamedTuple):
    """A range of a log that can be given back."""

    offset: int
    length: int


def hole_in(location: BlockLocation) -> Hole:
    """What of a block can be given back: whole pages behind its headers, of length 0 if none is.

    The headers stay, so that whoever walks through the log finds the block behind this one.
    """
    headers_end = location.offset + RECORD_HEADER_BYTES + HEADER_BYTES
    end = location.offset + RECORD_HEADER_BYTES + location.length
    start = headers_end + -headers_end % DIRECT_ALIGNMENT
    return Hole(start, max(0, end - end % DIRECT_ALIGNMENT - start))


class DeadBlocks:
    """Dead blocks by log, those that are worth a hole; *any thread*."""

    def __init__(self) -> None:
        self._lock = Lock()
        # Protected by _lock: holes as offset and length, by log.
        self._by_log: dict[int, array[int]] = {}
        self._count = 0

    def add(self, location: BlockLocation) -> None:
        """A block has died. Beyond a bound it is forgotten."""
        hole = hole_in(location)
        if hole.length < HOLE_BYTES_MIN:
            return
        with self._lock:
            self._extend(location.log_id, array("Q", hole))

    def take_from(self, others: DeadBlocks) -> None:
        """Take over all blocks of others, which are empty then."""
        with others._lock:
            taken, others._by_log, others._count = others._by_log, {}, 0
        with self._lock:
            for log_id, holes in taken.items():
                self._extend(log_id, holes)

    def pop(self, log_id: int) -> list[Hole]:
        """The dead blocks of one log, which are forgotten; each once."""
        with self._lock:
            holes = self._by_log.pop(log_id, array("Q"))
            self._count -= len(holes) // 2
        # A block that two rows named has died twice.
        return sorted({Hole(*holes[at : at + 2]) for at in range(0, len(holes), 2)})

    def _extend(self, log_id: int, holes: array[int]) -> None:
        room = DEAD_BLOCKS_MAX - self._count
        holes = holes[: 2 * room]
        if holes:
            self._by_log.setdefault(log_id, array("Q")).extend(holes)
            self._count += len(holes) // 2
