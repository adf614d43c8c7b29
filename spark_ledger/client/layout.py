"""Which bookies hold which entries of a ledger, for whoever plans reads. Pure."""

from __future__ import annotations

from typing import NamedTuple

from spark_ledger.protocol.ensemble import fragment_ranges, lane_ranges
from spark_ledger.types import BookieId, EntryId, LedgerMetadata


class Copies(NamedTuple):
    """Entries of one fragment that have the same bookies: all of a range if E = WQ, else those of
    one lane (rule P1)."""

    fragment: EntryId
    """The fragment's first entry."""
    entries: int
    bookies: tuple[BookieId, ...]


def copies_of(metadata: LedgerMetadata, first: int, last: int) -> list[Copies]:
    """Who holds the entries ``first`` .. ``last``, as far as these metadata know."""
    assert 0 <= first <= last, "a range has an entry"
    found = []
    for low, high, fragment in fragment_ranges(metadata, first, last):
        for part in lane_ranges(metadata, fragment, low, high):
            entries = len(range(part.first, part.last + 1, part.lane.stride))
            holders = tuple(part.bookies[index] for index in part.lane.indexes)
            found.append(Copies(fragment.first_entry, entries, holders))
    assert sum(each.entries for each in found) == last - first + 1, "each entry once"
    return found
