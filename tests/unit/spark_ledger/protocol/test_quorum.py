"""Quorum arithmetic against a deliberately naive twin: sets, loops, no formula in common."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

import pytest

from spark_ledger.protocol import quorum
from spark_ledger.types import Quorums

SHAPES = [
    Quorums(e, wq, aq) for e in range(1, 7) for wq in range(1, e + 1) for aq in range(1, wq + 1)
]
every_shape = pytest.mark.parametrize("quorums", SHAPES, ids=str)


# -- the naive twin --------------------------------------------------------------------------------


def windows(quorums: Quorums) -> list[set[int]]:
    """Every run of WQ neighbours on the ring of indexes, by walking around it."""
    ring = list(range(quorums.ensemble_size)) * 3
    return [
        set(ring[start : start + quorums.write_quorum]) for start in range(quorums.ensemble_size)
    ]


def copies(entry_id: int, quorums: Quorums) -> set[int]:
    """The indexes of an entry, by counting through all entries before it."""
    bookie_index = 0
    for _ in range(entry_id):
        bookie_index = bookie_index + 1 if bookie_index + 1 < quorums.ensemble_size else 0
    return windows(quorums)[bookie_index]


def subsets(count: int) -> Iterator[frozenset[int]]:
    for size in range(count + 1):
        yield from map(frozenset, combinations(range(count), size))


def ack_quorums(window: set[int], quorums: Quorums) -> list[set[int]]:
    """All sets of bookies whose acknowledgements would confirm an entry of this window."""
    return [set(some) for some in combinations(sorted(window), quorums.ack_quorum)]


# -- tests -----------------------------------------------------------------------------------------


@every_shape
def test_write_set(quorums: Quorums) -> None:
    for entry_id in range(3 * quorums.ensemble_size):
        indexes = quorum.write_set(entry_id, quorums)
        assert indexes[0] == entry_id % quorums.ensemble_size
        assert len(indexes) == quorums.write_quorum
        assert set(indexes) == copies(entry_id, quorums)
        for bookie_index in range(quorums.ensemble_size):
            holds = bookie_index in copies(entry_id, quorums)
            assert quorum.in_write_set(bookie_index, entry_id, quorums) == holds


@every_shape
def test_entries_of_an_index(quorums: Quorums) -> None:
    for bookie_index in range(quorums.ensemble_size):
        for first in range(quorums.ensemble_size + 1):
            for last in range(first - 1, 3 * quorums.ensemble_size):
                mine = [e for e in range(first, last + 1) if bookie_index in copies(e, quorums)]
                assert list(quorum.entries_of_index(bookie_index, first, last, quorums)) == mine
                ranges = list(quorum.ranges_of_index(bookie_index, first, last, quorums))
                assert all(low <= high for low, high in ranges), "none of them is empty"
                assert [e for low, high in ranges for e in range(low, high + 1)] == mine
        for last in range(3 * quorums.ensemble_size):
            mine = [e for e in range(last + 1) if bookie_index in copies(e, quorums)]
            found = quorum.last_entry_of_index(bookie_index, last, quorums)
            assert found == mine[-1] if mine else found < 0


@every_shape
def test_lanes_are_the_classes_of_equal_write_sets(quorums: Quorums) -> None:
    lanes = quorum.lanes(quorums)
    for entry_id in range(4 * quorums.ensemble_size):
        mine = [lane for lane in lanes if lane.first_at_or_after(entry_id) == entry_id]
        assert len(mine) == 1, "every entry is in one lane"
        assert set(mine[0].indexes) == copies(entry_id, quorums)
    for lane in lanes:
        entry_id = lane.first_at_or_after(0)
        assert lane.first_at_or_after(entry_id + 1) == entry_id + lane.stride


@every_shape
def test_coverage_is_the_exact_complement_of_a_possible_ack_quorum(quorums: Quorums) -> None:
    """C2: covered iff no write set can still collect AQ acknowledgements among the silent."""
    for known in subsets(quorums.ensemble_size):
        silent = set(range(quorums.ensemble_size)) - known
        possible = any(
            acks <= silent for window in windows(quorums) for acks in ack_quorums(window, quorums)
        )
        assert quorum.is_covered(known, quorums) == (not possible), sorted(known)


@every_shape
def test_every_ack_quorum_meets_every_coverage(quorums: Quorums) -> None:
    """Why fencing works: whoever confirmed an entry, one of them is among the fenced."""
    for known in subsets(quorums.ensemble_size):
        if quorum.is_covered(known, quorums):
            for window in windows(quorums):
                for acks in ack_quorums(window, quorums):
                    assert acks & known


@every_shape
def test_can_confirm(quorums: Quorums) -> None:
    for failed in subsets(quorums.ensemble_size):
        possible = all(
            any(not acks & failed for acks in ack_quorums(window, quorums))
            for window in windows(quorums)
        )
        assert quorum.can_confirm(failed, quorums) == possible, sorted(failed)


@every_shape
def test_not_written(quorums: Quorums) -> None:
    """So many denials leave no set of AQ bookies that could all hold the entry."""
    window = windows(quorums)[0]
    for denials in map(set, subsets(quorums.write_quorum)):
        possible = any(not acks & denials for acks in ack_quorums(window, quorums))
        assert quorum.is_not_written(len(denials), quorums) == (not possible)


@every_shape
def test_no_newer_confirmed(quorums: Quorums) -> None:
    """A LAC was told to at least AQ bookies of the ensemble, whichever they were."""
    ensemble = set(range(quorums.ensemble_size))
    for empty in map(set, subsets(quorums.ensemble_size)):
        possible = any(not acks & empty for acks in ack_quorums(ensemble, quorums))
        assert quorum.no_newer_confirmed(len(empty), quorums) == (not possible)


def liars(window: set[int], quorums: Quorums) -> list[set[int]]:
    """All sets of bookies of a write set that may lie at once (rule P5)."""
    return [set(some) for some in combinations(window, quorums.write_quorum - quorums.ack_quorum)]


@every_shape
def test_supported_is_what_somebody_honest_says_whoever_lies(quorums: Quorums) -> None:
    for supporters in subsets(quorums.ensemble_size):
        believed = any(
            all(supporters & window - lying for lying in liars(window, quorums))
            for window in windows(quorums)
        )
        assert quorum.is_supported(supporters, quorums) == believed, sorted(supporters)


@every_shape
def test_agreement_suffices_if_any_ack_quorum_is_believed_without_the_mute(
    quorums: Quorums,
) -> None:
    lie_max = quorums.write_quorum - quorums.ack_quorum
    for mute in subsets(quorums.ensemble_size):
        suffices = all(
            len(acks - mute) > lie_max
            for window in windows(quorums)
            for acks in ack_quorums(window, quorums)
        )
        assert quorum.agreement_suffices(mute, quorums) == suffices, sorted(mute)


@pytest.mark.parametrize("quorums", [q for q in SHAPES if q.ensemble_size < 5], ids=str)
def test_told_is_what_every_coverage_believes(quorums: Quorums) -> None:
    heard = [known for known in subsets(quorums.ensemble_size) if quorum.is_covered(known, quorums)]
    for knowing in subsets(quorums.ensemble_size):
        told = all(quorum.is_supported(knowing & known, quorums) for known in heard)
        assert quorum.is_told(knowing, quorums) == told, sorted(knowing)


class PerEntry:
    """Confirmation with one set of acknowledgements per entry."""

    def __init__(self, quorums: Quorums, count: int) -> None:
        self.quorums = quorums
        self.acks: list[set[int]] = [set() for _ in range(count)]

    def acknowledge(self, bookie_index: int, entry_id: int) -> None:
        assert bookie_index in copies(entry_id, self.quorums)
        self.acks[entry_id].add(bookie_index)

    def confirmed(self) -> int:
        end = -1
        for acks in self.acks:
            if len(acks) < self.quorums.ack_quorum:
                break
            end += 1
        return end


@every_shape
def test_confirmed_end_with_acknowledgements_in_any_order(quorums: Quorums) -> None:
    seed = 7_000 + SHAPES.index(quorums)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(12):
        count = draw.randrange(1, 3 * quorums.ensemble_size)
        model = PerEntry(quorums, count)
        acked = [-1] * quorums.ensemble_size
        todo = {
            bookie_index: [e for e in range(count) if bookie_index in copies(e, quorums)]
            for bookie_index in range(quorums.ensemble_size)
        }
        while any(todo.values()):
            bookie_index = draw.choice([s for s, entries in todo.items() if entries])
            for _ in range(draw.randrange(1, 3)):
                if todo[bookie_index]:
                    entry_id = todo[bookie_index].pop(0)
                    model.acknowledge(bookie_index, entry_id)
                    acked[bookie_index] = entry_id
            assert quorum.confirmed_end(acked, count - 1, quorums) == model.confirmed()
        assert quorum.confirmed_end(acked, count - 1, quorums) == count - 1


def test_confirmed_end_wants_one_number_per_bookie() -> None:
    with pytest.raises(AssertionError, match="one acknowledged entry"):
        quorum.confirmed_end([0, 0], 0, Quorums(3, 3, 2))


@pytest.mark.parametrize(
    ("shape", "denials", "unknown_per_write_set"),
    [
        ((3, 3, 2), 2, 1),
        ((3, 3, 3), 1, 2),
        ((2, 2, 2), 1, 1),
        ((5, 5, 3), 3, 2),
        ((5, 3, 2), 2, 1),
        ((6, 3, 2), 2, 1),
        ((3, 2, 2), 1, 1),
        ((3, 3, 1), 3, 0),
        ((3, 2, 1), 2, 0),
    ],
)
def test_table_of_well_known_shapes(
    shape: tuple[int, int, int], denials: int, unknown_per_write_set: int
) -> None:
    """The quick table that operators know: what ends a ledger, and how much silence is borne."""
    quorums = Quorums(*shape)
    assert quorum.is_not_written(denials, quorums)
    assert not quorum.is_not_written(denials - 1, quorums)
    for window in windows(quorums):
        for silent in map(set, subsets(quorums.ensemble_size)):
            if silent <= window:
                known = frozenset(range(quorums.ensemble_size)) - silent
                borne = len(silent) <= unknown_per_write_set
                # Silence in one window is also silence in its neighbours, never more than there.
                assert quorum.is_covered(known, quorums) == borne


@pytest.mark.parametrize(
    ("shape", "answers", "always"),
    [
        ((3, 3, 2), 2, True),
        ((3, 3, 3), 1, True),
        ((2, 2, 2), 1, True),
        ((5, 5, 3), 3, True),
        ((5, 3, 2), 4, True),
        ((6, 3, 2), 5, True),
        ((6, 3, 2), 4, False),
        ((3, 2, 2), 2, True),
        ((3, 3, 1), 3, True),
        ((3, 2, 1), 3, True),
    ],
)
def test_answers_that_fencing_needs(
    shape: tuple[int, int, int], answers: int, always: bool
) -> None:
    quorums = Quorums(*shape)
    sets = [frozenset(some) for some in combinations(range(quorums.ensemble_size), answers)]
    covered = [quorum.is_covered(known, quorums) for known in sets]
    assert all(covered) == always and any(covered)
    if always and shape != (6, 3, 2):
        fewer = [frozenset(some) for some in combinations(range(shape[0]), answers - 1)]
        assert not any(quorum.is_covered(known, quorums) for known in fewer)


def test_two_silent_of_six_are_borne_only_when_opposite() -> None:
    quorums = Quorums(6, 3, 2)
    for silent in combinations(range(6), 2):
        known = frozenset(range(6)) - set(silent)
        assert quorum.is_covered(known, quorums) == (silent[1] - silent[0] == 3)
