"""What a ledger lacks, and how its metadata name other bookies. Pure: from what was just read.

Everything here is decided again from the metadata of the moment, and changes nothing that a writer
or a recovery may still change (rule R2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from spark_ledger.protocol.ensemble import replace_bookies
from spark_ledger.protocol.quorum import lanes
from spark_ledger.protocol.racks import faults
from spark_ledger.types import BookieId, Fragment, LedgerMetadata, PlacementPolicy


class FinalFragment(NamedTuple):
    """A fragment whose entries are confirmed, and whose end nobody changes any more."""

    first: int
    last: int
    """Below ``first`` if it has no entry."""
    bookies: tuple[BookieId, ...]


class LaneCopy(NamedTuple):
    """The entries ``first, first + stride, ... <= last`` that one index has to hold, and the
    bookies of the other indexes that hold them."""

    first: int
    last: int
    stride: int
    sources: tuple[BookieId, ...]
    present: tuple[BookieId, ...] = ()
    """Those of them that are not lost."""

    @property
    def last_entry(self) -> int:
        """The highest entry of the lane."""
        return self.last - (self.last - self.first) % self.stride


def final_fragments(ledger: LedgerMetadata) -> list[FinalFragment]:
    """The fragments that repair may change (rule R2): all of a closed ledger, else all but the
    last."""
    found = []
    for index, fragment in enumerate(ledger.fragments):
        is_last = index + 1 == len(ledger.fragments)
        if is_last and not ledger.is_closed:
            break
        end = ledger.last_entry_id if is_last else ledger.fragments[index + 1].first_entry - 1
        found.append(FinalFragment(fragment.first_entry, end, tuple(fragment.bookies)))
    return found


def lost_indexes(bookies: Sequence[BookieId], lost: Collection[BookieId]) -> list[int]:
    """The indexes of an ensemble whose bookies are lost."""
    return [index for index, bookie_id in enumerate(bookies) if bookie_id in lost]


def waits_for_its_writer(ledger: LedgerMetadata, lost: Collection[BookieId]) -> bool:
    """Whether the fragment that a writer may still change names a lost bookie (rule R3)."""
    return not ledger.is_closed and bool(lost_indexes(ledger.last_fragment.bookies, lost))


def all_names(ledger: LedgerMetadata) -> frozenset[BookieId]:
    """The bookies that the metadata name."""
    return frozenset(bookie_id for fragment in ledger.fragments for bookie_id in fragment.bookies)


def bytes_on(ledger: LedgerMetadata, bookies: Collection[BookieId]) -> int:
    """About how many bytes these bookies have to hold of a closed ledger; 0 of an open one."""
    if not ledger.is_closed or ledger.last_entry_id < 0:
        return 0
    quorums = ledger.quorums
    per_entry = ledger.length / (ledger.last_entry_id + 1)
    share = quorums.write_quorum / quorums.ensemble_size
    entries = sum(
        (fragment.last + 1 - fragment.first) * len(lost_indexes(fragment.bookies, bookies))
        for fragment in final_fragments(ledger)
    )
    return round(entries * share * per_entry)


def copies_left(ledger: LedgerMetadata, lost: Collection[BookieId]) -> int:
    """Copies of the worst entry that bookies which are not lost may hold."""
    return min(
        sum(fragment.bookies[index] not in lost for index in lane.indexes)
        for fragment in ledger.fragments
        for lane in lanes(ledger.quorums)
    )


def misplaced(
    ledger: LedgerMetadata,
    racks: Mapping[BookieId, str],
    policy: PlacementPolicy,
    confirmed: int,
) -> list[FinalFragment]:
    """The fragments whose bookies do not adhere to the placement policy (rule P21); of an open
    ledger the last one as well, up to the ``confirmed`` entry.

    A bookie whose rack is not known may be in any.
    """
    found = final_fragments(ledger)
    if not ledger.is_closed:
        last = ledger.last_fragment
        found.append(FinalFragment(last.first_entry, confirmed, tuple(last.bookies)))
    return [
        fragment
        for fragment in found
        if faults([racks.get(each) for each in fragment.bookies], ledger.quorums, policy)
    ]


def lane_copies(
    ledger: LedgerMetadata, fragment: FinalFragment, index: int, *, lost: Collection[BookieId]
) -> list[LaneCopy]:
    """What the bookie at an index of a fragment has to hold, and who may have it (rule R4).

    Only the entries whose write set has the index. Whoever is lost is asked last: it may answer
    after all, and every frame is verified.
    """
    found = []
    for lane in lanes(ledger.quorums):
        first = lane.first_at_or_after(fragment.first)
        if index not in lane.indexes or first > fragment.last:
            continue
        others = [fragment.bookies[i] for i in lane.indexes if i != index]
        own = fragment.bookies[index]
        sources = (*sorted(others, key=lambda each: each in lost), own)
        present = tuple(each for each in sources if each not in lost)
        found.append(LaneCopy(first, fragment.last, lane.stride, sources, present))
    return found


def renamed(
    ledger: LedgerMetadata, fragment: FinalFragment, replacements: Mapping[int, BookieId]
) -> LedgerMetadata | None:
    """The ledger with other bookies in one fragment, or None if that is not to be done any more.

    Asked again after each conflict, with what is stored then (rule R5). Other indexes may have
    changed meanwhile, and keep what they have. An index that has another bookie than the one whose
    copies were made was changed by somebody else, and a bookie never stands at two indexes.
    """
    stored = _stored(ledger, fragment)
    if stored is None or any(stored.bookies[i] != fragment.bookies[i] for i in replacements):
        return None
    if any(bookie_id in stored.bookies for bookie_id in replacements.values()):
        return None
    changed = tuple(
        Fragment(each.first_entry, replace_bookies(each.bookies, replacements))
        if each.first_entry == fragment.first
        else each
        for each in ledger.fragments
    )
    return ledger.with_changes(fragments=changed)


def is_renamed(
    ledger: LedgerMetadata, fragment: FinalFragment, replacements: Mapping[int, BookieId]
) -> bool:
    """Whether the metadata name the new bookies already: the reply to the change was lost."""
    stored = _stored(ledger, fragment)
    return stored is not None and all(stored.bookies[i] == b for i, b in replacements.items())


def _stored(ledger: LedgerMetadata, fragment: FinalFragment) -> FinalFragment | None:
    """The fragment of the same entries as the metadata have it now."""
    return next((f for f in final_fragments(ledger) if f[:2] == fragment[:2]), None)


def within(lane: LaneCopy, first: int, last: int) -> LaneCopy:
    """The entries of a lane from ``first`` to ``last``; it may have none there."""
    steps = -(-max(0, first - lane.first) // lane.stride)
    return lane._replace(first=lane.first + steps * lane.stride, last=min(lane.last, last))


def missing(copy: LaneCopy, held: Sequence[tuple[int, int]]) -> list[LaneCopy]:
    """The parts of a lane that ranges of held entries, ascending, do not cover (rule R8).

    Costs a step for each range that is held, not for each entry.
    """
    parts: list[LaneCopy] = []
    start = copy.first
    for low, high in (*held, (copy.last + 1, copy.last + 1)):
        end = min(low - 1, copy.last)
        last = end - (end - copy.first) % copy.stride
        if start <= last:
            if parts and parts[-1].last == start - copy.stride:
                start = parts.pop().first
            parts.append(copy._replace(first=start, last=last))
        behind = max(high + 1 - copy.first, 0)
        start = max(start, copy.first + -(-behind // copy.stride) * copy.stride)
    return parts
