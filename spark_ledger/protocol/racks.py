"""Spreads the copies of entries over racks and regions (rule P21). Pure.

A rack is a path, ``/region/rack`` or ``/rack``. What must hold is asked of every write set of the
ensemble, because with E > WQ an ensemble over three racks may have write sets within one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from spark_ledger.limits.client import PLACEMENT_STEPS_MAX
from spark_ledger.protocol.quorum import lanes
from spark_ledger.types import BookieId, BookieInfo, PlacementPolicy, Quorums


class Placed(NamedTuple):
    """Bookies for the indexes that wanted one, and what the policy has against the whole."""

    bookies: dict[int, BookieId]
    faults: tuple[str, ...]
    """A sentence per write set and demand that is not met; empty: it adheres to the policy."""


def region_of(rack: str) -> str:
    """The first part of ``/region/rack``; racks without one are all in the region ``/``."""
    first, _, rest = rack.strip("/").partition("/")
    return f"/{first}" if rest else "/"


def faults(
    racks: Sequence[str | None], quorums: Quorums, policy: PlacementPolicy
) -> tuple[str, ...]:
    """What cannot be met, whatever comes where there is None yet: one sentence per write set and
    demand."""
    assert len(racks) == quorums.ensemble_size, "Every index has a rack, or none yet."
    return tuple(
        fault
        for lane in lanes(quorums)
        for fault in _lane_faults([racks[index] for index in lane.indexes], quorums, policy)
    )


def _lane_faults(
    members: Sequence[str | None], quorums: Quorums, policy: PlacementPolicy
) -> Iterator[str]:
    racks = [rack for rack in members if rack is not None]
    vacant = len(members) - len(racks)
    regions = [region_of(rack) for rack in racks]
    for what, places, least, durable in (
        ("rack", racks, policy.min_racks, policy.min_racks_for_durability),
        ("region", regions, policy.min_regions, policy.min_regions_for_durability),
    ):
        counted = Counter(places)
        wanted = min(least, quorums.write_quorum)
        if len(counted) + vacant < wanted:
            yield f"copies of an entry are in {len(counted)} {what}(s), and not in {wanted}"
        together = sum(count for _, count in counted.most_common(durable - 1))
        if together >= quorums.ack_quorum:
            yield (
                f"{durable - 1} {what}(s) hold {together} copies of an entry, and "
                f"{quorums.ack_quorum} acknowledge it"
            )


def place(
    racks: Sequence[str | None],
    preferred: Sequence[BookieInfo],
    quorums: Quorums,
    policy: PlacementPolicy,
) -> Placed | None:
    """Bookies for the indexes that have None, or None if there are too few.

    ``preferred``: usable bookies outside the ensemble, the best first. What adheres to the policy
    is looked for with a bound; where it is not found, the placement has as few faults as going
    index by index brings, and names them. Either way neighbours are in different regions, then in
    different racks, as far as there are any.
    """
    wanted = sum(rack is None for rack in racks)
    if len(preferred) < wanted:
        return None
    search = _Search(racks, preferred, quorums, policy)
    found = search.adhering()
    if found is None:
        found = search.best()
    queues: dict[str, list[BookieId]] = {}
    for bookie in reversed(preferred):
        queues.setdefault(bookie.rack, []).append(bookie.bookie_id)
    chosen = {i: queues[found[i]].pop() for i, rack in enumerate(racks) if rack is None}
    assert len(set(chosen.values())) == wanted, "A bookie stands at one index."
    return Placed(chosen, faults(found, quorums, policy))


def moves(
    racks: Sequence[str],
    preferred: Sequence[BookieInfo],
    quorums: Quorums,
    policy: PlacementPolicy,
) -> dict[int, BookieId]:
    """The fewest members of an ensemble to replace so that it adheres to the policy, and by whom;
    none if it does, or if no replacement brings that (rule R15).

    ``preferred``: usable bookies outside the ensemble, the best first.
    """
    if not faults(racks, quorums, policy):
        return {}
    for count in range(1, min(len(racks), len(preferred)) + 1):
        for leaving in combinations(range(len(racks)), count):
            kept = [None if index in leaving else rack for index, rack in enumerate(racks)]
            placed = place(kept, preferred, quorums, policy)
            if placed is not None and not placed.faults:
                return placed.bookies
    return {}


class _Search:
    """Fills the indexes of one ensemble with racks; bookies of a rack differ only in preference."""

    def __init__(
        self,
        racks: Sequence[str | None],
        preferred: Sequence[BookieInfo],
        quorums: Quorums,
        policy: PlacementPolicy,
    ) -> None:
        self._before = tuple(racks)
        self._quorums = quorums
        self._policy = policy
        self._vacant = [index for index, rack in enumerate(racks) if rack is None]
        self._ranks: dict[str, list[int]] = {}
        """By rack: how preferred its bookies are, the best one last."""
        for rank in range(len(preferred) - 1, -1, -1):
            self._ranks.setdefault(preferred[rank].rack, []).append(rank)
        sets = [frozenset(lane.indexes) for lane in lanes(quorums)]
        self._neighbours = {
            index: frozenset().union(*(each for each in sets if index in each)) - {index}
            for index in self._vacant
        }
        self._racks = list(racks)
        self._steps = 0

    def adhering(self) -> list[str] | None:
        """An ensemble without a fault, or None if none was found within the bound."""
        if faults(self._before, self._quorums, self._policy) or not self._fill(0):
            return None
        return [rack for rack in self._racks if rack is not None]

    def _fill(self, turn: int) -> bool:
        if turn == len(self._vacant):
            return True
        index = self._vacant[turn]
        for rack in self._in_order(index):
            self._steps += 1
            if self._steps > PLACEMENT_STEPS_MAX:
                return False
            taken = self._ranks[rack].pop()
            self._racks[index] = rack
            if not faults(self._racks, self._quorums, self._policy) and self._fill(turn + 1):
                return True
            self._ranks[rack].append(taken)
            self._racks[index] = None
        return False

    def best(self) -> list[str]:
        """Index by index the rack that adds the fewest faults."""
        for index in self._vacant:
            order = self._in_order(index)
            found = min(order, key=lambda rack: self._faults_with(index, rack))
            self._ranks[found].pop()
            self._racks[index] = found
        return [rack for rack in self._racks if rack is not None]

    def _faults_with(self, index: int, rack: str) -> int:
        racks = [*self._racks[:index], rack, *self._racks[index + 1 :]]
        return len(faults(racks, self._quorums, self._policy))

    def _in_order(self, index: int) -> list[str]:
        """Racks with a bookie left: those whose region, then which themselves, the write sets of
        the index have the fewest of, then by preference."""
        near = [self._racks[i] for i in self._neighbours[index]]
        racks = Counter(rack for rack in near if rack is not None)
        regions = Counter(region_of(rack) for rack in racks.elements())
        return sorted(
            (rack for rack, ranks in self._ranks.items() if ranks),
            key=lambda rack: (regions[region_of(rack)], racks[rack], self._ranks[rack][-1]),
        )
