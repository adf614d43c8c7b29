"""Copies are spread over racks and regions: for every ensemble, write quorum and set of racks."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ledger.errors import ConfigurationError
from spark_ledger.protocol import racks as racks_module
from spark_ledger.protocol.quorum import write_set
from spark_ledger.protocol.racks import faults, moves, place, region_of
from spark_ledger.types import BookieId, BookieInfo, PlacementPolicy, Quorums

RACKS = ("/eu/r1", "/eu/r2", "/us/r1", "/asia/r1")
TWO_RACKS = PlacementPolicy(min_racks=2)


def bookies(*racks: str) -> list[BookieInfo]:
    return [BookieInfo(BookieId(f"b{i}"), "h:1", rack=rack) for i, rack in enumerate(racks)]


def adheres(racks: list[str], quorums: Quorums, policy: PlacementPolicy) -> bool:
    """The definition, written down a second time: each entry, each set of places that is lost."""
    for entry_id in range(quorums.ensemble_size):
        copies = [racks[index] for index in write_set(entry_id, quorums)]
        for places, least, durable in (
            (copies, policy.min_racks, policy.min_racks_for_durability),
            (
                [region_of(rack) for rack in copies],
                policy.min_regions,
                policy.min_regions_for_durability,
            ),
        ):
            if len(set(places)) < min(least, quorums.write_quorum):
                return False
            for lost in combinations(sorted(set(places)), min(durable - 1, len(set(places)))):
                if sum(each in lost for each in places) >= quorums.ack_quorum:
                    return False
    return True


@st.composite
def quorums_of(draw: st.DrawFn) -> Quorums:
    e = draw(st.integers(1, 5))
    wq = draw(st.integers(1, e))
    return Quorums(e, wq, draw(st.integers(1, wq)))


POLICIES = st.builds(
    PlacementPolicy,
    min_racks=st.integers(1, 4),
    min_regions=st.integers(1, 3),
    min_racks_for_durability=st.integers(1, 3),
    min_regions_for_durability=st.integers(1, 3),
)


@settings(max_examples=120)
@given(quorums_of(), POLICIES, st.lists(st.sampled_from(RACKS), min_size=1, max_size=7), st.data())
def test_placement_adheres_whenever_one_does_and_says_so_otherwise(
    quorums: Quorums, policy: PlacementPolicy, racks: list[str], data: st.DataObject
) -> None:
    e = quorums.ensemble_size
    members = [data.draw(st.none() | st.sampled_from(RACKS)) for _ in range(e)]
    candidates = bookies(*racks)
    placed = place(members, candidates, quorums, policy)
    vacant = [index for index in range(e) if members[index] is None]
    if placed is None:
        assert len(candidates) < len(vacant)
        return
    assert sorted(placed.bookies) == vacant
    assert len(set(placed.bookies.values())) == len(vacant)
    rack_of = {bookie.bookie_id: bookie.rack for bookie in candidates}
    chosen = iter([rack_of[placed.bookies[index]] for index in vacant])
    whole = [next(chosen) if rack is None else rack for rack in members]
    assert adheres(whole, quorums, policy) is (not placed.faults)
    if placed.faults:
        supply = Counter(racks)
        for combination in product(sorted(supply), repeat=len(vacant)):
            if Counter(combination) <= supply:
                turn = iter(combination)
                other = [next(turn) if rack is None else rack for rack in members]
                assert not adheres(other, quorums, policy), "an adhering one was there"


@pytest.mark.parametrize("e", range(1, 8))
def test_copies_are_in_as_many_racks_as_there_are_without_a_policy(e: int) -> None:
    candidates = bookies(*(f"/r{i % 3}" for i in range(9)))
    for wq in range(1, e + 1):
        quorums = Quorums(e, wq, 1)
        placed = place([None] * e, candidates, quorums, PlacementPolicy())
        assert placed is not None and placed.faults == ()
        if e == wq:
            used = Counter(int(placed.bookies[i][1:]) % 3 for i in range(e))
            assert len(used) == min(3, e)


def test_every_write_set_spans_the_racks_and_not_only_the_ensemble() -> None:
    candidates = bookies("/a", "/a", "/a", "/a", "/b", "/b")
    placed = place([None] * 6, candidates, Quorums(6, 2, 1), TWO_RACKS)
    assert placed is not None and len(placed.faults) == 2, (
        "four of six in one rack cannot alternate"
    )
    placed = place([None] * 4, candidates, Quorums(4, 2, 1), TWO_RACKS)
    assert placed is not None and placed.faults == ()
    in_a = [int(placed.bookies[index][1:]) < 4 for index in range(4)]
    assert in_a in ([True, False] * 2, [False, True] * 2)


def test_search_goes_back_where_the_first_choice_does_not_lead_to_the_end() -> None:
    # Taking each time the rack that is used least ends with two neighbours of the ring in one rack.
    candidates = bookies("/a", "/b", "/b", "/c", "/c")
    placed = place([None] * 5, candidates, Quorums(5, 3, 2), PlacementPolicy(min_racks=2))
    assert placed is not None and placed.faults == ()
    odd = place([None] * 5, bookies(*"aabbc"), Quorums(5, 2, 1), TWO_RACKS)
    assert odd is not None and odd.faults == ()


def test_replacement_comes_from_the_rack_that_is_missing() -> None:
    placed = place(["/a", None, "/b"], bookies("/a", "/b", "/c"), Quorums(3, 3, 2), TWO_RACKS)
    assert placed is not None and placed.bookies == {1: "b2"}


def test_least_loaded_is_taken_within_a_rack_and_among_equal_racks() -> None:
    placed = place([None] * 2, bookies("/b", "/b", "/a"), Quorums(2, 2, 1), TWO_RACKS)
    assert placed is not None and placed.bookies == {0: "b0", 1: "b2"}
    placed = place([None] * 3, bookies("/b", "/b", "/b"), Quorums(3, 3, 2), PlacementPolicy())
    assert placed is not None and placed.bookies == {0: "b0", 1: "b1", 2: "b2"}


@pytest.mark.parametrize(
    ("members", "candidates", "write_quorum", "chosen"),
    [
        (["/a", None, "/b", "/d"], ["/a", "/b", "/c"], 2, "b2"),
        (["/x/1", "/x/1", "/y/1", None], ["/x/2", "/y/2"], 4, "b1"),
        (["/x/1", "/x/2", "/y/1", None], ["/x/3", "/y/1"], 4, "b1"),
    ],
    ids=["of all write sets", "copies and not racks", "region before rack"],
)
def test_neighbours_are_in_other_regions_and_racks_as_far_as_there_are_any(
    members: list[str | None], candidates: list[str], write_quorum: int, chosen: str
) -> None:
    """Nothing is demanded here: this is what every ledger gets without a policy."""
    quorums = Quorums(4, write_quorum, 1)
    placed = place(members, bookies(*candidates), quorums, PlacementPolicy())
    assert placed is not None and placed.bookies == {members.index(None): chosen}


def test_placement_with_faults_counts_the_racks_that_it_has_chosen_before() -> None:
    """Six and five have a fault already, so the whole cannot adhere, and goes index by index."""
    members = ["/x/5", "/x/1", None, None, "/x/2", "/x/3", "/x/3"]
    candidates = bookies("/f/1", "/f/1", "/x/4")
    placed = place(members, candidates, Quorums(7, 3, 1), PlacementPolicy(min_racks=3))
    assert placed is not None and placed.bookies == {2: "b0", 3: "b2"}


def test_loss_of_a_region_keeps_what_was_acknowledged() -> None:
    policy = PlacementPolicy(min_regions_for_durability=2)
    two = ["/eu/a", "/eu/b", "/us/a"]
    assert faults(two, Quorums(3, 3, 2), policy) == (
        "1 region(s) hold 2 copies of an entry, and 2 acknowledge it",
    )
    assert faults(two, Quorums(3, 3, 3), policy) == ()
    assert faults(["/eu/a", "/us/a", "/as/a"], Quorums(3, 3, 2), policy) == ()


def test_fault_says_how_many_racks_there_are() -> None:
    assert faults(["/a", "/a"], Quorums(2, 2, 1), TWO_RACKS) == (
        "copies of an entry are in 1 rack(s), and not in 2",
    )
    assert faults(["/a"], Quorums(1, 1, 1), TWO_RACKS) == (), "one copy is in one rack"
    assert faults(["/a", None], Quorums(2, 2, 1), TWO_RACKS) == (), "the other may come elsewhere"


def test_replacement_that_cannot_adhere_adds_as_few_faults_as_it_can() -> None:
    quorums, policy = Quorums(4, 2, 1), TWO_RACKS
    placed = place(["/a", "/a", None, "/b"], bookies("/a", "/b", "/c"), quorums, policy)
    assert placed is not None and placed.bookies == {2: "b2"} and len(placed.faults) == 1


def test_search_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racks_module, "PLACEMENT_STEPS_MAX", 1)
    placed = place([None] * 2, bookies("/a", "/b"), Quorums(2, 2, 1), TWO_RACKS)
    assert placed is not None and placed.faults == ()  # index by index finds it too
    for bound, adheres_then in ((3, False), (4, True)):  # the first choice has to be taken back
        monkeypatch.setattr(racks_module, "PLACEMENT_STEPS_MAX", bound)
        members = ["/a", None, None, "/b"]
        placed = place(members, bookies("/c", "/b"), Quorums(4, 2, 1), TWO_RACKS)
        assert placed is not None and (not placed.faults) is adheres_then


def test_every_bookie_that_there_is_may_have_to_move_in() -> None:
    policy = PlacementPolicy(min_racks=3)
    found = moves(["/a"] * 3, bookies("/b", "/c"), Quorums(3, 3, 2), policy)
    assert sorted(found.values()) == ["b0", "b1"]
    policy = PlacementPolicy(min_regions=2, min_racks=2)
    assert moves(["/a"], bookies("/b"), Quorums(1, 1, 1), policy) == {}, "one copy adheres"


@pytest.mark.parametrize(
    ("rack", "region"), [("/eu/r1", "/eu"), ("/r1", "/"), ("/eu/dc/r1", "/eu"), ("/eu/", "/")]
)
def test_region_is_the_first_of_several_parts(rack: str, region: str) -> None:
    assert region_of(rack) == region


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2"])
def test_policy_refuses_what_is_no_number_from_one_on(value: object) -> None:
    with pytest.raises(ConfigurationError, match="min_racks"):
        PlacementPolicy(min_racks=value)  # type: ignore[arg-type]


@settings(max_examples=60)
@given(quorums_of(), POLICIES, st.lists(st.sampled_from(RACKS), min_size=0, max_size=5), st.data())
def test_moves_are_the_fewest_that_make_an_ensemble_adhere(
    quorums: Quorums, policy: PlacementPolicy, others: list[str], data: st.DataObject
) -> None:
    e = quorums.ensemble_size
    members = [data.draw(st.sampled_from(RACKS)) for _ in range(e)]
    candidates = bookies(*others)
    rack_of = {bookie.bookie_id: bookie.rack for bookie in candidates}
    found = moves(members, candidates, quorums, policy)
    after = [rack_of[found[i]] if i in found else rack for i, rack in enumerate(members)]
    assert len(set(found.values())) == len(found)
    if found:
        assert adheres(after, quorums, policy) and not adheres(members, quorums, policy)
    fewer = min(len(found) or e + 1, len(others) + 1)
    for count in range(1, min(fewer, 3)):
        for leaving in combinations(range(e), count):
            for chosen in permutations(others, count):
                tried = list(members)
                for index, rack in zip(leaving, chosen, strict=True):
                    tried[index] = rack
                if not adheres(members, quorums, policy):
                    assert not adheres(tried, quorums, policy), "fewer would have done"
