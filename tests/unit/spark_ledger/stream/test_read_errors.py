"""A read that fails says which rows cannot be had, whatever lies beside them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest

from spark_ledger.errors import (
    BookieUnavailableError,
    DataLossError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
)
from spark_ledger.stream import reader
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Entry
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeReader
from tests.unit.spark_ledger.stream.world import SCHEMA, another, numbers, run, table


@pytest.mark.parametrize("lost", [0, 1, 2])
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
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for number in range(3):
            await stream.append(table(number))
        found: list[object] = []
        with pytest.raises(raised, match=rf"stream 's': segment {lost} .*{says}"):
            async for batch in stream.read():
                found += batch.column("n").to_pylist()
        assert found == list(range(lost)), "all rows before it"

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
