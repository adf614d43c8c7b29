"""All entries that a bookie holds of a ledger: its pages, one after the other."""

from __future__ import annotations

from typing import Protocol

from bookie_server.bookie import Bookie
from bookie_server.reads import entry_page
from spark_ledger.bookie_api import EntryPage
from spark_ledger.types import EntryId, LedgerId


class Lists(Protocol):
    """A bookie, or what stands before one."""

    def entry_page(self, ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        """See ``BookieApi``."""


class Kept:
    """What a bookie has in its memory and on its disks, also while its journal has no room: then it
    does not say so (rule S15)."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    def entry_page(self, ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        """See ``reads.entry_page``."""
        is_going = ledger_id in self._bookie.giving_back
        return None if is_going else entry_page(self._bookie._storage, ledger_id, first)


def listed(bookie: Lists, ledger_id: LedgerId) -> list[tuple[EntryId, EntryId]] | None:
    """Stretches, ascending; None: the bookie knows no such ledger. Raises as a page does."""
    found: list[tuple[EntryId, EntryId]] = []
    first: EntryId | None = EntryId(0)
    while first is not None:
        page = bookie.entry_page(ledger_id, first)
        if page is None:
            return None
        for low, high in page.ranges:
            if found and found[-1][1] + 1 == low:
                found[-1] = (found[-1][0], high)
            else:
                found.append((low, high))
        first = page.next_entry
    return found
