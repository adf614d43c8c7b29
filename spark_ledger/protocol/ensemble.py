"""Which changes of ledger metadata are legal, as functions from one value to the next.

Machines call these; the metadata store compares and sets the result (rule P6). A rule broken here
is a bug of ours and asserts. A change that lost its reason (somebody else closed the ledger) is for
the machine to see before it calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_ledger.protocol.quorum import Lane, lanes
from spark_ledger.types import BookieId, EntryId, Fragment, LedgerMetadata, LedgerState


def fragment_of(metadata: LedgerMetadata, entry_id: int) -> Fragment:
    """The fragment an entry belongs to: the one with the greatest first entry not above it."""
    assert entry_id >= 0, "Entries count from 0."
    # The first fragment starts at 0, so there is always one.
    return next(f for f in reversed(metadata.fragments) if f.first_entry <= entry_id)


def fragment_ranges(
    metadata: LedgerMetadata, first: int, last: int
) -> list[tuple[EntryId, EntryId, Fragment]]:
    """The range ``first..last`` cut at fragment borders: (first, last, fragment) in order."""
    assert first >= 0, "Entries count from 0."
    ranges: list[tuple[EntryId, EntryId, Fragment]] = []
    for index, fragment in enumerate(metadata.fragments):
        is_last = index + 1 == len(metadata.fragments)
        end = last if is_last else metadata.fragments[index + 1].first_entry - 1
        low, high = max(first, fragment.first_entry), min(last, end)
        if low <= high:
            # A hole between two ranges would be a hole in what a reader delivers (rule P19).
            assert low == (ranges[-1][1] + 1 if ranges else first), "Ranges leave no entry out."
            ranges.append((EntryId(low), EntryId(high), fragment))
    return ranges


class LaneRange(NamedTuple):
    """What one read is about: the entries ``first, first + stride, ... <= last`` of one lane.

    ``bookies`` is the ensemble of the fragment that holds them all, in index order. Two ranges of
    the same ledger never share a fragment and a lane unless they share entries.
    """

    bookies: Sequence[BookieId]
    lane_index: int
    lane: Lane
    first: EntryId
    last: EntryId


def lane_ranges(
    metadata: LedgerMetadata, fragment: Fragment, first: int, last: int
) -> list[LaneRange]:
    """The entries ``first..last`` of one fragment, split into its lanes; lanes without any left
    out."""
    assert first >= fragment.first_entry, "The entries are of this fragment."
    ranges = []
    for index, lane in enumerate(lanes(metadata.quorums)):
        start = lane.first_at_or_after(first)
        if start <= last:
            ranges.append(LaneRange(fragment.bookies, index, lane, EntryId(start), EntryId(last)))
    return ranges


def entry_range(metadata: LedgerMetadata, entry_id: int) -> LaneRange:
    """The range of one entry: the bookies and the lane that store it."""
    (found,) = lane_ranges(metadata, fragment_of(metadata, entry_id), entry_id, entry_id)
    return found


def replace_bookies(
    bookies: Sequence[BookieId], replacements: Mapping[int, BookieId]
) -> tuple[BookieId, ...]:
    """An ensemble with other bookies at some indexes; the rest stay where they are.

    Indexes must not move: the write set of an entry is computed from them (rule P1).
    """
    assert all(0 <= index < len(bookies) for index in replacements), "An index is below E."
    changed = tuple(replacements.get(index, bookie) for index, bookie in enumerate(bookies))
    # A bookie at two indexes of one write set would acknowledge twice for one copy.
    assert len(set(changed)) == len(changed), "A bookie stands at one index only."
    return changed


def with_ensemble(
    fragments: Sequence[Fragment], first_entry: EntryId, bookies: tuple[BookieId, ...]
) -> tuple[Fragment, ...]:
    """Fragments with a new last ensemble from ``first_entry`` on (rule P7).

    An equal first entry replaces the last fragment, because no entry of it was confirmed. One
    below the last fragment would give confirmed entries other bookies, which do not hold them: the
    second defect that BookKeeper's TLA+ specification found.
    """
    last = fragments[-1]
    assert first_entry >= last.first_entry, "A fragment never starts before the last one."
    assert len(bookies) == len(last.bookies), "An ensemble keeps its size."
    assert len(set(bookies)) == len(bookies), "A bookie stands at one index only."
    kept = fragments[:-1] if first_entry == last.first_entry else fragments
    return (*kept, Fragment(first_entry, bookies))


def in_recovery(metadata: LedgerMetadata) -> LedgerMetadata:
    """The ledger with state IN_RECOVERY: its writer can change no ensemble any more (rule P6)."""
    assert metadata.state is LedgerState.OPEN, "Only an open ledger starts recovery."
    return metadata.with_changes(state=LedgerState.IN_RECOVERY)


def closed(
    metadata: LedgerMetadata,
    *,
    last_entry: EntryId,
    length: int,
    fragments: Sequence[Fragment] | None = None,
) -> LedgerMetadata:
    """The ledger, closed at ``last_entry`` with ``length`` payload bytes (rule P17).

    ``fragments`` are those to publish with the close, if they differ from the ledger's.
    """
    assert metadata.state is not LedgerState.CLOSED, "A ledger closes once."
    assert last_entry >= -1 and length >= 0, "An empty ledger ends at -1 and has no bytes."
    assert last_entry >= 0 or length == 0, "A ledger without entries has no bytes."
    chosen = metadata.fragments if fragments is None else fragments
    assert chosen[0].first_entry == 0, "Entries from 0 on have bookies."
    # A last fragment may be empty (its first entry is the one behind the end), but a fragment that
    # starts later would leave the entries between without bookies.
    assert chosen[-1].first_entry <= last_entry + 1, "A ledger ends in its last fragment."
    return metadata.with_changes(
        state=LedgerState.CLOSED,
        last_entry_id=last_entry,
        length=length,
        fragments=chosen,
    )
