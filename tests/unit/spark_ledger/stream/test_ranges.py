"""Ranges of segments between two positions: which rows they are, and how these are numbered."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.plan.world import commits, segment, streams


@given(data=st.data(), entries=streams)
def test_ranges_from_anywhere_have_the_row_numbers_of_the_stream(
    data: st.DataObject, entries: list[tuple[int, ...]]
) -> None:
    """Commits of several segments, too: one that a range leaves out counts all the same."""
    made = [segment(n, rows) for n, rows in enumerate(entries)]
    before = [0, *accumulate(each.rows for each in made)]
    bounds = sorted(data.draw(st.sets(st.integers(1, len(made) - 1)))) if len(made) > 1 else []
    grouped = [
        replace(
            commits(made[first])[0],
            number=number,
            segments=tuple(made[first:behind]),
            rows_before=before[first],
        )
        for number, (first, behind) in enumerate(
            zip([0, *bounds], [*bounds, len(made)], strict=True)
        )
    ]
    start = data.draw(st.integers(0, len(made) - 1))
    end = data.draw(st.integers(start + 1, len(made)))
    found = ranges_between(grouped, Dlsn(start), Dlsn(end))
    assert [each.segment.number for each in found] == list(range(start, end))
    assert [each.segment_row for each in found] == before[start:end]
