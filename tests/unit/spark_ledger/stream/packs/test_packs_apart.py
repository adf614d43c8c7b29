"""Packs that lie between unpacked commits, and apart from one another: each is looked at alone."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ledger.errors import LedgerError
from spark_ledger.stream.ledgers import PURPOSE_PACK, TAG_PURPOSE, OpenLedger
from spark_ledger.stream.packs import optimizer
from spark_ledger.stream.packs.format import decode_packs, encode_packs
from spark_ledger.stream.packs.model import Pack, Packs
from spark_ledger.stream.packs.optimizer import Packed
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import (
    freed,
    optimize,
    packs_of,
    planned,
    read,
    values,
    write,
    written,
)
from tests.unit.spark_ledger.stream.world import another, run, table

SMALL = 16 * 1024
"""Entries of one row are small beside entries of this size, and those of 200 rows are not."""


async def with_a_pack_between(ledgers: FakeLedgers) -> Stream:
    """Commits 0 and 1 of some 200 rows, 2 and 3 of one that are in a pack, and 4 to 6 of one."""
    stream = await written(ledgers, 0)
    for first, rows in ((0, 201), (201, 199), (400, 1), (401, 1)):
        await stream.append(table(first, rows))
    (packed,) = await stream.optimizer.run_all(entry_bytes=SMALL, entries_min=1)
    assert (packed.first, packed.commits) == (2, 2)
    for n in range(402, 405):
        await stream.append(table(n))
    return stream


@pytest.mark.parametrize("at_once", [2, 3, 4, 1000])
def test_commits_on_both_sides_of_a_pack_are_packed_each_on_its_own(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new pack before it takes its place in the node, which has them in order (rule T24)."""
    monkeypatch.setattr(optimizer, "_COMMITS_AT_ONCE", at_once)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await with_a_pack_between(ledgers)
        found = await optimize(stream)
        assert [(each.first, each.commits, each.rows) for each in found] == [(0, 2, 400), (4, 3, 3)]
        packs = packs_of(ledgers).packs
        assert [(each.first, each.end, each.rows) for each in packs] == [
            (0, 2, 400),
            (2, 4, 2),
            (4, 7, 3),
        ]
        fresh = await another(ledgers)[1].open("s")
        assert values(await read(fresh, await planned(fresh))) == list(range(405))
        assert await optimize(stream) == [], "all are packed"

    run(scenario())


def test_commits_that_were_truncated_are_in_no_new_pack() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await stream.retention.truncate((4, 0, 0))
        (packed,) = await optimize(await another(ledgers)[1].open("s"))
        assert (packed.first, packed.commits, packed.rows, packed.former_entries) == (2, 4, 8, 8)
        (pack,) = packs_of(ledgers).packs
        assert (pack.first, pack.end, pack.first_segment, pack.end_segment) == (2, 6, 4, 12)

    run(scenario())


def test_pack_that_cannot_be_freed_yet_is_not_taken_for_freed_with_a_later_one() -> None:
    """Its former ledger would stay for ever (rule T25)."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers, 0)
        writer = stream.writer()
        await writer.write(table(0))
        await stream.commit_segments(await writer.finish())
        await optimize(stream)
        await write(stream, range(1, 3))
        await optimize(stream)
        await freed(stream, ledgers)
        assert [each.is_freed for each in packs_of(ledgers).packs] == [False, True]
        await writer.close()
        await freed(stream, ledgers)
        packs = packs_of(ledgers).packs
        assert [each.is_freed for each in packs] == [True, True]
        assert set(ledgers.ledgers) == {each.ledger_id for each in packs}

    run(scenario())


def packs(*spans: tuple[int, int]) -> Packs:
    """Packs of these commits, of one segment each."""
    made = (Pack(a, b, a, b, LedgerId(100 + a), 1, b - a, 10) for a, b in spans)
    return Packs(tuple(made))


def test_pack_overlaps_what_it_shares_a_commit_with() -> None:
    known = packs((2, 4), (6, 9))
    shared = [(0, 3), (3, 4), (2, 4), (3, 5), (0, 20), (5, 7), (8, 9), (1, 10)]
    apart = [(0, 2), (4, 6), (9, 12), (5, 6)]
    assert [known.overlaps(*each) for each in shared] == [True] * len(shared)
    assert [known.overlaps(*each) for each in apart] == [False] * len(apart)
    with pytest.raises(AssertionError, match="in one pack"):
        known.with_pack(packs((0, 3)).packs[0])
    for each in apart:
        after = known.with_pack(packs(each).packs[0])
        assert decode_packs(encode_packs(after), "p") == after


def test_packs_that_go_or_are_freed_leave_the_others_as_they_are() -> None:
    known = packs((0, 2), (2, 4), (4, 6))
    one, two, three = known.packs
    assert known.without([two]).packs == (one, three)
    assert known.without([one, three]).packs == (two,)
    assert known.without([]) == known
    assert known.freed(two).packs == (one, two._replace(is_freed=True), three)
    again = decode_packs(encode_packs(known.freed(two)), "p")
    assert [each.is_freed for each in again.packs] == [False, True, False]


def test_numbers_outside_of_packs_are_those_that_were_asked_for() -> None:
    known = packs((2, 4), (6, 9), (9, 10))
    for first in range(13):
        for end in range(first, 13):
            outside = [n for n in range(first, end) if n in (0, 1, 4, 5, 10, 11, 12)]
            assert known.numbers_outside(first, end) == outside, (first, end)


def test_pack_of_another_optimizer_that_was_first_costs_only_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the ledger with the copy cannot be deleted: a keeper does that later (rule K4)."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        write_pack = optimizer.Optimizer._write
        rival = await another(ledgers)[1].open("s")

        async def late(optimizing: optimizer.Optimizer, *args: Any) -> tuple[Pack, OpenLedger]:
            monkeypatch.setattr(optimizer.Optimizer, "_write", write_pack)
            made = await write_pack(optimizing, *args)
            await optimize(rival)
            return made

        async def refused(ledger_id: int, checks: object = ()) -> None:
            raise LedgerError("no answer")

        ledgers.delete_ledger = refused  # type: ignore[method-assign]
        monkeypatch.setattr(optimizer.Optimizer, "_write", late)
        (packed,) = await optimize(stream)
        assert packed == Packed(0, 6, 12, 12, packed.size_bytes, 12, pack=None)
        (pack,) = packs_of(ledgers).packs
        purposes = [each.metadata.custom_metadata[TAG_PURPOSE] for each in ledgers.ledgers.values()]
        assert purposes.count(PURPOSE_PACK) == 2 and pack.ledger_id in ledgers.ledgers
        assert values(await read(stream, await planned(stream))) == list(range(12))

    run(scenario())
