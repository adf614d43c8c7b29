"""Which bookies a partition asks first, so that all of them serve about as many bytes. Pure.

The unit is a run of entries of one fragment that lie on the same bookies (``Unit``). A partition
prefers one bookie as far as that has the entries: each bookie more is a call more, and a stripe
more to put into order. Over all partitions the planned bytes of bookies are even, weighed by what
is known of them. It is a preference only: a reader knows more when it reads, and asks bookies of
its own host first, slow ones later, and silent ones last (rule T20).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_ledger.client.layout import copies_of
from spark_ledger.limits.stream import READ_ONLY_BOOKIE_SHARE
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.packs.model import NO_PACKS, Pack, Packs
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    BookieState,
    EntryId,
    LedgerId,
    LedgerMetadata,
)


class Unit(NamedTuple):
    """Entries of one fragment that lie on the same bookies."""

    ledger_id: LedgerId
    fragment: EntryId
    """The fragment's first entry."""
    size_bytes: int
    bookies: tuple[BookieId, ...]


class FirstRead(NamedTuple):
    """What a partition asks one bookie for, of one fragment."""

    ledger_id: LedgerId
    fragment: EntryId
    bookie_id: BookieId
    size_bytes: int


class FirstReads(NamedTuple):
    """Which bookies a partition asks first."""

    order: tuple[BookieId, ...] = ()
    """The bookies, preferred first: of those that hold an entry the first one is asked."""
    parts: tuple[FirstRead, ...] = ()
    """What that comes to. Empty if nothing is known of the ledgers."""

    @property
    def bytes_by_bookie(self) -> dict[BookieId, int]:
        """How many bytes each bookie is asked for, most first."""
        found: Counter[BookieId] = Counter()
        for part in self.parts:
            found[part.bookie_id] += part.size_bytes
        return dict(found.most_common())


def units_of(
    ranges: Iterable[SegmentRange],
    ledgers: Mapping[LedgerId, LedgerMetadata],
    packs: Packs = NO_PACKS,
) -> list[Unit]:
    """Ranges cut at borders of fragments and by stripe; those of a pack where the pack lies. Those
    of unknown ledgers are left out."""
    if not packs.packs:
        return _former_units(ranges, ledgers)
    units: list[Unit] = []
    for pack, section in packs.sections(ranges):
        if pack is None:
            units += _former_units(section, ledgers)
        elif (metadata := ledgers.get(pack.ledger_id)) is not None:
            units += _packed_units(pack, section, metadata)
    return units


