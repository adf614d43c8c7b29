"""Choice of bookies and order of replicas."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from spark_ledger.protocol.placement import preferred, read_order, shortage
from spark_ledger.types import BookieId, BookieInfo, BookieState
from tests.unit.spark_ledger.protocol.ledgers import ids


def infos(names: str, state: BookieState = BookieState.WRITABLE) -> list[BookieInfo]:
    return [BookieInfo(name, "127.0.0.1:1", state) for name in ids(names)]


def stay(bookies: list[BookieInfo]) -> None:
    """A shuffle that changes nothing."""


def turn(bookies: list[BookieInfo]) -> None:
    bookies.reverse()


def chosen(
    candidates: list[BookieInfo],
    *,
    exclude: str = "",
    load: dict[BookieId, int] | None = None,
    shuffle: Callable[[list[BookieInfo]], None] = stay,
) -> tuple[BookieId, ...]:
    found = preferred(candidates, exclude=ids(exclude), load=load or {}, shuffle=shuffle)
    return tuple(bookie.bookie_id for bookie in found)


def test_writable_and_not_excluded_only() -> None:
    candidates = infos("b0 b1 b2") + infos("b3", BookieState.READ_ONLY)
    assert chosen(candidates, exclude="b1") == ids("b0 b2")


def test_shortage_names_bookies_and_reasons() -> None:
    assert shortage([], 3, silent=()) == (
        "needs 3 writable bookies; 0 are registered. Start more bookies"
    )
    candidates = infos("b0 b1 b2") + infos("b3 b4", BookieState.READ_ONLY)
    assert shortage(candidates, 3, silent=ids("b1 b4 gone also")) == (
        "needs 3 writable bookies; 5 are registered, of which 3 cannot be used now: "
        "b1 (did not answer), b4 (did not answer), "
        "b3 (read-only, as its disks are full or failing). Bring them back or start others"
    )
    full = BookieInfo(BookieId("b5"), "h:1", BookieState.READ_ONLY, reason="disk full: /d")
    assert "b5 (read-only, disk full: /d). Bring" in shortage([full], 1, silent=())
    assert "1 is registered" in shortage(infos("b0"), 3, silent=())


def test_no_candidates_are_no_choice() -> None:
    assert chosen([]) == ()


def test_least_loaded_first_and_chance_among_equals() -> None:
    load = {BookieId("b0"): 2, BookieId("b1"): 1, BookieId("b2"): 1}
    candidates = infos("b0 b1 b2 b3")
    assert chosen(candidates, load=load) == ids("b3 b1 b2 b0")
    assert chosen(candidates, load=load, shuffle=turn) == ids("b3 b2 b1 b0")


def test_equals_are_all_chosen_sometimes() -> None:
    draw = random.Random(5)
    firsts: Counter[BookieId] = Counter()
    for _ in range(300):
        firsts[chosen(infos("b0 b1 b2"), shuffle=draw.shuffle)[0]] += 1
    assert min(firsts[name] for name in ids("b0 b1 b2")) > 60


def test_bookies_with_more_space_get_more_ledgers_within_bounds() -> None:
    sizes = {"b0": 10, "b1": 100, "b2": 200, "b3": 10_000, "b4": 0, "b5": 1}
    candidates = [BookieInfo(BookieId(b), "h:1", free_bytes=size) for b, size in sizes.items()]
    draw, load = random.Random(5), Counter[BookieId]()
    for _ in range(1000):
        load[chosen(candidates, load=load, shuffle=draw.shuffle)[0]] += 1
    # The one in the middle has 100; it gets as much as the one that does not say.
    parts = {str(name): count / load[BookieId("b1")] for name, count in load.items()}
    assert parts["b2"] == pytest.approx(2, rel=0.1) and parts["b3"] == pytest.approx(3, rel=0.1)
    assert parts["b0"] == pytest.approx(parts["b5"], rel=0.2) == pytest.approx(0.1, rel=0.2)
    assert parts["b4"] == pytest.approx(1, rel=0.1)


def test_weight_counts_where_nobody_has_been_given_anything_yet() -> None:
    """Most clients make a ledger or two: were only what they gave divided by the weight, large
    bookies would get no more of those than small ones."""
    sizes = {"b0": 100, "b1": 100, "b2": 300}
    candidates = [BookieInfo(BookieId(b), "h:1", free_bytes=size) for b, size in sizes.items()]
    assert chosen(candidates) == ids("b0 b2 b1")
    assert chosen(candidates, shuffle=turn) == ids("b2 b1 b0")
    full = [
        BookieInfo(b, "h:1", BookieState.READ_ONLY, free_bytes=10_000) for b in ids("b3 b4 b5 b6")
    ]
    assert chosen([*candidates, *full]) == ids("b0 b2 b1"), "who is not chosen is no measure"
    silent = BookieInfo(BookieId("b1"), "h:1", free_bytes=0)
    two = [candidates[0], silent, candidates[2]]
    assert chosen(two) == ids("b0 b1 b2"), "it counts as the larger of two in the middle"


def test_candidates_are_distinct() -> None:
    with pytest.raises(AssertionError, match="listed once"):
        chosen(infos("b0 b0"))


@pytest.mark.parametrize(
    ("hint", "slow", "gone", "order"),
    [
        (0, "", "", [2, 0, 1]),
        (1, "", "", [0, 1, 2]),
        (5, "", "", [1, 2, 0]),
        (0, "b2", "", [0, 1, 2]),
        (0, "b2", "b0", [1, 2, 0]),
        (0, "b2 b0", "b2", [1, 0, 2]),
        (0, "b0 b1 b2", "b0 b1 b2", [2, 0, 1]),
    ],
)
def test_read_order(hint: int, slow: str, gone: str, order: list[int]) -> None:
    found = read_order((2, 0, 1), ids("b0 b1 b2"), hint, slow=ids(slow), gone=ids(gone))
    assert found == order


@pytest.mark.parametrize(
    ("hint", "slow", "gone", "far", "order"),
    [
        ("b1 b0 b2", "", "", "", [1, 0, 2]),
        ("b1", "", "", "", [1, 2, 0]),
        ("b9 b0", "", "", "", [0, 2, 1]),
        ("b1 b0 b2", "b1", "", "", [0, 2, 1]),
        ("b1 b0 b2", "", "b1", "b0", [2, 0, 1]),
        ("b1 b0 b2", "b2", "", "b1 b0", [1, 0, 2]),
    ],
)
def test_read_order_by_name_and_distance(
    hint: str, slow: str, gone: str, far: str, order: list[int]
) -> None:
    found = read_order(
        (2, 0, 1),
        ids("b0 b1 b2"),
        tuple(ids(hint)),
        slow=ids(slow),
        gone=ids(gone),
        distances=dict.fromkeys(ids(far), 2),
    )
    assert found == order


def test_readers_of_neighbouring_ranges_share_the_replicas() -> None:
    firsts = {read_order((0, 1, 2), ids("b0 b1 b2"), e, slow=(), gone=())[0] for e in range(3)}
    assert firsts == {0, 1, 2}


def test_a_lane_has_replicas() -> None:
    with pytest.raises(AssertionError, match="has a replica"):
        read_order((), ids("b0"), 0, slow=(), gone=())
