"""All entries that a bookie holds of a ledger: its pages, one after the other."""

from __future__ import annotations

from typing import Protocol

from spark_ledger.bookie_api import EntryPage
from spark_ledger.types import EntryId, LedgerId


class Lists(Protocol):
    """A bookie, or what stands before one."""

    def entry_page(self, ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        """See ``BookieApi``."""


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
