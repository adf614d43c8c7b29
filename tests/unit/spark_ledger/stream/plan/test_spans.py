"""Long reads cut only at marks: which marks, and when there are too few of them."""

from __future__ import annotations

import pytest

from spark_ledger.stream.model import CommitMark
from spark_ledger.stream.plan.partitions import PlanLimits, Span, plan_spans
from spark_ledger.types import Dlsn

FIRST = 1000
"""Bytes of the stream before the first commit of the read."""


def mark(number: int, size_bytes: int) -> CommitMark:
    return CommitMark(number, 2 * number, 10 * number, FIRST + size_bytes)


def spans(sizes: list[int], limits: PlanLimits) -> list[Span] | None:
    """Commits 7, 8, ... of these sizes, with a mark at each but the first."""
    starts = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    marks = [mark(7 + n, start) for n, start in enumerate(starts)]
    positions = (Dlsn(14, 1, 1), Dlsn(2 * (7 + len(sizes)) - 1, 0, 3))
    return plan_spans((marks[0], marks[-1]), marks[1:-1], positions, limits)


def test_spans_are_about_equal_and_have_each_commit_once() -> None:
    found = spans([100] * 10, PlanLimits(min_partitions=5))
    assert found == [
        Span(range(7, 9), Dlsn(14, 1, 1), Dlsn(18), 0),
        Span(range(9, 11), Dlsn(18), Dlsn(22), 1),
        Span(range(11, 13), Dlsn(22), Dlsn(26), 2),
        Span(range(13, 15), Dlsn(26), Dlsn(30), 3),
        Span(range(15, 17), Dlsn(30), Dlsn(33, 0, 3), 4),
    ]


@pytest.mark.parametrize(
    ("sizes", "limits", "commits"),
    [
        ([100] * 4, PlanLimits(), [4]),
        ([100] * 4, PlanLimits(2), [2, 2]),
        ([100] * 4, PlanLimits(4), [1, 1, 1, 1]),
        ([100] * 4, PlanLimits(5), None),  # more than there are commits
        ([100] * 4, PlanLimits(1, 200), [2, 2]),
        ([100] * 4, PlanLimits(1, 100), [1, 1, 1, 1]),
        ([100] * 4, PlanLimits(1, 99), None),
        ([300, 100, 100, 100], PlanLimits(1, 300), [1, 3]),
        ([100, 100, 100, 301], PlanLimits(1, 300), None),  # the last is too large
        ([301, 100, 100, 100], PlanLimits(1, 300), None),
        ([900, 10, 10, 10], PlanLimits(3), None),  # two cuts fall together
        ([0, 0, 400, 400], PlanLimits(2), [3, 1]),
    ],
)
def test_spans_keep_to_the_limits_or_leave_it_to_a_finer_plan(
    sizes: list[int], limits: PlanLimits, commits: list[int] | None
) -> None:
    found = spans(sizes, limits)
    assert (None if found is None else [len(each.commits) for each in found]) == commits
    if found is not None:
        assert [each.replica_hint for each in found] == list(range(len(found)))
        assert [each.commits.start for each in found[1:]] == [
            each.commits.stop for each in found[:-1]
        ]
