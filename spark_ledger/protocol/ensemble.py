"""Which changes of ledger metadata are legal, as functions from one value to the next.

Machines call these, the metadata store compares and sets the result. A rule broken here is a
bug of ours and asserts; a change that lost its reason (somebody else closed the ledger) is for
the machine to see before it calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_ledger.types import BookieId, EntryId, Fragment, LedgerMetadata, LedgerState


def fragment_of(metadata: LedgerMetadata, entry_id: int) -> Fragment:
    """The fragment an entry belongs to: the one with the greatest first entry not above it."""
    assert entry_id >= 0, "entries count from 0"
    # The first fragment starts at 0, so there is always one.
    return next(f for f in reversed(metadata.fragments) if f.first_entry <= entry_id)


def fragment_ranges(
    metadata: LedgerMetadata, first: int, last: int
) -> list[tuple[EntryId, EntryId, Fragment]]:
    """The range ``first..last`` cut at fragment borders: (first, last, fragment) in order."""
    ranges = []
    for index, fragment in enumerate(metadata.fragments):
        is_last = index + 1 == len(metadata.fragments)
        end = last if is_last else metadata.fragments[index + 1].first_entry - 1
        low, high = max(first, fragment.first_entry), min(last, end)
        if low <= high:
            ranges.append((EntryId(low), EntryId(high), fragment))
    return ranges


def replace_bookies(
    bookies: Sequence[BookieId], replacements: Mapping[int, BookieId]
) -> tuple[BookieId, ...]:
    """An ensemble with some indexes given to other bookies; the rest stay."""
    changed = tuple(
        replacements.get(bookie_index, bookie) for bookie_index, bookie in enumerate(bookies)
    )
    assert len(set(changed)) == len(changed), "a bookie stands at one index only"
    return changed


def with_ensemble(
    fragments: Sequence[Fragment], first_entry: EntryId, bookies: tuple[BookieId, ...]
) -> tuple[Fragment, ...]:
    """Fragments with a new last ensemble from ``first_entry`` on.

    An equal first entry replaces the last fragment, because no entry of it was confirmed. One
    below the last fragment would reorder history (defect 2 of the BookKeeper specification).
    """
    last = fragments[-1]
    assert first_entry >= last.first_entry, "a fragment never starts before the last one"
    kept = fragments[:-1] if first_entry == last.first_entry else fragments
    return (*kept, Fragment(first_entry, bookies))


def in_recovery(metadata: LedgerMetadata) -> LedgerMetadata:
    """The ledger, marked as being recovered."""
    assert metadata.state is LedgerState.OPEN, "only an open ledger starts recovery"
    return metadata.with_changes(state=LedgerState.IN_RECOVERY)


def closed(
    metadata: LedgerMetadata,
    *,
    last_entry: EntryId,
    length: int,
    fragments: Sequence[Fragment] | None = None,
) -> LedgerMetadata:
    """The ledger, closed at ``last_entry``."""
    assert metadata.state is not LedgerState.CLOSED, "a ledger closes once"
    assert last_entry >= -1 and length >= 0
    return metadata.with_changes(
        state=LedgerState.CLOSED,
        last_entry_id=last_entry,
        length=length,
        fragments=metadata.fragments if fragments is None else fragments,
    )
