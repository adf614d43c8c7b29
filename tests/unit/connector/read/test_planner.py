"""The planner of triggers: each takes what its limits allow, and at least one entry."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.options import TriggerLimits
from connector.read.planner import Backlog, has_rows, shared_ends, trigger_end
from spark_ledger.limits import MIB
from spark_ledger.stream.model import Segment
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.plan.world import commits, segment, streams


def segments_from(made: list[Segment], start: Dlsn) -> list[Segment]:
    return [one for one in made if one.number >= start.segment]


@settings(max_examples=200)
@given(
    entries=streams,
    max_rows=st.none() | st.integers(1, 12),
    max_bytes=st.none() | st.integers(1, 12),
    slot=st.integers(0, 3),
)
def test_trigger_end_reaches_the_end_within_its_limits(
    entries: list[tuple[int, ...]], max_rows: int | None, max_bytes: int | None, slot: int
) -> None:
    made = [segment(n, rows, entry_bytes=2) for n, rows in enumerate(entries)]
    position = Dlsn(0, 0, min(slot, entries[0][0] - 1))
    expected = sum(map(sum, entries)) - position.slot
    limits = TriggerLimits(max_rows, max_bytes)
    positions, rows = [position], 0
    while position < Dlsn(len(entries)):
        end = trigger_end(segments_from(made, position), position, limits)
        part = ranges_between(commits(*made), position, end)
        rows_taken = sum(one.rows for one in part)
        assert rows_taken >= 1
        entries_taken = sum(one.end[0] - one.start[0] for one in part)
        if entries_taken > 1 and max_rows is not None:
            assert rows_taken <= max_rows
        position, rows = end, rows + rows_taken
        positions.append(position)
    assert rows == expected
    assert all(a < b for a, b in pairwise(positions))
    assert position == Dlsn(len(entries))


def test_trigger_end_takes_whole_entries() -> None:
    made = [segment(0, (3, 3, 3)), segment(1, (3, 3))]
    assert trigger_end(made, Dlsn(0), TriggerLimits(max_rows=7)) == Dlsn(0, 2)
    assert trigger_end(made, Dlsn(0), TriggerLimits(max_rows=9)) == Dlsn(1)
    assert trigger_end(made, Dlsn(0), TriggerLimits(max_rows=1)) == Dlsn(0, 1)
    assert trigger_end(made, Dlsn(0), TriggerLimits(max_bytes=4 * MIB)) == Dlsn(1, 1)
    assert trigger_end(made, Dlsn(0, 1, 2), TriggerLimits(max_rows=4)) == Dlsn(1)
    assert trigger_end(made, Dlsn(0), TriggerLimits()) == Dlsn(2)
    assert trigger_end([], Dlsn(2), TriggerLimits(max_rows=1)) == Dlsn(2)


def backlog(made: list[Segment], start: Dlsn) -> Backlog:
    return Backlog(start, Dlsn(len(made)), lambda at: segments_from(made, at))


def rows_to(made: list[Segment], position: Dlsn) -> int:
    return sum(part.rows for part in ranges_between(commits(*made), Dlsn(0), position))


@settings(max_examples=150)
@given(several=st.lists(streams, min_size=1, max_size=4), max_rows=st.integers(1, 20))
def test_shared_limit_is_kept_used_up_and_reaches_all_ends(
    several: list[list[tuple[int, ...]]], max_rows: int
) -> None:
    made = [[segment(n, rows) for n, rows in enumerate(entries)] for entries in several]
    at = [Dlsn(0)] * len(made)
    while any(position < Dlsn(len(one)) for one, position in zip(made, at, strict=True)):
        backlogs = [backlog(one, position) for one, position in zip(made, at, strict=True)]
        ends = shared_ends(backlogs, TriggerLimits(max_rows=max_rows))
        taken = [
            rows_to(one, end) - rows_to(one, start)
            for one, start, end in zip(made, at, ends, strict=True)
        ]
        entries = sum(
            part.end[0] - part.start[0]
            for one, start, end in zip(made, at, ends, strict=True)
            for part in ranges_between(commits(*one), start, end)
        )
        assert entries >= 1
        assert sum(taken) <= max_rows or entries == 1
        for one, end in zip(made, ends, strict=True):
            if end < Dlsn(len(one)):
                following = one[end.segment].entry_rows[end.entry]
                assert sum(taken) + following > max_rows, "an entry that fits is taken"
        at = ends


def test_rest_of_a_shared_limit_goes_to_who_has_an_entry_of_its_size() -> None:
    made = [[segment(0, (3, 3))], [segment(0, (4, 4))], [segment(0, (10,))]]
    ends = shared_ends([backlog(one, Dlsn(0)) for one in made], TriggerLimits(max_rows=12))
    assert ends == [Dlsn(1), Dlsn(0, 1), Dlsn(0)], "six, four and none; two are left"


def test_has_rows_counts_from_the_start() -> None:
    made = [segment(0, (3, 3, 3)), segment(1, (3, 3))]
    assert has_rows(made, Dlsn(0), 15)
    assert not has_rows(made, Dlsn(0), 16)
    assert has_rows(made, Dlsn(0, 2, 1), 8)
    assert not has_rows(made, Dlsn(0, 2, 1), 9)
    assert not has_rows([], Dlsn(2), 1)


@pytest.mark.parametrize(
    ("limits", "entries"),
    [
        (TriggerLimits(max_bytes=700), [2, 2, 3]),
        (TriggerLimits(max_bytes=750), [2, 2, 3]),
        (TriggerLimits(max_bytes=300), [1, 1, 1]),
        (TriggerLimits(max_bytes=200), [1, 0, 1]),
        (TriggerLimits(max_bytes=1), [1, 0, 0]),
        (TriggerLimits(max_rows=4, max_bytes=700), [1, 1, 2]),
        (TriggerLimits(max_rows=18, max_bytes=400), [1, 1, 2]),
        (TriggerLimits(max_bytes=5000), [6, 6, 6]),
    ],
)
def test_limit_in_bytes_is_shared_as_one_in_rows(limits: TriggerLimits, entries: list[int]) -> None:
    made = [[segment(0, (1,) * 6, entry_bytes=100)] for _ in range(3)]
    ends = shared_ends([backlog(one, Dlsn(0)) for one in made], limits)
    assert [rows_to(one, end) for one, end in zip(made, ends, strict=True)] == entries
