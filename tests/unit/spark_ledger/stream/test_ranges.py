"""Ranges of segments between two positions: which rows they are, and how these are numbered."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from spark_ledger.stream.model import Commit, Segment
from spark_ledger.stream.ranges import ranges_between, size_between
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.plan.world import commits, segment, streams


def in_commits(data: st.DataObject, made: list[Segment]) -> list[Commit]:
    """The segments in commits of one or several."""
    rows = [0, *accumulate(each.rows for each in made)]
    size_bytes = [0, *accumulate(each.size_bytes for each in made)]
    bounds = sorted(data.draw(st.sets(st.integers(1, len(made) - 1)))) if len(made) > 1 else []
    return [
        replace(
            commits(made[first])[0],
            number=number,
            segments=tuple(made[first:behind]),
            rows_before=rows[first],
            bytes_before=size_bytes[first],
        )
        for number, (first, behind) in enumerate(
            zip([0, *bounds], [*bounds, len(made)], strict=True)
        )
    ]


@given(data=st.data(), entries=streams)
def test_ranges_from_anywhere_have_the_row_numbers_of_the_stream(
    data: st.DataObject, entries: list[tuple[int, ...]]
) -> None:
    """Commits of several segments, too: one that a range leaves out counts all the same."""
    made = [segment(n, rows) for n, rows in enumerate(entries)]
    before = [0, *accumulate(each.rows for each in made)]
    grouped = in_commits(data, made)
    start = data.draw(st.integers(0, len(made) - 1))
    end = data.draw(st.integers(start + 1, len(made)))
    found = ranges_between(grouped, Dlsn(start), Dlsn(end))
    assert [each.segment.number for each in found] == list(range(start, end))
    assert [each.segment_row for each in found] == before[start:end]


@given(data=st.data(), entries=streams)
def test_size_between_two_positions_is_that_of_their_ranges(
    data: st.DataObject, entries: list[tuple[int, ...]]
) -> None:
    """Though only the commits in which they are are looked at."""
    grouped = in_commits(data, [segment(n, rows) for n, rows in enumerate(entries)])
    rows = [
        Dlsn(n, entry, slot)
        for n, counts in enumerate(entries)
        for entry, count in enumerate(counts)
        for slot in range(count)
    ]
    start = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(start + 1, len(rows)))
    positions = rows[start], [*rows, Dlsn(len(entries))][end]
    first, last = (
        next(each for each in grouped if rows[at].segment < each.end_segment)
        for at in (start, end - 1)
    )
    found = ranges_between(grouped, *positions)
    assert size_between(first, last, *positions) == (
        end - start,
        sum(sum(each.entry_bytes) for each in found),
    )
