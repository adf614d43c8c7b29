"""Small reads and large ones in time: whom each begins with, what counts, and how many parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.limits import MIB
from spark_ledger.stream.model import Commit
from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.plan import partitions
from spark_ledger.stream.plan.balance import Unit
from spark_ledger.stream.plan.locate import Located
from spark_ledger.stream.plan.partitions import Plan, PlanLimits, Span, plan_partitions
from spark_ledger.stream.plan.read_plan import plan_read, spans_with_bookies
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Dlsn, EntryId, LedgerId, LedgerMetadata
from tests.unit.spark_ledger.stream.plan.test_balance import MANY, balance, infos, ledger, loads
from tests.unit.spark_ledger.stream.plan.world import commits, segment


def stream_of(made: list[Commit], *ledgers: LedgerMetadata) -> Any:
    """A stream with these commits, whose ledgers can be looked up."""
    known = {each.ledger_id: each for each in ledgers}
    bookies = sorted({b for each in ledgers for f in each.fragments for b in f.bookies})
    return SimpleNamespace(
        commits_between=lambda first, end: made[first:end],
        commit=lambda number: made[number],
        locate=lambda ids: Located({n: known[n] for n in ids}, tuple(infos(*bookies))),
        retention=SimpleNamespace(packs=Packs),
    )


def test_small_micro_batches_one_after_the_other_load_all_bookies() -> None:
    """Each is one partition, and would ask the same bookie if all plans began alike."""
    made = commits(*(segment(n, (1,), first=n) for n in range(12)))
    stream = stream_of(made, ledger(1, (0, MANY[:3])))
    first = []
    for n in range(12):
        (plan,) = plan_read(stream, Dlsn(n), Dlsn(n + 1), PlanLimits())
        assert isinstance(plan, Plan)
        first.append(plan.reads.order[0])
    assert Counter(first) == {"b0": 4, "b1": 4, "b2": 4}
    assert len(set(first[:3])) == 3, "in turn"


def test_long_reads_that_begin_elsewhere_begin_with_other_bookies() -> None:
    made = commits(*(segment(n, (1,), first=n) for n in range(9)))
    stream = stream_of(made, ledger(1, (0, MANY[:3])))
    first = []
    for n in range(9):
        span = Span(range(n, n + 1), Dlsn(n), Dlsn(n + 1), 0)
        (found,) = spans_with_bookies(stream, [span])
        first.append(found.reads.order[0])
    assert Counter(first) == {"b0": 3, "b1": 3, "b2": 3}


def test_whole_first_commit_of_a_long_partition_says_where_it_lies() -> None:
    """Several tasks wrote it, each into a ledger of its own."""
    parts = (segment(0, (1,)), segment(1, (1, 1, 1), ledger=2))
    commit = replace(commits(parts[0])[0], segments=parts)
    stream = stream_of([commit], ledger(1, (0, MANY[:3])), ledger(2, (0, MANY[3:6])))
    (found,) = spans_with_bookies(stream, [Span(range(1), Dlsn(0), Dlsn(2), 0)])
    assert {part.ledger_id for part in found.reads.parts} == {1, 2}
    sizes = {part.ledger_id: part.size_bytes for part in found.reads.parts}
    assert sizes == {1: MIB, 2: 3 * MIB}
    assert found.reads.order[0] in MANY[3:6], "it has most"


@pytest.mark.parametrize(
    ("start", "end", "mib"),
    [(Dlsn(0), Dlsn(4), 8), (Dlsn(1), Dlsn(4), 7), (Dlsn(1), Dlsn(3, 1), 5)],
)
def test_long_partition_asks_for_no_more_than_it_has_of_its_first_and_last_commit(
    start: Dlsn, end: Dlsn, mib: int
) -> None:
    parts = [segment(n, (1, 1, 1) if n % 2 else (1,), first=4 * n) for n in range(4)]
    made = [
        replace(commits(parts[n])[0], number=n // 2, segments=tuple(parts[n : n + 2]))
        for n in (0, 2)
    ]
    made[1] = replace(made[1], rows_before=4, bytes_before=made[0].size_bytes)
    stream = stream_of(made, ledger(1, (0, MANY[:3])))
    (found,) = spans_with_bookies(stream, [Span(range(2), start, end, 0)])
    assert sum(part.size_bytes for part in found.reads.parts) == mib * MIB


def test_all_that_a_partition_asks_of_a_bookie_counts_for_the_next() -> None:
    chosen = balance(*MANY[:3])
    small = Unit(LedgerId(1), EntryId(0), 10, MANY[:3])
    large = Unit(LedgerId(2), EntryId(0), 990, MANY[:3])
    found = [chosen.first_reads([small, large]), chosen.first_reads([large])]
    found += [chosen.first_reads([small]) for _ in range(50)]
    assert [each.order[0] for each in found[:2]] == ["b0", "b1"]
    assert {each.order[0] for each in found[2:]} == {"b2"}, "until it has as much"
    assert loads(found) == {"b0": 1000, "b1": 990, "b2": 500}


@pytest.mark.parametrize(("entries", "parts"), [(4, 4), (5, 4), (40, 4), (3, 3)])
def test_partitions_grow_rather_than_become_too_many(
    monkeypatch: pytest.MonkeyPatch, entries: int, parts: int
) -> None:
    monkeypatch.setattr(partitions, "PARTITIONS_MAX", 4)
    ranges = ranges_between(commits(*(segment(n, (1,)) for n in range(entries))), Dlsn(0), Dlsn(99))
    plans = plan_partitions(ranges, PlanLimits(max_bytes_per_partition=MIB))
    assert len(plans) == parts
    sizes = [plan.size_bytes // MIB for plan in plans]
    assert sum(sizes) == entries and max(sizes) - min(sizes) <= 1
