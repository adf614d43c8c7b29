"""Adds that wait for room in memory, in the order in which they came."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from bookie_server.core.transitions import KnownLedger
from spark_ledger.bookie_api import Done
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId


class PendingAdd(NamedTuple):
    """An add of which nothing was decided yet. ``done`` also releases its bytes in flight."""

    run: EntryRun
    key_hash: bytes
    recovery: bool
    last_add_confirmed: EntryId
    done: Done
    who: str
    """The connection that it came from."""
    in_metadata: KnownLedger | None = None
    """What the metadata say of the ledger; None if nobody had to look yet."""


class WaitingAdds:
    """Changed by the service thread; its length and bytes are read from any thread."""

    def __init__(self) -> None:
        self._adds: deque[PendingAdd] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._adds)

    @property
    def first(self) -> PendingAdd:
        """The one that has waited longest."""
        return self._adds[0]

    def append(self, add: PendingAdd) -> None:
        """Behind all others."""
        self._adds.append(add)
        self.size_bytes += len(add.run.frames)

    def pop(self) -> PendingAdd:
        """Take the first one off."""
        add = self._adds.popleft()
        self.size_bytes -= len(add.run.frames)
        return add
