"""Which copies of closed ledgers move from full bookies to empty ones. Pure (rules R16 and R17).

What a bookie holds is reckoned from the metadata, and not from its disk: a copy that it has no more
to hold is not counted, though its bytes come back only later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from spark_ledger.protocol.quorum import lanes
from spark_ledger.protocol.racks import faults, region_of
from spark_ledger.repair.plan import FinalFragment, final_fragments
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    BookieState,
    LedgerMetadata,
    PlacementPolicy,
    Quorums,
)


class Move(NamedTuple):
    """One copy of a fragment of a closed ledger, and where it is to be."""

    fragment: FinalFragment
    bookie_index: int
    """Of the bookie that holds it now, in the fragment."""
    target: BookieId
    size_bytes: int
    """About what it holds."""

    @property
    def source(self) -> BookieId:
        """Who holds it now."""
        return self.fragment.bookies[self.bookie_index]


class Share(NamedTuple):
    """How full one bookie is."""

    held_bytes: int
    """What the metadata say that it has to hold of closed ledgers."""
    capacity_bytes: int
    """That and what was free at the first look."""

    @property
    def used(self) -> float:
        """From 0 to 1."""
        return self.held_bytes / self.capacity_bytes


class Balance:
    """How full bookies are, with the moves that are under way; which moves make them more even."""

    def __init__(
        self, bookies: Collection[BookieInfo], held: Mapping[BookieId, int], tolerance: float
    ) -> None:
        """``bookies``: those that are registered and do not leave. ``held``: bytes by the metadata.
        ``tolerance``: how far from the mean a share may be, in parts of the mean."""
        known = sorted(each.free_bytes for each in bookies if each.free_bytes > 0)
        middle = known[len(known) // 2] if known else max(1, sum(held.values()))
        self._info = {each.bookie_id: each for each in bookies}
        self._tolerance = tolerance
        self._held = {name: held.get(name, 0) for name in self._info}
        self._capacity = {
            name: max(1, self._held[name] + self._free(info, middle))
            for name, info in self._info.items()
        }
        # Moves change no sum.
        self.mean = sum(self._held.values()) / max(1, sum(self._capacity.values()))
        """The share that all would have if they were even."""

    @staticmethod
    def _free(info: BookieInfo, middle: int) -> int:
        """Who takes writes and does not say what is free counts as the one in the middle."""
        return info.free_bytes or (middle if info.state is BookieState.WRITABLE else 0)

    @property
    def shares(self) -> dict[BookieId, Share]:
        """Of each bookie, the fullest first."""
        found = {name: Share(self._held[name], self._capacity[name]) for name in self._held}
        return dict(sorted(found.items(), key=lambda item: (-item[1].used, item[0])))

    @property
    def is_even(self) -> bool:
        """Whether all shares are within the tolerance."""
        return all(abs(each.used - self.mean) <= self._slack for each in self.shares.values())

    @property
    def excess_bytes(self) -> int:
        """About how much has to move until all are even: what bookies hold above the mean, or lack
        below it, whichever is more."""
        above = [self._held[name] - self.mean * self._capacity[name] for name in self._held]
        return 0 if self.is_even else round(sum(each for each in above if each > 0))

    def take(self, move: Move) -> None:
        """The copy is at its new place, or will be soon."""
        self._held[move.source] -= move.size_bytes
        self._held[move.target] += move.size_bytes

    def put_back(self, move: Move) -> None:
        """It stayed where it was."""
        self._held[move.source] += move.size_bytes
        self._held[move.target] -= move.size_bytes

    def next_move(
        self, ledger: LedgerMetadata, policy: PlacementPolicy, refused: Collection[BookieId] = ()
    ) -> Move | None:
        """The move of one copy of a closed ledger that empties the fullest bookie into the emptiest
        one, if it makes them more even and spoils no placement; None: all of it stays.

        ``refused`` take no copies now. A fragment of which a member is not registered waits, since
        nobody knows its rack, and repair comes first.
        """
        if not ledger.is_closed:
            return None  # its writer may change it, and its length is not known
        found = [
            move
            for fragment in final_fragments(ledger)
            if self._info.keys() >= set(fragment.bookies)
            for move in self._moves_of(ledger, fragment, policy, refused)
        ]
        shares = self.shares
        order = {name: place for place, name in enumerate(shares)}
        return min(
            found,
            key=lambda move: (order[move.source], -order[move.target], -move.size_bytes),
            default=None,
        )

    def _moves_of(
        self,
        ledger: LedgerMetadata,
        fragment: FinalFragment,
        policy: PlacementPolicy,
        refused: Collection[BookieId],
    ) -> list[Move]:
        size = copy_bytes(ledger, fragment)
        racks = [self._info[each].rack for each in fragment.bookies]
        targets = [
            info
            for name, info in self._info.items()
            if info.state is BookieState.WRITABLE
            and name not in refused
            and name not in fragment.bookies
        ]
        return [
            move
            for index in range(len(fragment.bookies))
            for info in targets
            if self._evens(move := Move(fragment, index, info.bookie_id, size))
            and keeps_placement(racks, index, info.rack, ledger.quorums, policy)
        ]

    def _evens(self, move: Move) -> bool:
        """Whether the copy goes from above the mean to below it, one of the two is outside of the
        tolerance, and the sum of squares of what all hold, each divided by its capacity, becomes
        smaller. So moves end (rule R17)."""
        size, held = move.size_bytes, (self._held[move.source], self._held[move.target])
        capacity = self._capacity[move.source], self._capacity[move.target]
        above, below = held[0] / capacity[0] - self.mean, self.mean - held[1] / capacity[1]
        if size <= 0 or above <= 0 or below <= 0 or max(above, below) <= self._slack:
            return False
        # In whole numbers: two placements that are as good must not each look better by rounding.
        return size * sum(capacity) < 2 * (held[0] * capacity[1] - held[1] * capacity[0])

    @property
    def _slack(self) -> float:
        return self._tolerance * self.mean


def copy_bytes(ledger: LedgerMetadata, fragment: FinalFragment) -> int:
    """About how many bytes one index of a fragment of a closed ledger has to hold."""
    quorums, entries = ledger.quorums, ledger.last_entry_id + 1
    if entries <= 0 or fragment.last < fragment.first:
        return 0
    here = (fragment.last + 1 - fragment.first) * quorums.write_quorum / quorums.ensemble_size
    return round(here * ledger.length / entries)


def copies_held(ledger: LedgerMetadata) -> dict[BookieId, int]:
    """About how many bytes each bookie has to hold of a ledger; nothing of an open one."""
    held: dict[BookieId, int] = {}
    if ledger.is_closed:
        for fragment in final_fragments(ledger):
            for bookie_id in fragment.bookies:
                held[bookie_id] = held.get(bookie_id, 0) + copy_bytes(ledger, fragment)
    return held


def keeps_placement(
    racks: Sequence[str], index: int, rack: str, quorums: Quorums, policy: PlacementPolicy
) -> bool:
    """Whether an ensemble is spread as well with another rack at an index: the policy has nothing
    more against it, and no write set is in fewer racks or regions (rule R16)."""
    after = [*racks[:index], rack, *racks[index + 1 :]]
    if len(faults(after, quorums, policy)) > len(faults(racks, quorums, policy)):
        return False
    return all(
        len({place(after[i]) for i in lane.indexes}) >= len({place(racks[i]) for i in lane.indexes})
        for lane in lanes(quorums)
        for place in (str, region_of)
    )
