"""Safety zones: exact cases, and a comparison with counting entry by entry."""

from __future__ import annotations

import random

import pytest

from spark_ledger.cli.show.zones import Safety, Zone, fragments_with_ends, safety_zones
from spark_ledger.protocol.quorum import write_set
from spark_ledger.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Quorums


def ledger(*fragments: tuple[int, str], quorums: Quorums | None = None) -> LedgerMetadata:
    return LedgerMetadata(
        LedgerId(1),
        quorums or Quorums(3, 3, 2),
        tuple(
            Fragment(EntryId(first), tuple(BookieId(b) for b in bookies))
            for first, bookies in fragments
        ),
    )


def held(**ranges: list[tuple[int, int]]) -> dict[BookieId, list[tuple[int, int]]]:
    return {BookieId(name): value for name, value in ranges.items()}


def test_three_zones_of_an_open_ledger() -> None:
    zones = safety_zones(ledger((0, "abc")), 7, held(a=[(0, 9)], b=[(0, 7)], c=[(0, 4)]))
    assert zones == [
        Zone(0, 4, Safety.WRITE_QUORUM, 3),
        Zone(5, 7, Safety.ACK_QUORUM, 2),
        Zone(8, 9, Safety.UNCONFIRMED, 1),
    ]


def test_missing_answer_is_not_a_copy() -> None:
    zones = safety_zones(ledger((0, "abc")), 3, held(a=[(0, 3)]))
    assert zones == [Zone(0, 3, Safety.BELOW_ACK_QUORUM, 1)]


def test_copies_outside_the_fragment_do_not_count() -> None:
    metadata = ledger((0, "abc"), (5, "abd"))
    zones = safety_zones(metadata, 9, held(a=[(0, 9)], b=[(0, 9)], c=[(0, 9)], d=[(5, 9)]))
    assert zones == [Zone(0, 9, Safety.WRITE_QUORUM, 3)]
    zones = safety_zones(metadata, 9, held(a=[(0, 9)], b=[(0, 9)], c=[(0, 9)]))
    assert zones == [Zone(0, 4, Safety.WRITE_QUORUM, 3), Zone(5, 9, Safety.ACK_QUORUM, 2)]


def test_empty_ledger_has_no_zones() -> None:
    metadata = ledger((0, "abc"))
    assert safety_zones(metadata, -1, {}) == []
    assert fragments_with_ends(metadata, -1) == [(metadata.fragments[0], 0, -1)]


@pytest.mark.parametrize("seed", range(20))
def test_against_counting_entry_by_entry(seed: int) -> None:
    chance = random.Random(seed)
    cut = chance.randint(1, 15)
    metadata = ledger((0, "abcd"), (cut, "abce"), quorums=Quorums(4, 3, 2))
    confirmed = chance.randint(-1, 30)
    entries = {name: {e for e in range(31) if chance.random() < 0.7} for name in "abcde"}
    holdings = {
        BookieId(name): [(e, e) for e in sorted(held_entries)]
        for name, held_entries in entries.items()
    }
    found = {
        entry: zone
        for zone in safety_zones(metadata, confirmed, holdings)
        for entry in range(zone.first_entry, zone.last_entry + 1)
    }
    top = max([confirmed, *(max(held_entries) for held_entries in entries.values())])
    assert sorted(found) == list(range(top + 1)), f"seed {seed}"
    for entry, zone in found.items():
        ensemble = "abcd" if entry < cut else "abce"
        copies = sum(entry in entries[ensemble[i]] for i in write_set(entry, metadata.quorums))
        if entry > confirmed:
            expected = Safety.UNCONFIRMED
        elif copies >= 3:
            expected = Safety.WRITE_QUORUM
        else:
            expected = Safety.ACK_QUORUM if copies == 2 else Safety.BELOW_ACK_QUORUM
            expected = expected if copies else Safety.UNREADABLE
        assert zone.safety is expected, f"seed {seed} entry {entry}"
        assert zone.copies_min <= copies
