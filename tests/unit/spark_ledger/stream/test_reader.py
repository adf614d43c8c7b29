"""Reading ranges: exact rows, joined requests, bounded prefetch, and errors that explain."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import (
    BookieUnavailableError,
    CorruptionError,
    DataLossError,
    NoSuchStreamError,
)
from spark_ledger.limits import KIB
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format.metadata_column import ledger_array, ledger_type
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.stream.reader import DECODED_AHEAD, FETCHED_AHEAD
from spark_ledger.stream.stream import Stream
from spark_ledger.stream.windows import GROUP_BYTES_MAX, group_neighbours
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeReader
from tests.unit.spark_ledger.stream.world import SCHEMA, another, loose, numbers, run, table


async def build(ledgers: FakeLedgers, shape: list[int], **config: Any) -> Stream:
    stream = await StreamCatalog(ledgers).create("s", SCHEMA, entry_bytes=KIB, **config)
    first = 0
    for rows in shape:
        await stream.append(table(first, rows))
        first += rows
    return stream


async def places(stream: Stream) -> list[Dlsn]:
    """Where each row is, from the commits alone."""
    head = await stream.head()
    return [
        Dlsn(segment.number, entry, slot)
        for commit in await stream.commits(0, head.next_commit)
        for segment in commit.segments
        for entry, rows in enumerate(segment.entry_rows)
        for slot in range(rows)
    ]


def whole(number: int, size_bytes: int, ledger_id: int = 9) -> SegmentRange:
    """A segment of one entry, all of it."""
    segment = loose(1, first_entry=number, ledger_id=ledger_id)
    placed = replace(segment, number=number, size_bytes=size_bytes)
    return SegmentRange(placed, (0, 0), (1, 0), 0, 0)


def counted(ledgers: FakeLedgers) -> list[int]:
    """The ledgers whose metadata are read from now on; no test reads more than a few."""
    opened: list[int] = []
    inner = ledgers.open_unconfirmed

    async def counting(ledger_id: int) -> FakeReader:
        opened.append(ledger_id)
        assert len(opened) < 100, "without end"
        return await inner(ledger_id)

    ledgers.open_unconfirmed = counting  # type: ignore[method-assign]
    return opened


def test_any_two_positions_give_exactly_the_rows_between_them() -> None:
    async def scenario() -> None:
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        ledgers = FakeLedgers()
        ledgers.entries_per_chunk = rng.randint(1, 5)
        shape = [rng.choice([0, 1, 2, 150, 300]) for _ in range(12)]
        stream = await build(ledgers, shape, segment_roll_bytes=4 * KIB)
        where = await places(stream)
        assert len(where) == sum(shape)
        assert await numbers(stream.read()) == list(range(len(where)))
        ends = [*where, (await stream.head()).end]
        for _ in range(60):
            first, end = rng.randint(0, len(where)), rng.randint(0, len(where))
            found = await numbers(stream.read(ends[first], ends[end]))
            assert found == list(range(first, end)), f"seed {seed}: {ends[first]} {ends[end]}"

    run(scenario())


def test_small_segments_of_one_ledger_are_fetched_together() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [1] * 50)
        assert await numbers(stream.read()) == list(range(50))
        assert ledgers.reads == [(100, 0, 49)]

    run(scenario())


def test_a_fetch_is_no_larger_than_a_bookie_sends_for_one_request() -> None:
    async def sizes(*parts: int) -> list[int]:
        ranges = [whole(number, part) for number, part in enumerate(parts)]
        return [len(group) async for group in group_neighbours(ranges)]

    async def scenario() -> None:
        half = GROUP_BYTES_MAX // 2
        assert await sizes(half, half, half, half, half) == [2, 2, 1]
        assert await sizes(half, half - 1, half, half) == [3, 1]

    run(scenario())


def test_segments_with_a_gap_between_them_are_fetched_apart() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [])
        writer = stream.writer()
        for n in range(3):
            await writer.write(table(99))
            await (await writer.seal()).confirm()  # an attempt whose segments are not committed
            await writer.write(table(n))
            await stream.commit_segments(await writer.finish())
        assert await numbers(stream.read()) == [0, 1, 2]
        assert ledgers.reads == [(100, 1, 1), (100, 3, 3), (100, 5, 5)]

    run(scenario())


def test_ranges_are_read_in_another_process_without_commit_metadata() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [3, 200])
        commits = await stream.commits(0, 2)
        ranges = ranges_between(commits, Dlsn(0, 0, 1), Dlsn(1, 2, 3))
        other = await another(ledgers)[1].open("s")
        found = [positioned async for positioned in other.read_ranges(ranges)]
        where = [
            (p.position._replace(slot=p.position.slot + n), row["n"])
            for p in found
            for n, row in enumerate(p.batch.to_pylist())
        ]
        every = await places(stream)
        begin, end = 1, every.index(Dlsn(1, 2, 3))
        assert where == [(every[n], n) for n in range(begin, end)]
        assert [p.commit for p in found] == [0, 1, 1, 1]
        assert {p.commit_time_ms for p in found} == {c.time_ms for c in commits}

    run(scenario())


def test_the_ledger_column_says_where_each_row_is() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [3, 2])
        commits = await stream.commits(0, 2)
        ranges = ranges_between(commits, Dlsn(0, 0, 1), Dlsn(2))
        rows: list[dict[str, Any]] = []
        async for positioned in stream.read_ranges(ranges):
            batch = pa.RecordBatch.from_arrays([ledger_array(positioned)], names=["_ledger"])
            rows += [row["_ledger"] for row in batch.to_pylist()]
        assert [(row["segment"], row["entry"], row["slot"]) for row in rows] == [
            (0, 0, 1),
            (0, 0, 2),
            (1, 0, 0),
            (1, 0, 1),
        ]
        assert [row["commit"] for row in rows] == [0, 0, 1, 1]
        assert rows[0]["ledger_id"] == 100
        assert rows[0]["commit_time"].timestamp() * 1000 == pytest.approx(commits[0].time_ms)
        assert ledger_type().field("commit_time").type == pa.timestamp("us", tz="UTC")

    run(scenario())


def test_reading_is_ahead_of_the_consumer_but_not_without_bound() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.entries_per_chunk = 1
        stream = await build(ledgers, [2000])
        batches = stream.read()
        await anext(batches)
        for _ in range(200):
            await asyncio.sleep(0)
        assert 1 < ledgers.chunks_read <= FETCHED_AHEAD + DECODED_AHEAD + 3
        await batches.aclose()
        read = ledgers.chunks_read
        for _ in range(50):
            await asyncio.sleep(0)
        assert ledgers.chunks_read == read, "closing stops the reading"

    run(scenario())


def test_rows_of_older_schema_versions_are_cast() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [2])
        extra = table(2, 1).append_column("extra", pa.array([1.5]))
        await stream.append(extra, merge_schema=True)
        await stream.append(table(3, 1))  # an old writer goes on with the old columns
        other = await another(ledgers)[1].open("s")
        rows = [row async for batch in other.read() for row in batch.to_pylist()]
        assert [row["extra"] for row in rows] == [None, None, 1.5, None]
        assert [row["n"] for row in rows] == [0, 1, 2, 3]
        old = [batch async for batch in other.read(schema=SCHEMA)]
        assert all(batch.schema.equals(SCHEMA) for batch in old)

    run(scenario())


def test_a_reader_learns_of_a_schema_version_made_after_it_opened() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [1])
        early = await another(ledgers)[1].open("s")
        extra = table(1, 1).append_column("extra", pa.array([1.5]))
        await stream.append(extra, merge_schema=True)
        batches = [batch async for batch in early.read()]
        assert [batch.schema.names for batch in batches] == [["n", "text"]] * 2
        assert early.config.schema_version == 1

    run(scenario())


def test_a_committed_ledger_that_is_gone_is_data_loss() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [1])
        del ledgers.ledgers[100]
        with pytest.raises(DataLossError, match=r"segment 0 \(ledger 100, entries 0\.\.0\)"):
            await numbers(stream.read())

    run(scenario())


def test_entries_that_do_not_match_their_commit_are_corruption() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [3, 2])
        payloads = ledgers.ledgers[100].payloads
        payloads[0], payloads[1] = payloads[1], payloads[0]
        with pytest.raises(CorruptionError, match=r"segment 0, entry 0 .*2 rows"):
            await numbers(stream.read())
        payloads[0] = b"garbage"
        with pytest.raises(CorruptionError, match="segment 0, entry 0"):
            await numbers(stream.read())

    run(scenario())


def test_read_tells_a_deleted_stream_from_truncated_rows() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [1, 1])
        ranges = ranges_between(await stream.commits(0, 2), Dlsn(0), Dlsn(2))
        await stream.append(table(5), overwrite=True)
        ledgers.ledgers.pop(100)
        with pytest.raises(DataLossError, match="truncated"):
            [p async for p in stream.read_ranges(ranges)]
        await StreamCatalog(ledgers).delete("s")
        with pytest.raises(NoSuchStreamError):
            [p async for p in stream.read_ranges(ranges)]

    run(scenario())


def test_read_refreshes_metadata_after_bookies_were_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.entries_per_chunk = 1
        stream = await build(ledgers, [100])
        assert len(await numbers(stream.read())) == 100
        stale = stream._reader._open[next(iter(stream._reader._open))].ledger
        inner = FakeReader.read_batches

        async def read(self: FakeReader, first: int, last: int, **how: bool) -> object:
            count = 0
            async for entries in inner(self, first, last, **how):
                if self is stale and count == 1:
                    raise BookieUnavailableError("bookie b0 is gone")
                count += 1
                yield entries

        monkeypatch.setattr(FakeReader, "read_batches", read)
        assert await numbers(stream.read()) == list(range(100))
        # with fresh metadata the same failure is real
        monkeypatch.setattr(FakeReader, "read_batches", failing)
        with pytest.raises(
            BookieUnavailableError, match=r"stream 's': segment 0 cannot be read: all are gone"
        ):
            await numbers((await another(ledgers)[1].open("s")).read())

    async def failing(self: FakeReader, first: int, last: int, **how: bool) -> object:
        raise BookieUnavailableError("all are gone")
        yield []

    run(scenario())


def test_read_reopens_ledger_whose_metadata_are_older_than_the_commit() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [1])
        opened = counted(ledgers)
        for _ in range(3):
            await numbers(stream.read())
        assert len(opened) == 1
        await stream.append(table(1))
        assert await numbers(stream.read()) == [0, 1]
        assert len(opened) == 2

    run(scenario())


def test_entry_that_no_bookie_has_is_retried_before_data_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("spark_ledger.stream.reader.STALE_READ_DELAY_S", 0.001)
        ledgers = FakeLedgers()
        ledgers.entries_per_chunk = 1
        stream = await build(ledgers, [1, 1])
        hidden = ledgers.ledgers[100].payloads.pop()
        reading = asyncio.ensure_future(numbers(stream.read()))
        await asyncio.sleep(0.01)
        assert not reading.done()
        ledgers.ledgers[100].payloads.append(hidden)
        assert await reading == [0, 1]
        ledgers.ledgers[100].payloads.pop()
        monkeypatch.setattr("spark_ledger.stream.reader.STALE_READ_RETRIES", 3)
        opened = counted(ledgers)
        with pytest.raises(DataLossError, match="segment 1"):
            await numbers(stream.read())
        assert opened == [100] * 3, "however long the ledger stays open"

    run(scenario())


def test_ledgers_whose_metadata_are_kept_are_those_read_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("spark_ledger.stream.reader.LEDGERS_OPEN_MAX", 2)
        ledgers = FakeLedgers()
        stream = await build(ledgers, [])
        for n in range(4):
            writer = stream.writer()
            await writer.write(table(n))
            await stream.commit_segments(await writer.finish())
            await writer.close()
        opened = counted(ledgers)
        for number in (0, 1, 0, 2, 0, 1, 2, 1):
            assert await numbers(stream.read(Dlsn(number), Dlsn(number + 1))) == [number]
        assert opened == [100, 101, 102, 101, 102]

    run(scenario())


def test_segments_of_different_ledgers_are_fetched_at_the_same_time() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [])
        writers = [stream.writer() for _ in range(3)]
        for n in range(60):
            await writers[n % 3].write(table(n))
            await stream.commit_segments(await writers[n % 3].finish())
        running = most = 0
        inner = ledgers.open_unconfirmed

        async def counting(ledger_id: int) -> FakeReader:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            return await inner(ledger_id)

        ledgers.open_unconfirmed = counting  # type: ignore[method-assign]
        assert await numbers(stream.read()) == list(range(60))
        assert most > 1
        ledgers.ledgers[101].payloads[5] = b"damaged"
        with pytest.raises(CorruptionError, match="ledger 101, entry 5"):
            await numbers(stream.read())
        del ledgers.ledgers[102]
        with pytest.raises(DataLossError, match="ledger 102"):
            await numbers((await another(ledgers)[1].open("s")).read())

    run(scenario())


def test_the_replica_that_is_asked_first_is_the_readers_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        hints = []
        inner = FakeReader.read_batches

        def noting(self: FakeReader, first: int, last: int, **how: int) -> object:
            hints.append(how["replica_hint"])
            return inner(self, first, last, **how)  # type: ignore[arg-type]

        monkeypatch.setattr(FakeReader, "read_batches", noting)
        stream = await build(FakeLedgers(), [1])
        ranges = ranges_between(await stream.commits(0, 1), Dlsn(0), Dlsn(1))
        assert [p async for p in stream._reader.read(ranges, schema=SCHEMA, replica_hint=5)]
        assert hints == [5]

    run(scenario())
