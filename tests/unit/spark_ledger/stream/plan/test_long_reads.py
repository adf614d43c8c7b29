"""Long reads: where their partitions are cut, and how many bytes each asks of which bookie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.stream.model import Commit, CommitMark
from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.plan import read_plan
from spark_ledger.stream.plan.locate import Located
from spark_ledger.stream.plan.partitions import PlanLimits, Span
from spark_ledger.stream.plan.read_plan import plan_read
from spark_ledger.types import Dlsn, EntryId, LedgerId
from tests.unit.spark_ledger.stream.plan.test_balance import MANY, infos, ledger
from tests.unit.spark_ledger.stream.plan.world import segment

SIZES = (500, 10, 10, 480, 300, 700, 20, 80)
"""Bytes of commits of two segments of one and of three rows each."""

FIRST_BYTES = 7000


class LongStream:
    """Commits 10, 11, ... with a mark at each; every second one lies on other bookies."""

    def __init__(self) -> None:
        self.looked_up: list[int] = []
        self.made: list[Commit] = []
        size_bytes, rows = FIRST_BYTES, 900
        for n, size in enumerate(SIZES):
            parts = (
                segment(20 + 2 * n, (1,), ledger=n % 2, entry_bytes=size // 2),
                segment(21 + 2 * n, (3,), ledger=n % 2, first=1, entry_bytes=size // 2),
            )
            self.made.append(Commit(10 + n, 5, 20 + 2 * n, parts, "q", n, "", rows, size_bytes))
            size_bytes, rows = size_bytes + size, rows + 4
        self.retention = SimpleNamespace(packs=Packs)

    def commit(self, number: int) -> Commit:
        self.looked_up.append(number)
        return self.made[number - 10]

    def commit_at(self, number: int) -> Commit:
        return self.made[(number - 20) // 2]

    def marks(self, first: int, end: int) -> list[CommitMark]:
        return [
            CommitMark(each.number, each.first_segment, each.rows_before, each.bytes_before)
            for each in self.made
            if first < each.number < end
        ]

    def locate(self, ledger_ids: Any) -> Located:
        known = {n: ledger(n, (0, MANY[2 * n : 2 * n + 1])) for n in (0, 1)}
        return Located({n: known[n] for n in ledger_ids}, tuple(infos(*MANY[:4])))


def planned(first: Dlsn, last: Dlsn, limits: PlanLimits) -> tuple[LongStream, list[Span]]:
    stream: Any = LongStream()
    found = plan_read(stream, first, last, limits)
    assert all(isinstance(each, Span) for each in found)
    return stream, [each for each in found if isinstance(each, Span)]


@pytest.fixture(autouse=True)
def every_read_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_plan, "SEGMENTS_PLANNED_MAX", 0)


def test_partitions_ask_for_the_bytes_of_their_commits() -> None:
    """By where the first one of each lies, and with all others behind those bookies."""
    stream, spans = planned(Dlsn(20), Dlsn(36), PlanLimits(4))
    assert [(each.commits, each.start, each.end) for each in spans] == [
        (range(10, 14), Dlsn(20), Dlsn(28)),
        (range(14, 15), Dlsn(28), Dlsn(30)),
        (range(15, 16), Dlsn(30), Dlsn(32)),
        (range(16, 18), Dlsn(32), Dlsn(36)),
    ]
    asked = [(each.reads.order[0], sum(each.reads.bytes_by_bookie.values())) for each in spans]
    assert asked == [("b0", 1000), ("b0", 300), ("b2", 700), ("b0", 100)]
    assert all(sorted(each.reads.order) == ["b0", "b1", "b2", "b3"] for each in spans)
    assert [part[:3] for part in spans[2].reads.parts] == [(LedgerId(1), EntryId(0), "b2")]
    assert stream.looked_up == [10, 14, 15, 16, 17], "the first of each, and the last one of all"


@pytest.mark.parametrize(
    ("first", "last", "commits"),
    [
        (Dlsn(23), Dlsn(29, 0, 2), [range(11, 14), range(14, 15)]),
        (Dlsn(24), Dlsn(28, 0, 1), [range(12, 14), range(14, 15)]),
        (Dlsn(20), Dlsn(27), [range(10, 11), range(11, 14)]),
        (Dlsn(20), Dlsn(28), [range(10, 11), range(11, 14)]),
        (Dlsn(20), Dlsn(28, 0, 1), [range(10, 14), range(14, 15)]),
    ],
)
def test_long_read_has_the_commits_that_hold_its_rows_and_no_others(
    first: Dlsn, last: Dlsn, commits: list[range]
) -> None:
    _, spans = planned(first, last, PlanLimits(2))
    assert [each.commits for each in spans] == commits
    assert (spans[0].start, spans[-1].end) == (first, last)


def test_last_partition_is_measured_with_all_of_its_last_commit() -> None:
    stream: Any = LongStream()
    limits = PlanLimits(1, 720)
    found = plan_read(stream, Dlsn(26), Dlsn(32), limits, lambda first, end: stream.made[3:6])
    assert not any(isinstance(each, Span) for each in found), "480 and 300, or 300 and 700"
    _, spans = planned(Dlsn(20), Dlsn(26), limits)
    assert [each.commits for each in spans] == [range(10, 13)]
