"""What is known of the last few blocks, for whoever looks at one row after the other.

Entries that came between those of a block leave it with several rows, and those of a few blocks
take turns: up to one row for each entry. Each block would be read anew for each of its rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from bookie_server.storage.index.base import BlockLocation, IndexRow
from spark_ledger.limits.entries import ENSEMBLE_SIZE_MAX
from spark_ledger.runs import EntryRun

BLOCKS_KEPT: Final = ENSEMBLE_SIZE_MAX
"""More than the lanes that one bookie has of a ledger. Of one block more than are kept, in turn,
none would be known when it is asked for."""

Known = TypeVar("Known")


class RecentBlocks(Generic[Known]):
    """One thing about each of the last blocks. A block never changes (rule S8)."""

    def __init__(self) -> None:
        self._known: dict[BlockLocation, Known] = {}

    def get(self, location: BlockLocation) -> Known | None:
        """What is known of a block, if somebody asked for it lately."""
        known = self._known.pop(location, None)
        if known is not None:
            self._known[location] = known
        return known

    def put(self, location: BlockLocation, known: Known) -> None:
        """Keep it in place of what nobody has asked for the longest."""
        self._known[location] = known
        if len(self._known) > BLOCKS_KEPT:
            del self._known[next(iter(self._known))]


class RecentIds:
    """Entries of the blocks that rows name. Their frames are not kept."""

    def __init__(self, read: Callable[[IndexRow], EntryRun]) -> None:
        self._read = read
        self._blocks: RecentBlocks[array[int]] = RecentBlocks()

    def of(self, row: IndexRow) -> array[int]:
        """All entries of a row's block, ascending. Raises as ``read``."""
        ids = self._blocks.get(row.location)
        if ids is None:
            ids = array("q", self._read(row).ids())
            self._blocks.put(row.location, ids)
        return ids

    def from_on(self, row: IndexRow, first: int) -> Sequence[int]:
        """Entries of a row's block, ascending, at least those from ``first`` on. The block is read
        only if they cannot be told without it. Raises as ``of``."""
        if row.last_entry < first:
            return ()
        return self.of(row) if row.is_sparse else range(row.first_entry, row.last_entry + 1)
