"""The planner of triggers: each takes what its limits allow, and at least one entry."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from connector.options import TriggerLimits
from connector.read.planner import has_rows, trigger_end
from spark_ledger.limits import MIB
from spark_ledger.stream.model import Segment
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.plan.world import commits, segment, streams


def segments_from(made: list[Segment], start: Dlsn) -> list[Segment]:
    return [one for one in made if one.number >= start.segment]


@settings(max_examples=200, deadline=None)
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


def test_has_rows_counts_from_the_start() -> None:
    made = [segment(0, (3, 3, 3)), segment(1, (3, 3))]
    assert has_rows(made, Dlsn(0), 15)
    assert not has_rows(made, Dlsn(0), 16)
    assert has_rows(made, Dlsn(0, 2, 1), 8)
    assert not has_rows(made, Dlsn(0, 2, 1), 9)
    assert not has_rows([], Dlsn(2), 1)
