"""Which bookies partitions ask first: even in bytes, one for each, and never a matter of rows."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ledger.protocol.ensemble import fragment_of, lane_ranges
from spark_ledger.protocol.placement import read_order
from spark_ledger.stream.packs.model import Pack, Packs
from spark_ledger.stream.plan.balance import (
    Balance,
    FirstReads,
    Unit,
    ledgers_of,
    units_of,
    units_of_entries,
    weights_of,
)
from spark_ledger.stream.plan.locate import Located
from spark_ledger.stream.plan.partitions import Plan, PlanLimits
from spark_ledger.stream.plan.read_plan import plan_read
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    BookieState,
    Dlsn,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
)
from tests.unit.spark_ledger.stream.plan.world import commits, segment, streams

MANY = tuple(BookieId(f"b{n}") for n in range(7))


def infos(*bookies: BookieId, read_only: tuple[str, ...] = ()) -> list[BookieInfo]:
    return [
        BookieInfo(b, "h:1", BookieState.READ_ONLY if b in read_only else BookieState.WRITABLE)
        for b in bookies
    ]


def balance(*bookies: BookieId, turn: int = 0, read_only: tuple[str, ...] = ()) -> Balance:
    return Balance(weights_of(infos(*bookies, read_only=read_only)), turn=turn)


def ledger(
    number: int, *fragments: tuple[int, tuple[BookieId, ...]], write_quorum: int = 0
) -> LedgerMetadata:
    size = len(fragments[0][1])
    return LedgerMetadata(
        ledger_id=LedgerId(number),
        quorums=Quorums(size, write_quorum or size, min(2, write_quorum or size)),
        fragments=tuple(Fragment(EntryId(first), bookies) for first, bookies in fragments),
    )


def loads(found: list[FirstReads]) -> Counter[str]:
    total: Counter[str] = Counter()
    for reads in found:
        total.update(reads.bytes_by_bookie)
    return total


def test_partitions_of_one_ensemble_ask_one_bookie_each_in_turn() -> None:
    chosen = balance(*MANY[:3], turn=1)
    unit = Unit(LedgerId(1), EntryId(0), 100, MANY[:3])
    found = [chosen.first_reads([unit]) for _ in range(6)]
    assert [reads.order[0] for reads in found] == ["b1", "b2", "b0", "b1", "b2", "b0"]
    assert all(sorted(reads.order) == list(MANY[:3]) for reads in found)
    assert loads(found) == {"b0": 200, "b1": 200, "b2": 200}


def test_partition_over_several_ledgers_prefers_the_bookie_that_has_most() -> None:
    units = [
        Unit(LedgerId(1), EntryId(0), 100, MANY[0:3]),
        Unit(LedgerId(2), EntryId(5), 100, MANY[2:5]),
    ]
    reads = balance(*MANY).first_reads(units)
    assert reads.bytes_by_bookie == {"b2": 200}


def test_stripe_is_shared_by_as_few_bookies_as_hold_it() -> None:
    metadata = ledger(1, (0, MANY[:5]), write_quorum=3)
    reads = balance(*MANY).first_reads(units_of_entries(metadata, 0, 49, 50_000))
    assert reads.bytes_by_bookie == {"b0": 30_000, "b2": 20_000}
    assert len(reads.parts) == 2, "one part for a bookie and a fragment"


@pytest.mark.parametrize("write_quorum", [2, 3, 5])
def test_bytes_of_a_striped_stream_are_even_over_its_bookies(write_quorum: int) -> None:
    metadata = ledger(1, (0, MANY[:5]), write_quorum=write_quorum)
    chosen = balance(*MANY[:5])
    found = [chosen.first_reads(units_of_entries(metadata, n, n + 49, 50_000)) for n in range(40)]
    total = loads(found)
    assert sum(total.values()) == 40 * 50_000
    assert max(total.values()) - min(total.values()) <= 50_000, total


def test_bytes_are_even_where_each_ledger_has_bookies_of_its_own() -> None:
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    chosen = balance(*MANY)
    found = []
    for _ in range(210):
        units = [
            Unit(LedgerId(n), EntryId(0), draw.randint(50, 150), tuple(draw.sample(MANY, 3)))
            for n in range(draw.randint(1, 4))
        ]
        found.append(chosen.first_reads(units))
    total = loads(found)
    mean = sum(total.values()) / len(MANY)
    assert max(abs(size - mean) for size in total.values()) < 0.1 * mean, (seed, total)


def test_bytes_of_long_partitions_are_even_by_what_is_known_of_each() -> None:
    """A sample of one byte stands for a partition of 900, which may lie on all bookies."""
    even = balance(*MANY[:4])
    sample = [Unit(LedgerId(1), EntryId(0), 1, MANY[:3])]
    found = [even.expected_reads(sample, 900) for _ in range(6)]
    assert loads(found) == dict.fromkeys(MANY[:3], 1800)
    assert all(set(reads.order) == set(MANY[:4]) for reads in found), "the rest may lie there"
    assert {reads.order[-1] for reads in found} == {MANY[3]}
    assert even.expected_reads([], 900) == FirstReads(), "nothing is known"


def test_packed_ranges_are_planned_where_their_pack_lies() -> None:
    pack = Pack(0, 10, 0, 10, LedgerId(9), entries=20, rows=100, size_bytes=1000)
    ledgers = {
        LedgerId(9): ledger(9, (0, MANY[:3]), (10, MANY[3:6])),
        LedgerId(1): ledger(1, (0, MANY[:3])),
    }
    made = commits(*(segment(n, (5, 5), first=2 * n) for n in range(12)))
    ranges = ranges_between(made, Dlsn(0), Dlsn(12))
    packs = Packs((pack,))
    assert list(ledgers_of(ranges, packs)) == [9, 1]
    first, second, behind = units_of(ranges, ledgers, packs)
    assert first == (9, 0, 500, MANY[:3]) and second == (9, 10, 500, MANY[3:6])
    assert (behind.ledger_id, behind.size_bytes) == (1, ranges[-1].segment.size_bytes * 2)
    (one,) = units_of(ranges[7:8], ledgers, packs)
    assert one == (9, 10, 100, MANY[3:6]), "by its share of the segments"
    assert units_of(ranges[:3], {}, packs) == []


def test_read_only_bookies_get_half() -> None:
    chosen = balance(*MANY[:3], read_only=("b1",))
    unit = Unit(LedgerId(1), EntryId(0), 100, MANY[:3])
    total = loads([chosen.first_reads([unit]) for _ in range(50)])
    assert total == {"b0": 2000, "b1": 1000, "b2": 2000}


def test_bookie_that_is_not_registered_is_asked_only_where_no_other_is() -> None:
    chosen = balance(MANY[0])
    both = Unit(LedgerId(1), EntryId(0), 100, (MANY[1], MANY[0]))
    gone = Unit(LedgerId(2), EntryId(0), 100, (MANY[1],))
    assert loads([chosen.first_reads([both]) for _ in range(9)]) == {"b0": 900}
    assert chosen.first_reads([both, gone]).order == ("b0", "b1")
    assert Balance({}, turn=3).first_reads([gone]).order == ("b1",)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), entries=streams)
def test_planned_bookie_is_the_one_that_a_reader_asks_first(
    data: st.DataObject, entries: list[tuple[int, ...]]
) -> None:
    ledgers, found = _planned(data, entries)
    for plan in found:
        seen: Counter[tuple[int, int, str]] = Counter()
        for part in plan.ranges:
            metadata = ledgers[part.segment.ledger_id]
            for entry in range(part.first_entry, part.last_entry + 1):
                fragment = fragment_of(metadata, entry)
                (lane,) = lane_ranges(metadata, fragment, entry, entry)
                order = read_order(
                    lane.lane.indexes, lane.bookies, plan.reads.order, slow=(), gone=()
                )
                asked = lane.bookies[order[0]]
                seen[metadata.ledger_id, fragment.first_entry, asked] += 1
        assert set(seen) == {read[:3] for read in plan.reads.parts}
        planned = sum(read.size_bytes for read in plan.reads.parts)
        expected = sum(part.size_bytes for part in plan.ranges)
        assert abs(planned - expected) <= 5 * len(plan.ranges), "but for what division leaves"


@settings(max_examples=30, deadline=None)
@given(data=st.data(), entries=streams)
def test_borders_of_fragments_change_no_rows(
    data: st.DataObject, entries: list[tuple[int, ...]]
) -> None:
    limits = PlanLimits(data.draw(st.integers(1, 9)))
    _, first = _planned(data, entries, limits)
    _, second = _planned(data, entries, limits)
    assert [plan.ranges for plan in first] == [plan.ranges for plan in second]
    assert [plan.replica_hint for plan in first] == list(range(len(first)))


def _planned(
    data: st.DataObject, entries: list[tuple[int, ...]], limits: PlanLimits | None = None
) -> tuple[dict[LedgerId, LedgerMetadata], list[Plan]]:
    """A plan of a stream whose ledgers have fragments at any border, and their metadata."""
    made = commits(*(segment(n, r, first=6 * n, ledger=n % 3) for n, r in enumerate(entries)))
    size, quorum = data.draw(st.sampled_from([(3, 3), (5, 3), (4, 2)]))
    ledgers = {}
    for number in range(3):
        borders = sorted({0, *data.draw(st.lists(st.integers(1, 40), max_size=4))})
        ensembles = [tuple(data.draw(st.permutations(MANY))[:size]) for _ in borders]
        pairs = list(zip(borders, ensembles, strict=True))
        ledgers[LedgerId(number)] = ledger(number, *pairs, write_quorum=quorum)
    stream: Any = SimpleNamespace(
        commits_between=lambda first, end: made[first:end],
        locate=lambda ids: Located({n: ledgers[n] for n in ids}, tuple(infos(*MANY))),
        retention=SimpleNamespace(packs=Packs),
    )
    found = plan_read(stream, Dlsn(0), Dlsn(len(entries)), limits or PlanLimits(4))
    return ledgers, [each for each in found if isinstance(each, Plan)]


def test_ledger_that_could_not_be_looked_up_leaves_its_entries_to_the_reader() -> None:
    ranges = ranges_between(commits(segment(0, (1,)), segment(1, (1,), ledger=2)), Dlsn(0), Dlsn(2))
    units = units_of(ranges, {LedgerId(2): ledger(2, (0, MANY[:3]))})
    assert [unit.ledger_id for unit in units] == [2]
    assert balance(*MANY).first_reads([]) == FirstReads((), ())


def test_units_are_cut_where_a_border_is() -> None:
    metadata = ledger(1, (0, MANY[:3]), (4, MANY[1:4]))
    assert units_of_entries(metadata, 0, 9, 1000) == [
        Unit(LedgerId(1), EntryId(0), 400, MANY[:3]),
        Unit(LedgerId(1), EntryId(4), 600, MANY[1:4]),
    ]
    (part,) = ranges_between(commits(segment(0, (1,) * 10, entry_bytes=100)), Dlsn(0), Dlsn(1))
    assert units_of([part], {LedgerId(1): metadata}) == units_of_entries(metadata, 0, 9, 1000)
    later = replace(metadata, fragments=metadata.fragments[:1])
    assert units_of([part], {LedgerId(1): later}) == [Unit(LedgerId(1), EntryId(0), 1000, MANY[:3])]