def _packed_units(
    pack: Pack, section: Sequence[SegmentRange], metadata: LedgerMetadata
) -> list[Unit]:
    """The units of ranges in a pack. Its index, which says where their rows are, is not read for
    that: they are taken to lie where their segments lie among all of the pack."""
    segments = pack.end_segment - pack.first_segment
    before = section[0].segment.number - pack.first_segment
    behind = section[-1].segment.number + 1 - pack.first_segment
    first = pack.entries * before // segments
    last = max(first, -(-pack.entries * behind // segments) - 1)
    size_bytes = pack.size_bytes * sum(part.rows for part in section) // pack.rows
    return units_of_entries(metadata, first, last, size_bytes)


def ledgers_of(ranges: Iterable[SegmentRange], packs: Packs = NO_PACKS) -> dict[LedgerId, None]:
    """The ledgers that ranges are read from, in order, each once."""
    if not packs.packs:
        return {part.segment.ledger_id: None for part in ranges}
    return {
        part.segment.ledger_id if pack is None else pack.ledger_id: None
        for pack, section in packs.sections(ranges)
        for part in section
    }


def _former_units(
    ranges: Iterable[SegmentRange], ledgers: Mapping[LedgerId, LedgerMetadata]
) -> list[Unit]:
    sizes: Counter[tuple[LedgerId, EntryId, tuple[BookieId, ...]]] = Counter()
    for part in ranges:
        ledger_id = part.segment.ledger_id
        metadata = ledgers.get(ledger_id)
        if metadata is None:
            continue
        size_bytes = part.segment.size_bytes if part.is_whole else part.size_bytes
        if len(metadata.fragments) == 1 and metadata.quorums.write_quorum == len(
            metadata.fragments[0].bookies
        ):  # nearly all: thousands of small segments are planned in a trigger
            sizes[ledger_id, EntryId(0), tuple(metadata.fragments[0].bookies)] += size_bytes
            continue
        first, last = part.first_entry, part.last_entry
        entries = last - first + 1
        for fragment, count, bookies in copies_of(metadata, first, last):
            size = size_bytes if count == entries else size_bytes * count // entries
            sizes[ledger_id, fragment, bookies] += size
    return [Unit(*key[:2], size, key[2]) for key, size in sizes.items()]


def units_of_entries(
    metadata: LedgerMetadata, first: int, last: int, size_bytes: int
) -> list[Unit]:
    """The entries ``first`` .. ``last`` of a raw ledger, cut likewise."""
    entries = last - first + 1
    return [
        Unit(metadata.ledger_id, fragment, size_bytes * count // entries, bookies)
        for fragment, count, bookies in copies_of(metadata, first, last)
    ]


def weights_of(bookies: Iterable[BookieInfo]) -> dict[BookieId, float]:
    """How much each registered bookie should serve, compared with others."""
    return {
        info.bookie_id: 1.0 if info.state is BookieState.WRITABLE else READ_ONLY_BOOKIE_SHARE
        for info in bookies
    }


class Balance:
    """Gives partitions their bookies, one after the other. ``turn`` decides between equals: plans
    that differ in it begin at other bookies, so that small ones load all of them in time."""

    def __init__(self, weights: Mapping[BookieId, float], *, turn: int) -> None:
        self._weights = weights
        self._turn = turn
        self._known = sorted(weights)
        self._load: Counter[BookieId] = Counter()

    def first_reads(self, units: Sequence[Unit]) -> FirstReads:
        """Whom a partition of these units asks first."""
        left = list(units)
        order: list[BookieId] = []
        sizes: Counter[tuple[LedgerId, EntryId, BookieId]] = Counter()
        while left:
            best = self._best(left)
            order.append(best)
            for unit in left:
                if best in unit.bookies:
                    self._load[best] += unit.size_bytes
                    sizes[unit.ledger_id, unit.fragment, best] += unit.size_bytes
            left = [unit for unit in left if best not in unit.bookies]
        self._add_others(order, {bookie for unit in units for bookie in unit.bookies})
        assert sizes.total() == sum(unit.size_bytes for unit in units), "each unit once"
        return FirstReads(tuple(order), tuple(FirstRead(*key, size) for key, size in sizes.items()))

    def expected_reads(self, sample: Sequence[Unit], size_bytes: int) -> FirstReads:
        """Whom a partition of this size asks first, of which only some units are known. The other
        bookies follow, because the rest of it may lie there."""
        total = sum(unit.size_bytes for unit in sample)
        if not total:
            return FirstReads()
        grown = [unit._replace(size_bytes=unit.size_bytes * size_bytes // total) for unit in sample]
        reads = self.first_reads(grown)
        order = list(reads.order)
        self._add_others(order, self._known)
        return reads._replace(order=tuple(order))

    def _add_others(self, order: list[BookieId], bookies: Iterable[BookieId]) -> None:
        """Behind those that are in the order, those that have served least first."""
        others = set(bookies).difference(order)
        order += sorted(others, key=lambda bookie: (self._cost(bookie, 0), self._place(bookie)))

    def _best(self, units: Sequence[Unit]) -> BookieId:
        """The bookie that has served least, and holds most: what it has served before, and what it
        lacks of these, count alike."""
        total = sum(unit.size_bytes for unit in units)
        shares: Counter[BookieId] = Counter()
        for unit in units:
            for bookie in unit.bookies:
                shares[bookie] += unit.size_bytes
        return min(
            shares,
            key=lambda bookie: (
                self._cost(bookie, shares[bookie]) + total - 2 * shares[bookie],
                self._place(bookie),
            ),
        )

    def _cost(self, bookie: BookieId, more: int) -> float:
        """What the bookie will have served, counted more than once if its weight is small. One that
        is not registered is chosen only if there is no other."""
        weight = self._weights.get(bookie, 0.0)
        return (self._load[bookie] + more) / weight if weight else float("inf")

    def _place(self, bookie: BookieId) -> tuple[int, BookieId]:
        if bookie not in self._weights:
            return len(self._known), bookie
        return (self._known.index(bookie) - self._turn) % len(self._known), bookie
