"""The planner: no row lost or read twice, in order, balanced, the same when planned again."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.options import PlanLimits, TriggerLimits
from connector.read.planner import (
    Plan,
    has_rows,
    partition_count,
    plan_partitions,
    trigger_end,
)
from spark_ledger.limits import MIB
from spark_ledger.limits.connector import PARTITIONS_MAX
from spark_ledger.stream.model import Commit, Segment, ranges_between
from spark_ledger.types import Dlsn, EntryId, LedgerId


def segment(
    number: int,
    entry_rows: tuple[int, ...],
    *,
    first: int = 0,
    ledger: int = 1,
    entry_bytes: int = MIB,
) -> Segment:
    return Segment(
        number=number,
        ledger_id=LedgerId(ledger),
        first_entry=EntryId(first),
        last_entry=EntryId(first + len(entry_rows) - 1),
        rows=sum(entry_rows),
        size_bytes=entry_bytes * len(entry_rows),
        schema_version=0,
        entry_rows=entry_rows,
    )


def commits(*segments: Segment) -> list[Commit]:
    return [
        Commit(
            number=one.number,
            time_ms=1000 + one.number,
            first_segment=one.number,
            segments=(one,),
            sink_id="s",
            transaction_id=one.number,
        )
        for one in segments
    ]


def rows_of(plans: list[Plan]) -> list[tuple[int, int, int]]:
    """Every row as (segment, entry, slot), in the order in which it is read."""
    rows: list[tuple[int, int, int]] = []
    for plan in plans:
        for part in plan.ranges:
            for entry, count in enumerate(part.segment.entry_rows):
                rows.extend(
                    (part.segment.number, entry, slot)
                    for slot in range(count)
                    if part.start <= (entry, slot) < part.end
                )
    return rows


streams = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=6).map(tuple), min_size=1, max_size=6
)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), entries=streams)
def test_plan_has_each_row_of_the_range_once_and_in_order(
    data: st.DataObject, entries: list[tuple[int, ...]]
) -> None:
    segments = [
        segment(n, rows, first=3 * n, ledger=n % 2, entry_bytes=data.draw(st.integers(1, 9)))
        for n, rows in enumerate(entries)
    ]
    place = st.builds(Dlsn, st.integers(0, len(segments)), st.integers(0, 6), st.integers(0, 4))
    start, end = data.draw(place), data.draw(place)
    limits = PlanLimits(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 20)))
    ranges = ranges_between(commits(*segments), start, end)
    plans = plan_partitions(ranges, limits)
    everything = [
        (one.number, entry, slot)
        for one in segments
        for entry, count in enumerate(one.entry_rows)
        for slot in range(count)
    ]
    assert rows_of(plans) == [row for row in everything if start <= row < end]
    assert all(plan.ranges for plan in plans)
    assert [plan.replica_hint for plan in plans] == list(range(len(plans)))
    for plan in plans:
        assert all(one.start < one.end for one in plan.ranges)


@given(entries=streams)
@settings(max_examples=50, deadline=None)
def test_plan_of_repeated_micro_batch_is_the_same(entries: list[tuple[int, ...]]) -> None:
    made = commits(*(segment(n, rows) for n, rows in enumerate(entries)))
    start, end = Dlsn(0), Dlsn(len(entries))
    limits = PlanLimits(3, 2 * MIB)
    first = plan_partitions(ranges_between(made, start, end), limits)
    again = plan_partitions(ranges_between(made, start, end), limits)
    assert first == again


def test_plan_partitions_are_about_equal() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    made = commits(*(segment(n, (5,) * rng.randint(1, 30)) for n in range(40)))
    ranges = ranges_between(made, Dlsn(0), Dlsn(40))
    total = sum(one.size_bytes for one in ranges)
    plans = plan_partitions(ranges, PlanLimits(7, 1 << 40))
    sizes = [sum(one.size_bytes for one in plan.ranges) for plan in plans]
    assert len(plans) == 7
    assert max(abs(size - total / 7) for size in sizes) <= 2 * MIB


def test_plan_cuts_large_segments_and_packs_small_ones() -> None:
    large = plan_partitions(
        ranges_between(commits(segment(0, (1,) * 10)), Dlsn(0), Dlsn(1)),
        PlanLimits(1, 4 * MIB),
    )
    assert [(p.ranges[0].start, p.ranges[0].end) for p in large] == [
        ((0, 0), (4, 0)),
        ((4, 0), (7, 0)),
        ((7, 0), (10, 0)),
    ]
    small = commits(*(segment(n, (1,)) for n in range(10)))
    packed = plan_partitions(ranges_between(small, Dlsn(0), Dlsn(10)), PlanLimits(1, 4 * MIB))
    assert [len(plan.ranges) for plan in packed] == [4, 3, 3]


def test_ranges_carry_their_commit() -> None:
    ranges = ranges_between(commits(segment(0, (1,)), segment(1, (1,))), Dlsn(1), Dlsn(2))
    assert [(one.commit, one.commit_time_ms) for one in ranges] == [(1, 1001)]


def test_plan_of_nothing_is_empty() -> None:
    assert plan_partitions([], PlanLimits()) == []


@pytest.mark.parametrize(
    ("total", "entries", "limits", "count"),
    [
        (0, 0, PlanLimits(), 1),
        (15 * MIB, 100, PlanLimits(), 1),
        (64 * MIB, 100, PlanLimits(), 4),
        (512 * MIB, 1000, PlanLimits(), 8),
        (10_240 * MIB, 10_000, PlanLimits(), 80),
        (15 * MIB, 100, PlanLimits(4), 4),
        (15 * MIB, 3, PlanLimits(4), 3),
        (15 * MIB, 100, PlanLimits(1, MIB), 15),
        (1 << 50, 1 << 30, PlanLimits(1, MIB), PARTITIONS_MAX),
    ],
)
def test_partition_count(total: int, entries: int, limits: PlanLimits, count: int) -> None:
    assert partition_count(total, entries, limits) == count


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
