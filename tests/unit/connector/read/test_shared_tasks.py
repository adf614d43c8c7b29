"""share_tasks: which streams share a task, and what bounds it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from connector.read import shared_tasks
from connector.read.partitions import StreamPartition
from connector.read.shared_tasks import Part, share_tasks
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.plan.partitions import Plan, PlanLimits
from tests.unit.connector.fakes import make_segment

MIN_BYTES = 100


def part(name: str, size_bytes: int) -> StreamPartition:
    segment = make_segment(0, (1,), size_bytes)
    return StreamPartition(name, Plan((SegmentRange(segment, (0, 0), (1, 0), 0, 0),), 0))


def size_of(task: Sequence[tuple[str, Part]]) -> int:
    return sum(p.plan.size_bytes for _, p in task if isinstance(p, StreamPartition))


@pytest.mark.parametrize(
    "limits", [PlanLimits(1), PlanLimits(4), PlanLimits(1, 40), PlanLimits(1, 400)]
)
@pytest.mark.parametrize("seed", range(20))
def test_tasks_have_all_parts_in_order_within_their_bounds(
    limits: PlanLimits, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tasks, "PARTITION_BYTES_MIN", MIN_BYTES)
    rng, largest = random.Random(seed), min(MIN_BYTES, limits.max_bytes_per_partition or MIN_BYTES)
    planned = [
        (name, [part(name, rng.choice([1, 9, 30, 90, 300])) for _ in range(rng.choice([1, 1, 3]))])
        for name in "abcdefgh"
    ]
    tasks = [task.parts for task in share_tasks(planned, limits)]
    assert [p for task in tasks for p in task] == [(n, p) for n, parts in planned for p in parts]
    assert len(tasks) >= limits.min_partitions
    whole = {name for name, parts in planned if len(parts) == 1}
    for task in tasks:
        if len(task) > 1:
            assert size_of(task) <= largest
            assert {name for name, _ in task} <= whole, "a part of a large stream is alone"
    for one, other in pairwise(tasks):
        both = [*one, *other[:1]]
        fits = size_of(both) <= largest
        if fits and {name for name, _ in both} <= whole:
            assert len(tasks) == limits.min_partitions, "who fits shares, if there are enough"
