"""A read that fails says which rows cannot be had, whatever lies beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from spark_ledger.errors import (
    BookieUnavailableError,
    DataLossError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from spark_ledger.limits import KIB
from spark_ledger.stream import reader
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.ledgers import LedgerRange
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Dlsn, Entry
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeReader
from tests.unit.spark_ledger.stream.world import SCHEMA, another, numbers, run, table


@pytest.mark.parametrize("lost", range(5))
@pytest.mark.parametrize(
    ("cause", "raised", "says"),
    [
        (BookieUnavailableError("all are gone"), BookieUnavailableError, "cannot be read: all are"),
        (DigestMismatchError("a bad sum"), DigestMismatchError, "cannot be read: a bad sum"),
        (NoSuchEntryError("none has it"), DataLossError, "its entries are gone: none has it"),
    ],
)
def test_error_of_a_read_names_the_segment_among_those_that_are_fetched_together(
    cause: LedgerError,
    raised: type[LedgerError],
    says: str,
    lost: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "STALE_READ_DELAY_S", 0.0)
    monkeypatch.setattr(reader, "STALE_READ_RETRIES", 2)
    inner = FakeReader.read_batches

    async def read(
        self: FakeReader, first: int, last: int, **how: bool
    ) -> AsyncGenerator[Sequence[Entry], None]:
        async for entries in inner(self, first, last, **how):
            if entries[0].entry_id == lost:
                raise cause
            yield entries

    monkeypatch.setattr(FakeReader, "read_batches", read)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.entries_per_chunk = 1
        stream = await StreamCatalog(ledgers).create("s", SCHEMA, entry_bytes=KIB)
        for first, rows in ((0, 1), (1, 150), (151, 1)):
            await stream.append(table(first, rows))
        counts = [part.entry_rows for c in await stream.commits(0, 3) for part in c.segments]
        assert [len(each) for each in counts] == [1, 3, 1]
        found: list[object] = []
        with pytest.raises(raised, match=rf"stream 's': segment {(lost + 2) // 3} .*{says}"):
            async for batch in stream.read():
                found += batch.column("n").to_pylist()
        before = [rows for each in counts for rows in each][:lost]
        assert found == list(range(sum(before))), "all rows before it"

    run(scenario())


def test_lost_ledger_of_which_a_part_only_is_packed_is_data_loss() -> None:
    """Its rows before the last commit could be had from a pack, and not those of that commit."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        old = await another(ledgers)[1].open("s")
        writer = stream.writer()
        for number in range(4):
            await writer.write(table(number))
            await stream.commit_segments(await writer.finish())
            if number == 2:
                assert await stream.optimizer.run_all(entries_min=1)
        head = await stream.head()
        ranges = ranges_between(await stream.commits(0, 4), head.earliest, head.end)
        (ledger_id,) = {each.segment.ledger_id for each in ranges}
        del ledgers.ledgers[ledger_id]
        for handle in (stream, old):
            with pytest.raises(DataLossError, match="segment"):
                [each async for each in handle.read_ranges(ranges)]
        packed = [each.batch async for each in old.read_ranges(ranges[:3])]
        assert [n for batch in packed for n in batch.column("n").to_pylist()] == [0, 1, 2]
        for handle in (stream, await another(ledgers)[1].open("s")):
            with pytest.raises(DataLossError, match="segment 3"):
                await numbers(handle.read())
        await writer.close()

    run(scenario())


@pytest.mark.parametrize("start", [Dlsn(0), Dlsn(0, 0, 7), Dlsn(0, 1, 3), Dlsn(1, 2, 1)])
def test_read_whose_former_ledger_goes_anywhere_has_each_row_once(start: Dlsn) -> None:
    """It goes on in the pack behind the last entry that it has, in the middle of a segment or
    between two of them."""

    async def scenario(chunks_before: int) -> bool:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA, entry_bytes=KIB)
        other, streams = another(ledgers)
        other.entries_per_chunk = 1
        old = await streams.open("s")
        for first, rows in ((0, 150), (150, 150), (300, 1), (301, 1)):
            await stream.append(table(first, rows))
        head = await stream.head()
        ranges = ranges_between(await stream.commits(0, 4), start, head.end)
        (ledger_id,) = {each.segment.ledger_id for each in ranges}
        assert await stream.optimizer.run_all(entries_min=1, entry_bytes=1 << 16)
        inner, passed = other.open_unconfirmed, 0

        async def opened(wanted: int) -> LedgerRange:
            return Ends(await inner(wanted)) if wanted == ledger_id else await inner(wanted)

        class Ends:
            is_closed = True

            def __init__(self, ledger: LedgerRange) -> None:
                self._ledger = ledger

            async def read_batches(
                self, first: int, last: int, **how: Any
            ) -> AsyncGenerator[Sequence[Entry], None]:
                nonlocal passed
                async for entries in self._ledger.read_batches(first, last, **how):
                    if passed == chunks_before:
                        raise NoSuchLedgerError("it was deleted")
                    passed += 1
                    yield entries

        other.open_unconfirmed = opened  # type: ignore[assignment, method-assign]
        found = [each async for each in old.read_ranges(ranges)]
        batches = [each.batch.column("n").to_pylist() for each in found]
        offset = (await stream.commit(start.segment)).rows_before
        offset += sum(ranges[0].segment.entry_rows[: start.entry]) + start.slot
        assert [n for each in batches for n in each] == list(range(offset, 302)), chunks_before
        assert [each.row for each in found] == [each[0] for each in batches]
        return passed == chunks_before

    before = 0
    while run(scenario(before)):
        before += 1
    assert before >= 3


def test_entry_that_a_closed_ledger_lacks_is_data_loss_at_once() -> None:
    """No newer metadata can say more of it."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await stream.append(table(0))
        await stream.close()
        (ledger,) = ledgers.ledgers.values()
        ledger.payloads.clear()
        other, streams = another(ledgers)
        reader = await streams.open("s")
        async with asyncio.timeout(1):
            with pytest.raises(DataLossError, match="its entries are gone"):
                await numbers(reader.read())
        assert len(other.reads) == 1

    run(scenario())
