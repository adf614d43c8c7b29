"""Partitions: no row lost or read twice, in order, within their limits, the same again."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ledger.limits import KIB, MIB
from spark_ledger.limits.connector import PARTITIONS_MAX
from spark_ledger.stream.plan.partitions import (
    Plan,
    PlanLimits,
    partition_count,
    plan_partitions,
)
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.plan.world import commits, segment, streams


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
        ((0, 0), (3, 0)),
        ((3, 0), (7, 0)),
        ((7, 0), (10, 0)),
    ]
    small = commits(*(segment(n, (1,)) for n in range(10)))
    packed = plan_partitions(ranges_between(small, Dlsn(0), Dlsn(10)), PlanLimits(1, 4 * MIB))
    assert [len(plan.ranges) for plan in packed] == [3, 4, 3]


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
        (1 << 50, 1 << 30, PlanLimits(PARTITIONS_MAX + 7, MIB), PARTITIONS_MAX + 7),
    ],
)
def test_partition_count(total: int, entries: int, limits: PlanLimits, count: int) -> None:
    assert partition_count(total, entries, limits) == count


@settings(max_examples=100, deadline=None)
@given(data=st.data(), entries=streams)
def test_plan_keeps_both_limits_whatever_the_sizes(
    data: st.DataObject, entries: list[tuple[int, ...]]
) -> None:
    sizes = st.integers(1, 9) | st.just(100)
    made = commits(
        *(segment(n, rows, entry_bytes=data.draw(sizes)) for n, rows in enumerate(entries))
    )
    start = Dlsn(0, data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)))
    limits = PlanLimits(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 120) | st.none()))
    ranges = ranges_between(made, start, Dlsn(len(entries)))
    plans = plan_partitions(ranges, limits)
    counts = [sum(len(part.entry_bytes) for part in plan.ranges) for plan in plans]
    assert len(plans) >= min(limits.min_partitions, sum(len(p.entry_bytes) for p in ranges))
    if limits.max_bytes_per_partition is not None:
        for plan, count in zip(plans, counts, strict=True):
            assert plan.size_bytes <= limits.max_bytes_per_partition or count == 1


@pytest.mark.parametrize("entries", [PARTITIONS_MAX, PARTITIONS_MAX + 1, 5000])
def test_plan_with_a_limit_too_small_for_its_size_has_larger_partitions(entries: int) -> None:
    """Of entries of a KiB, and as much in a partition: no more than Spark's driver can start."""
    made = commits(segment(0, (1,) * entries, entry_bytes=KIB))
    plans = plan_partitions(ranges_between(made, Dlsn(0), Dlsn(1)), PlanLimits(1, KIB))
    assert len(plans) == PARTITIONS_MAX
    assert sum(plan.rows for plan in plans) == entries


def test_plan_of_entries_near_the_limit_has_one_in_each_partition() -> None:
    """Entries of 202 KB and a limit of 256 KiB: two of them are too many."""
    made = commits(segment(0, (100,) * 10, entry_bytes=202_000), segment(1, (100,) * 14))
    ranges = ranges_between(made[:1], Dlsn(0), Dlsn(1))
    plans = plan_partitions(ranges, PlanLimits(1, 256 * KIB))
    assert [plan.rows for plan in plans] == [100] * 10


def test_plan_of_equal_entries_has_as_many_partitions_as_wanted() -> None:
    made = commits(*(segment(n, (7,), entry_bytes=1001) for n in range(24)))
    for wanted in range(1, 25):
        plans = plan_partitions(ranges_between(made, Dlsn(0), Dlsn(24)), PlanLimits(wanted))
        assert len(plans) == wanted
