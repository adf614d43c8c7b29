"""How safe each entry of a ledger is, computed from the ranges that bookies say they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from spark_ledger.protocol.quorum import ranges_of_index
from spark_ledger.types import BookieId, Fragment, LedgerMetadata, Quorums

EntryRange = tuple[int, int]
"""First and last entry, both included."""


class Safety(Enum):
    """The zones of a ledger, from the safest to the least safe."""

    WRITE_QUORUM = "committed at WQ"
    ACK_QUORUM = "committed at AQ"
    BELOW_ACK_QUORUM = "committed, fewer than AQ copies found"
    UNREADABLE = "committed, no copy found"
    UNCONFIRMED = "unconfirmed"


class Zone(NamedTuple):
    """Neighbouring entries of one safety; ``copies_min`` is the smallest number of copies found."""

    first_entry: int
    last_entry: int
    safety: Safety
    copies_min: int


def safety_zones(
    metadata: LedgerMetadata,
    last_add_confirmed: int,
    holdings: Mapping[BookieId, Sequence[EntryRange]],
    start: int = 0,
    stop: int | None = None,
) -> list[Zone]:
    """Zones in entry order, from entry ``start`` to the last one confirmed or held by a bookie.

    ``stop``: only those up to there, left out; a bookie that was not asked further holds more.

    ``holdings`` has the bookies that answered; a copy counts only where its bookie belongs to the
    write set of the entry: readers ask no other.
    """
    highest_held = max((last for ranges in holdings.values() for _, last in ranges), default=-1)
    end = max(last_add_confirmed, -1 if metadata.is_closed else highest_held)
    if stop is not None:
        end = min(end, stop - 1) if metadata.is_closed else stop - 1
    zones: list[Zone] = []
    for fragment, first, last in fragments_with_ends(metadata, end):
        low, high = max(first, start), min(last, end)
        for piece_first, piece_last, copies in _copies(
            metadata.quorums, fragment, low, high, holdings
        ):
            add_zones(zones, _split(metadata, last_add_confirmed, piece_first, piece_last, copies))
    return zones


def add_zones(zones: list[Zone], following: Sequence[Zone]) -> None:
    """Add zones that follow; neighbours of one safety become one."""
    for zone in following:
        _append(zones, zone)


def fragments_with_ends(metadata: LedgerMetadata, end: int) -> list[tuple[Fragment, int, int]]:
    """Each fragment with its first and last entry; the last fragment ends at ``end``.

    A last fragment without entries has ``last == first - 1``.
    """
    fragments = metadata.fragments
    lasts = [following.first_entry - 1 for following in fragments[1:]]
    lasts.append(max(end, fragments[-1].first_entry - 1))
    return [
        (fragment, fragment.first_entry, last)
        for fragment, last in zip(fragments, lasts, strict=True)
    ]


def _copies(
    quorums: Quorums,
    fragment: Fragment,
    first: int,
    last: int,
    holdings: Mapping[BookieId, Sequence[EntryRange]],
) -> list[tuple[int, int, int]]:
    """(first, last, copies) covering ``first..last``: a sweep over where ranges start and end."""
    change: dict[int, int] = {}
    for index, bookie_id in enumerate(fragment.bookies):
        for range_first, range_last in holdings.get(bookie_id, ()):
            start, end = max(first, range_first), min(last, range_last)
            for low, high in ranges_of_index(index, start, end, quorums):
                change[low] = change.get(low, 0) + 1
                change[high + 1] = change.get(high + 1, 0) - 1
    pieces: list[tuple[int, int, int]] = []
    position, copies = first, 0
    for point in sorted(change):
        if point > position:
            pieces.append((position, point - 1, copies))
            position = point
        copies += change[point]
    assert copies == 0, "every range that starts ends"
    if position <= last:
        pieces.append((position, last, 0))
    return pieces


def _split(
    metadata: LedgerMetadata, last_add_confirmed: int, first: int, last: int, copies: int
) -> list[Zone]:
    """A piece with one number of copies, cut where confirmation ends."""
    zones = []
    confirmed_last = min(last, last_add_confirmed)
    if first <= confirmed_last:
        if copies >= metadata.quorums.write_quorum:
            safety = Safety.WRITE_QUORUM
        elif copies >= metadata.quorums.ack_quorum:
            safety = Safety.ACK_QUORUM
        elif copies:
            safety = Safety.BELOW_ACK_QUORUM
        else:
            safety = Safety.UNREADABLE
        zones.append(Zone(first, confirmed_last, safety, copies))
    if last > last_add_confirmed:
        start = max(first, last_add_confirmed + 1)
        zones.append(Zone(start, last, Safety.UNCONFIRMED, copies))
    return zones


def _append(zones: list[Zone], zone: Zone) -> None:
    if zones and zones[-1].safety is zone.safety and zones[-1].last_entry + 1 == zone.first_entry:
        before = zones.pop()
        zone = zone._replace(
            first_entry=before.first_entry, copies_min=min(before.copies_min, zone.copies_min)
        )
    zones.append(zone)
