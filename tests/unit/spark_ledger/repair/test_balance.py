"""Copies that move from full bookies to empty ones: moves end, even things out, spoil nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ledger.protocol.racks import faults
from spark_ledger.repair.balance import Balance, Move, copies_held, keeps_placement
from spark_ledger.repair.plan import final_fragments, renamed
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    BookieState,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    PlacementPolicy,
    Quorums,
)

ANYWHERE = PlacementPolicy()
FREE = 10_000


def bookie(
    number: int, *, rack: str = "/r", free: int = FREE, state: BookieState = BookieState.WRITABLE
) -> BookieInfo:
    return BookieInfo(BookieId(f"b{number}"), "", state, rack, free)


def closed(
    fragments: Sequence[tuple[int, Sequence[int]]],
    *,
    size: int = 1000,
    last: int = 9,
    quorums: Quorums | None = None,
    state: LedgerState = LedgerState.CLOSED,
) -> LedgerMetadata:
    width = len(fragments[0][1])
    return LedgerMetadata(
        ledger_id=LedgerId(7),
        quorums=quorums or Quorums(width, width, 1),
        state=state,
        fragments=tuple(
            Fragment(EntryId(first), tuple(BookieId(f"b{n}") for n in numbers))
            for first, numbers in fragments
        ),
        last_entry_id=EntryId(last),
        length=size,
    )


def balance(
    bookies: Sequence[BookieInfo], ledgers: Sequence[LedgerMetadata], tolerance: float = 0.1
) -> Balance:
    held: Counter[BookieId] = Counter()
    for ledger in ledgers:
        held.update(copies_held(ledger))
    return Balance(bookies, held, tolerance)


def test_copy_moves_from_the_fullest_bookie_to_the_emptiest() -> None:
    here = closed([(0, (0, 1, 2))])
    found = balance(
        [bookie(n) for n in range(5)],
        [here] * 10 + [closed([(0, (1, 0, 3))])] * 2 + [closed([(0, (1, 3, 2))])],
    )
    move = found.next_move(here, ANYWHERE)
    assert move is not None
    assert (move.source, move.target, move.size_bytes) == ("b1", "b4", 1000)


def test_ledger_that_is_open_stays_where_it_is() -> None:
    full = closed([(0, (0, 1))])
    found = balance([bookie(n) for n in range(4)], [full] * 10)
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        still = closed([(0, (0, 1)), (5, (1, 0))], state=state)
        assert found.next_move(still, ANYWHERE) is None and copies_held(still) == {}
    assert found.next_move(full, ANYWHERE) is not None


def test_fragment_without_entries_stays_where_it_is() -> None:
    found = balance([bookie(n) for n in range(4)], [closed([(0, (0, 1))])] * 10)
    assert found.next_move(closed([(0, (0, 1))], last=-1, size=0), ANYWHERE) is None
    move = found.next_move(closed([(0, (0, 1)), (10, (1, 0))]), ANYWHERE)
    assert move is not None and move.fragment.first == 0


def test_fragment_with_a_member_that_is_gone_waits_for_its_repair() -> None:
    found = balance([bookie(n) for n in (0, 2, 3)], [closed([(0, (0, 1))])] * 10)
    assert found.next_move(closed([(0, (0, 1))]), ANYWHERE) is None
    assert found.next_move(closed([(0, (0, 2))]), ANYWHERE) is not None


def test_full_bookie_that_is_read_only_gives_and_takes_nothing() -> None:
    full = bookie(0, free=0, state=BookieState.READ_ONLY)
    empty = bookie(2, state=BookieState.READ_ONLY)
    ledgers = [closed([(0, (0, 1))])] * 10
    found = balance([full, bookie(1), empty, bookie(3)], ledgers)
    assert found.shares[BookieId("b0")].used == 1.0
    move = found.next_move(ledgers[0], ANYWHERE)
    assert move is not None and (move.source, move.target) == ("b0", "b3")
    assert found.next_move(ledgers[0], ANYWHERE, refused={BookieId("b3")}) is None


def test_bookie_with_twice_the_space_holds_twice_as_much() -> None:
    ledgers = [closed([(0, (0,))], size=100) for _ in range(300)]
    full = bookie(0, free=0, state=BookieState.READ_ONLY)
    bookies = [full, bookie(1, free=60_000), bookie(2, free=30_000)]
    after = evened(balance(bookies, ledgers, 0.02), ledgers)[0].shares
    for number, wanted in enumerate((7_500, 15_000, 7_500)):
        assert abs(after[BookieId(f"b{number}")].held_bytes - wanted) <= 300


def test_bookie_that_does_not_say_what_is_free_counts_as_the_one_in_the_middle() -> None:
    found = balance([bookie(0, free=10), bookie(1, free=0), bookie(2, free=50)], [])
    assert found.shares[BookieId("b1")].capacity_bytes == 50
    assert balance([bookie(0, free=0), bookie(1, free=0)], []).is_even


def evened(
    found: Balance, ledgers: Sequence[LedgerMetadata], policy: PlacementPolicy = ANYWHERE
) -> tuple[Balance, list[Move], list[LedgerMetadata]]:
    """All moves, one after the other, until none helps."""
    moves: list[Move] = []
    stored = list(ledgers)
    while not found.is_even:
        before = len(moves)
        for number, ledger in enumerate(stored):
            move = found.next_move(ledger, policy)
            if move is None:
                continue
            planned = renamed(ledger, move.fragment, {move.bookie_index: move.target})
            assert planned is not None, "the target was not a member"
            stored[number] = planned
            found.take(move)
            moves.append(move)
        if len(moves) == before:
            break
        assert len(moves) < 1_000, "moves end"
    return found, moves, stored


def burden(found: Balance) -> float:
    return sum(each.held_bytes**2 / each.capacity_bytes for each in found.shares.values())


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=40),
    members=st.randoms(use_true_random=False),
    free=st.lists(st.integers(1, 40_000), min_size=4, max_size=7),
    racks=st.integers(1, 3),
)
def test_moves_end_even_things_out_and_keep_racks(
    sizes: list[int], members: random.Random, free: list[int], racks: int
) -> None:
    bookies = [bookie(n, rack=f"/r{n % racks}", free=each) for n, each in enumerate(free)]
    rack_of = {each.bookie_id: each.rack for each in bookies}
    policy = PlacementPolicy(min_racks=min(2, racks))
    numbers = range(len(bookies))
    ledgers = [
        closed([(0, members.sample(numbers, 3)), (5, members.sample(numbers, 3))], size=n)
        for n in sizes
    ]
    begin = balance(bookies, ledgers)
    before, total = burden(begin), sum(each.held_bytes for each in begin.shares.values())
    found, moves, stored = evened(begin, ledgers, policy)
    assert burden(found) <= before + 1e-6
    held: Counter[BookieId] = Counter()
    for old, new in zip(ledgers, stored, strict=True):
        held.update(copies_held(new))
        for was, now in zip(final_fragments(old), final_fragments(new), strict=True):
            assert was[:2] == now[:2] and len(set(now.bookies)) == 3
            places = [[rack_of[each] for each in one.bookies] for one in (was, now)]
            against = [len(faults(each, old.quorums, policy)) for each in places]
            assert against[1] <= against[0]
            assert len(set(places[1])) >= len(set(places[0]))
    shares = found.shares
    assert {name: each.held_bytes for name, each in shares.items() if each.held_bytes} == +held
    assert sum(held.values()) == total
    assert all(move.size_bytes > 0 for move in moves)


def test_many_small_ledgers_become_even_for_a_new_bookie() -> None:
    numbers = [(n % 4, (n + 1) % 4, (n + 2) % 4) for n in range(400)]
    ledgers = [closed([(0, each)], size=100) for each in numbers]
    found = balance([bookie(n, free=1_000_000) for n in range(5)], ledgers)
    excess = found.excess_bytes
    after, moves, _ = evened(found, ledgers)
    assert after.is_even
    moved = sum(move.size_bytes for move in moves)
    assert {move.target for move in moves} == {"b4"} and 0.85 * excess <= moved <= excess


def test_copy_does_not_move_beside_its_neighbour_in_a_rack() -> None:
    policy, quorums = PlacementPolicy(min_racks=2), Quorums(3, 2, 2)
    racks = ["/a", "/b", "/a"]
    assert not keeps_placement(racks, 1, "/a", quorums, policy), "no write set may be in one rack"
    assert keeps_placement(racks, 1, "/c", quorums, policy)
    assert not keeps_placement(["/a", "/b", "/c"], 0, "/b", Quorums(3, 3, 2), ANYWHERE), (
        "three racks stay three, also where two are enough"
    )
    spread = ["/x/a", "/y/b", "/x/c"]
    assert not keeps_placement(spread, 1, "/x/d", Quorums(3, 3, 2), ANYWHERE), "nor one region"


def test_placements_that_are_as_good_do_not_take_turns() -> None:
    """What each costs differs in the last bit only."""
    for free in range(1, 400):
        one, other = closed([(0, (0,))], size=940), closed([(0, (1,))], size=1)
        found = balance([bookie(0, free=free), bookie(1, free=free + 939)], [one, other], 0.01)
        assert len(evened(found, [one, other])[1]) <= 2


def test_one_large_ledger_stays_if_its_move_would_only_turn_things_round() -> None:
    large = closed([(0, (0,))], size=1000)
    found = balance([bookie(0), bookie(1)], [large])
    assert not found.is_even
    assert found.next_move(large, ANYWHERE) is None
