"""Where entries lie, at the bounds of what is kept and of what is shared out."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.limits.stream import LOCATED_S
from spark_ledger.stream.packs.model import Pack, Packs
from spark_ledger.stream.plan import locate
from spark_ledger.stream.plan.balance import Unit, units_of
from spark_ledger.stream.plan.locate import Locator
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Dlsn, EntryId, LedgerId, LedgerMetadata
from tests.unit.spark_ledger.stream.plan.test_balance import MANY, balance, ledger
from tests.unit.spark_ledger.stream.plan.test_locate import Counted, with_ledgers
from tests.unit.spark_ledger.stream.plan.world import commits, segment
from tests.unit.virtual_time import run_in_virtual_time


def test_ledgers_that_are_kept_are_those_looked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "LEDGERS_LOCATED_MAX", 3)

    async def test() -> None:
        ledgers, ids = await with_ledgers(4, closed=True)
        locator = Locator(ledgers)
        for number in (0, 1, 2, 0, 3, 0, 2, 1):
            found = await locator.locate([ids[number]])
            assert list(found.ledgers) == [ids[number]]
        assert ledgers.looked_up == [ids[n] for n in (0, 1, 2, 3, 1)]

    asyncio.run(test())


def test_ledger_that_many_ranges_are_in_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "PLAN_LEDGERS_MAX", 3)

    async def test() -> None:
        ledgers, ids = await with_ledgers(4, closed=True)
        found = await Locator(ledgers).locate([*ids[:1] * 5, *ids])
        assert list(found.ledgers) == ids[:3]

    asyncio.run(test())


def test_open_ledger_is_as_old_as_the_question_and_not_as_the_answer() -> None:
    class Slow(Counted):
        async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
            found = await super().ledger_metadata(ledger_id)
            await asyncio.sleep(LOCATED_S / 2)
            return found

    async def test() -> None:
        ledgers = Slow()
        await ledgers.create_ledger()
        locator, ids = Locator(ledgers), [LedgerId(each) for each in ledgers.ledgers]
        await locator.locate(ids)
        await asyncio.sleep(LOCATED_S * 0.4)
        await locator.locate(ids)
        assert len(ledgers.looked_up) == 1
        await asyncio.sleep(LOCATED_S * 0.2)
        await locator.locate(ids)
        assert len(ledgers.looked_up) == 2

    run_in_virtual_time(test())


def test_segments_that_share_an_entry_of_a_pack_are_planned_with_all_of_it() -> None:
    pack = Pack(0, 2, 0, 2, LedgerId(9), entries=3, rows=20, size_bytes=300)
    ledgers = {LedgerId(9): ledger(9, (0, MANY[:3]), (1, MANY[1:4]), (2, MANY[2:5]))}
    ranges = ranges_between(commits(segment(0, (10,)), segment(1, (10,))), Dlsn(0), Dlsn(2))
    first, second = (units_of([part], ledgers, Packs((pack,))) for part in ranges)
    assert [(unit.fragment, unit.size_bytes) for unit in first] == [(0, 75), (1, 75)]
    assert [(unit.fragment, unit.size_bytes) for unit in second] == [(1, 75), (2, 75)]


def test_part_of_a_segment_counts_by_its_rows() -> None:
    (part,) = ranges_between(commits(segment(0, (10, 30), entry_bytes=100)), Dlsn(0, 1), Dlsn(1))
    (unit,) = units_of([part], {LedgerId(1): ledger(1, (0, MANY[:3]))})
    assert unit.size_bytes == part.size_bytes == 150


def test_order_has_each_bookie_with_a_copy_once_and_the_planned_one_first() -> None:
    units = [
        Unit(LedgerId(1), EntryId(0), 100, MANY[:3]),
        Unit(LedgerId(2), EntryId(0), 10, MANY[2:5]),
    ]
    for turn in range(5):
        reads = balance(*MANY[:5], turn=turn).first_reads(units)
        assert sorted(reads.order) == sorted(MANY[:5])
        assert list(reads.bytes_by_bookie) == list(reads.order[: len(reads.bytes_by_bookie)])
        expected = balance(*MANY, turn=turn).expected_reads(units[:1], 1000)
        assert sorted(expected.order) == sorted(MANY)
        assert expected.parts[0].bookie_id == expected.order[0]


def test_packed_segments_with_others_between_them_are_planned_with_all_entries_between() -> None:
    """As a read with a condition leaves them: only the index, which a plan does not read, says
    which of the entries it needs."""
    pack = Pack(0, 10, 0, 10, LedgerId(9), entries=5, rows=100, size_bytes=1000)
    ledgers = {LedgerId(9): ledger(9, *((n, MANY[n : n + 3]) for n in range(5)))}
    ranges = ranges_between(commits(*(segment(n, (10,)) for n in range(10))), Dlsn(0), Dlsn(10))
    packs = Packs((pack,))
    for chosen, fragments in (((0, 9), [0, 1, 2, 3, 4]), ((2, 5), [1, 2]), ((7, 8), [3, 4])):
        units = units_of([ranges[n] for n in chosen], ledgers, packs)
        assert [unit.fragment for unit in units] == fragments
        assert sum(unit.size_bytes for unit in units) == pytest.approx(200, abs=5)


def test_what_a_bookie_has_served_counts_as_much_as_what_it_lacks() -> None:
    one, two = MANY[:2]
    for served, first in ((99, one), (101, two)):
        chosen = balance(one, two)
        chosen.first_reads([Unit(LedgerId(1), EntryId(0), served, (one,))])
        units = [
            Unit(LedgerId(2), EntryId(0), 100, (one,)),
            Unit(LedgerId(3), EntryId(0), 100, (one, two)),
        ]
        assert chosen.first_reads(units).order[0] == first, "it lacks 100 bytes, or none"


def test_bookies_that_are_asked_for_nothing_follow_with_those_first_that_have_served_least() -> (
    None
):
    chosen = balance(*MANY[:4])
    for bookie, size_bytes in zip(MANY, (50, 300, 100, 200), strict=False):
        chosen.first_reads([Unit(LedgerId(1), EntryId(0), size_bytes, (bookie,))])
    unit = Unit(LedgerId(2), EntryId(0), 10, MANY[:4])
    assert chosen.first_reads([unit]).order == ("b0", "b2", "b3", "b1")
    expected = chosen.expected_reads([unit._replace(bookies=MANY[1:3])], 10)
    assert expected.order == ("b2", "b1", "b0", "b3")


def test_sample_stands_for_its_partition_in_the_proportions_that_it_has() -> None:
    units = [
        Unit(LedgerId(1), EntryId(0), 1, MANY[:1]),
        Unit(LedgerId(2), EntryId(7), 3, MANY[1:2]),
    ]
    reads = balance(*MANY[:3]).expected_reads(units, 400)
    assert reads.bytes_by_bookie == {"b1": 300, "b0": 100}
    assert sorted(reads.parts) == [(1, 0, "b0", 100), (2, 7, "b1", 300)]
