"""Cumulative payload bytes of a ledger at each of its newest entries.

A closed ledger's length is that at its last confirmed entry, not at the last one pushed (rule P17),
so the writer keeps one number for every entry that may still become the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Final

from spark_ledger.types import LedgerMetadata


class Lengths:
    """Cumulative payload bytes at each entry, from the last one that nobody asks about any more.

    ``_at[i]`` is the length at entry ``_base + i``; lengths never decrease. ``entry_bytes`` is what
    an entry takes in memory beside its payload; no length has that in it.
    """

    _FORGET_AT_ONCE: Final = 4096
    """Deleting at the front moves the rest: done once for many entries, it costs nothing each."""

    def __init__(self, entry_bytes: int = 0) -> None:
        self._entry_bytes = entry_bytes
        self._base = -1
        self._at = [0]
        self._settled, self._settled_length = -1, 0

    def extend(self, sizes: Sequence[int]) -> None:
        """Entries of these payload sizes follow."""
        before = self._at[-1]
        if len(sizes) == 1:  # of many ledgers each entry comes alone
            self._at.append(before + sizes[0])
        else:
            self._at.extend(islice(accumulate(sizes, initial=before), 1, None))
        assert self._at[-1] >= before, "Lengths never decrease."

    @property
    def newest(self) -> int:
        """The length at the last entry."""
        return self._at[-1]

    def at(self, entry_id: int) -> int:
        """The length at an entry that was not forgotten; 0 at entry -1."""
        assert entry_id >= self._base, "The length of an entry was forgotten too early."
        assert entry_id < self._base + len(self._at), "The length of an entry that does not exist."
        return self._at[entry_id - self._base]

    def above(self, settled: int) -> tuple[int, int]:
        """What the entries above ``settled`` take in memory, and their payload alone; nobody asks
        about those below any more."""
        if settled != self._settled:  # most events of a writer settle nothing
            self._settled, self._settled_length = settled, self.at(settled)
            self._forget_below(settled)
        entries = self._base + len(self._at) - 1 - settled
        payload_bytes = self._at[-1] - self._settled_length
        return payload_bytes + self._entry_bytes * entries, payload_bytes

    def _forget_below(self, entry_id: int) -> None:
        """Nobody asks about entries below ``entry_id`` any more."""
        count = entry_id - self._base
        assert count < len(self._at), "An entry is forgotten before it exists."
        if count >= self._FORGET_AT_ONCE:
            del self._at[:count]
            self._base = entry_id

    def is_end(self, stored: LedgerMetadata, end: int) -> bool:
        """Whether a ledger was closed by somebody with just what its writer confirmed, in bytes
        too: ``end`` is that writer's last add confirmed."""
        return stored.is_closed and stored.last_entry_id == end and stored.length == self.at(end)
