"""FoundEntries: what a recovery has found and its bookies have not stored yet, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from spark_ledger.client.frames import FrameStore
from spark_ledger.limits.client import RECOVERY_BYTES_MAX
from spark_ledger.protocol.lengths import Lengths
from spark_ledger.protocol.quorum import Lane
from spark_ledger.runs import EntryRun
from spark_ledger.types import LedgerMetadata
from spark_ledger.wire.frame import Digest


class Found(NamedTuple):
    """A verified entry as its writer made it, and the length of the ledger up to it."""

    entry_id: int
    frame: bytes
    length: int


class FoundEntries:
    """Frames of entries that are written back, and of those that wait for one before them.

    Reads wait for room here, so that a recovery which has to read all of a large fragment holds a
    part of it only. The lane that has come least far waits for bookies to store and for nothing
    else: entries of the other lanes wait for its own.
    """

    def __init__(self, metadata: LedgerMetadata, digest: Digest, last_confirmed: int) -> None:
        self._frames = FrameStore(metadata, digest, first_entry=last_confirmed + 1)
        self._last_confirmed = last_confirmed
        self._next = last_confirmed + 1
        """The first entry that was not found."""
        self._ahead: dict[int, Found] = {}
        """Entries behind that one, by id."""
        self._ahead_bytes = 0
        self._sizes = Lengths()
        self._released = -1
        self.length = 0
        """The ledger's length up to the last entry that is in order."""
        self._changed = asyncio.Event()

    def add(self, found: Iterable[Found]) -> None:
        """Entries of one lane that nobody had found before."""
        for entry in found:
            self._ahead[entry.entry_id] = entry
            self._ahead_bytes += len(entry.frame)
        while self._next in self._ahead:
            following = self._ahead.pop(self._next)
            self._frames.add([following.frame])
            self._sizes.extend([len(following.frame)])
            self._ahead_bytes -= len(following.frame)
            self.length = following.length
            self._next += 1
        self._changed.set()

    def runs(self, bookie_index: int, first: int, last: int) -> list[EntryRun]:
        """The entries ``first..last`` of one bookie; all of them are in order."""
        return self._frames.runs(bookie_index, first, last)

    def release(self, last: int) -> None:
        """Entries up to ``last`` are stored, and nobody is sent them again."""
        released = last - self._last_confirmed - 1
        if released > self._released:
            self._released = released
            self._frames.release(last)
            self._changed.set()

    async def wait_for_room(self, lane: Lane) -> None:
        """Wait until more of a lane may be read."""
        while not self._has_room(lane):
            self._changed.clear()
            await self._changed.wait()

    def _has_room(self, lane: Lane) -> bool:
        in_order, _payload = self._sizes.above(self._released)
        if in_order >= RECOVERY_BYTES_MAX:
            return False
        is_least_far = lane.first_at_or_after(self._next) == self._next
        return is_least_far or in_order + self._ahead_bytes < RECOVERY_BYTES_MAX
