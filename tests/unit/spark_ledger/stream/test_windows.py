"""Windows of a read: bounded, one request for a ledger, rows in stream order all the same."""

from __future__ import annotations

import asyncio
import random

import pytest

from spark_ledger.errors import DataLossError, DigestMismatchError
from spark_ledger.limits import KIB
from spark_ledger.limits.entries import READ_CHUNK_BYTES_TARGET
from spark_ledger.limits.stream import READ_WINDOW_BYTES_MAX, READ_WINDOW_BYTES_MIN
from spark_ledger.stream import reader as reader_module
from spark_ledger.stream import windows as windows_module
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.stream import Stream
from spark_ledger.stream.windows import (
    WINDOW_GROUPS_MAX,
    group_neighbours,
    in_stream_order,
    runs_of,
    windows,
)
from spark_ledger.types import Entry, EntryId, LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeReader
from tests.unit.spark_ledger.stream.test_reader import build, places, whole
from tests.unit.spark_ledger.stream.world import another, loose, numbers, run, table


def test_windows_are_bounded_and_grow() -> None:
    async def sizes(*parts: int) -> list[int]:
        ranges = [whole(number, part, number) for number, part in enumerate(parts)]
        return [len(window) async for window in windows(group_neighbours(ranges))]

    async def scenario() -> None:
        low, high, most = READ_WINDOW_BYTES_MIN, READ_WINDOW_BYTES_MAX, WINDOW_GROUPS_MAX
        assert await sizes(low // 2, low // 2, low // 2, low, low) == [2, 2, 1]
        assert await sizes(*[low // 2] * 80) == [2, 4, 8, 16, 16, 16, 16, 2]
        assert await sizes(1, high, 1, 1) == [1, 1, 2], "a large one is alone"
        assert await sizes(*[1] * (2 * most + 1)) == [most, most, 1]

    run(scenario())


def test_runs_are_by_ledger_in_order_of_entries_and_have_no_gaps() -> None:
    def parts(*places: tuple[int, int]) -> list[list[SegmentRange]]:
        return [[whole(entry, 1, ledger)] for ledger, entry in places]

    found = runs_of(parts((1, 4), (2, 0), (1, 3), (2, 1), (1, 0), (2, 3)))
    assert [[(p.segment.ledger_id, p.first_entry) for p in run] for run in found] == [
        [(1, 0)],
        [(1, 3), (1, 4)],
        [(2, 0), (2, 1)],
        [(2, 3)],
    ]
    beside = runs_of(parts((1, 4), (2, 5)))
    assert [[p.segment.ledger_id for p in run] for run in beside] == [[1], [2]]


def test_entries_of_a_window_are_cut_into_lists_of_a_chunk_in_stream_order() -> None:
    window = [[whole(1, 1, 7)], [whole(0, 1, 8)], [whole(0, 1, 7)]]
    payload = bytes(READ_CHUNK_BYTES_TARGET // 2)
    fetched = {
        (LedgerId(ledger), EntryId(n)): Entry(LedgerId(ledger), EntryId(n), payload, EntryId(0), 0)
        for ledger, n in ((7, 0), (7, 1), (8, 0))
    }
    found = in_stream_order(window, fetched)
    assert [[(e.ledger_id, e.entry_id) for _, e in chunk] for chunk in found] == [
        [(7, 1), (8, 0)],
        [(7, 0)],
    ]


async def interleaved(ledgers: FakeLedgers, commits: int, tasks: int, rng: random.Random) -> Stream:
    """A stream of rows 0, 1, ...; each commit has a segment of some of the tasks, each of which
    has its own ledger and leaves entries that nobody commits."""
    stream = await build(ledgers, [])
    writers = [stream.writer() for _ in range(tasks)]
    row = 0
    for _ in range(commits):
        segments = []
        for writer in rng.sample(writers, rng.randint(1, tasks)):
            if rng.random() < 0.1:
                await writer.write(table(99))
                await (await writer.seal()).confirm()
            rows = rng.choice([1, 1, 2, 200])
            await writer.write(table(row, rows))
            row += rows
            segments += await writer.finish()
        await stream.commit_segments(segments)
    return stream


def test_segments_of_several_tasks_are_read_in_order_by_one_request_each() -> None:
    async def scenario() -> None:
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        ledgers = FakeLedgers()
        ledgers.entries_per_chunk = rng.randint(1, 50)
        stream = await interleaved(ledgers, 100, 8, rng)
        where = await places(stream)
        ledgers.reads.clear()
        assert await numbers(stream.read()) == list(range(len(where))), f"seed {seed}"
        gaps = sum(len(ledger.payloads) for ledger in ledgers.ledgers.values())
        assert len(ledgers.reads) <= 8 + gaps - len(await entries_of(stream)), f"seed {seed}"
        for _ in range(10):
            first, end = sorted(rng.choices(range(len(where)), k=2))
            found = await numbers(stream.read(where[first], where[end]))
            assert found == list(range(first, end)), f"seed {seed}"

    run(scenario())


async def entries_of(stream: Stream) -> list[tuple[int, int]]:
    """The entries that are committed."""
    head = await stream.head()
    return [
        (segment.ledger_id, entry)
        for commit in await stream.commits(0, head.next_commit)
        for segment in commit.segments
        for entry in range(segment.first_entry, segment.last_entry + 1)
    ]


def test_windows_are_read_ahead_of_the_consumer_but_not_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        size = 4 * KIB
        monkeypatch.setattr(windows_module, "READ_WINDOW_BYTES_MIN", size)
        monkeypatch.setattr(windows_module, "READ_WINDOW_BYTES_MAX", size)
        monkeypatch.setattr(windows_module, "READ_CHUNK_BYTES_TARGET", size // 4)
        ledgers = FakeLedgers()
        stream = await interleaved(ledgers, 300, 4, random.Random(1))
        total = sum(len(p) for each in ledgers.ledgers.values() for p in each.payloads)
        chunks = stream.read_chunks()
        await anext(chunks)
        for _ in range(2000):
            await asyncio.sleep(0)
        held = [ledgers.ledgers[n].payloads[low : high + 1] for n, low, high in ledgers.reads]
        ahead = sum(len(payload) for payloads in held for payload in payloads)
        # windows that are cut, wait and come in, and lists that wait on both sides of decoding
        assert size < ahead <= 4 * size < total // 2, total
        await chunks.aclose()
        before = len(ledgers.reads)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(ledgers.reads) == before, "closing stops the reading"
        assert len(asyncio.all_tasks()) == 1, "and leaves no task behind"

    run(scenario())


@pytest.mark.parametrize("is_damaged", [False, True])
def test_rows_before_a_lost_or_damaged_ledger_are_delivered(
    monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await interleaved(ledgers, 20, 3, random.Random(2))
        commits = await stream.commits(0, 20)
        segments = [segment for commit in commits for segment in commit.segments]
        lost = segments[len(segments) // 2].ledger_id
        if is_damaged:
            entry = FakeReader._entry

            def damaged(self: FakeReader, entry_id: int) -> Entry:
                if self._ledger.ledger_id == lost:
                    raise DigestMismatchError(f"ledger {lost}: no copy is undamaged")
                return entry(self, entry_id)

            monkeypatch.setattr(FakeReader, "_entry", damaged)
        else:
            del ledgers.ledgers[lost]
        kept = 0
        for segment in segments:
            if segment.ledger_id == lost:
                break
            kept += segment.rows
        found: list[int] = []
        kind = DigestMismatchError if is_damaged else DataLossError
        with pytest.raises(kind, match=f"ledger {lost}"):
            async for batch in (await another(ledgers)[1].open("s")).read():
                found += [row["n"] for row in batch.to_pylist()]
        assert found == list(range(kept)) and kept > 0

    run(scenario())


def test_segments_of_several_entries_that_follow_one_another_are_one_group() -> None:
    def part(first: int, entries: int, ledger_id: int = 9) -> SegmentRange:
        segment = loose(*[2] * entries, first_entry=first, ledger_id=ledger_id)
        return SegmentRange(segment, (0, 0), (entries, 0), 0, 0)

    async def scenario() -> None:
        parts = [part(0, 3), part(3, 2), part(5, 1), part(7, 2), part(9, 2, 8), part(9, 2)]
        groups = [group async for group in group_neighbours(parts)]
        assert groups == [parts[:3], parts[3:4], parts[4:5], parts[5:]]
        inside = [parts[0]._replace(end=(1, 1)), parts[1]._replace(start=(1, 1))]
        assert [len(group) async for group in group_neighbours(inside)] == [1, 1]
        inside = [parts[0]._replace(start=(2, 1)), parts[1]._replace(end=(0, 1))]
        assert [len(group) async for group in group_neighbours(inside)] == [2]

    run(scenario())


def test_window_of_many_ledgers_asks_few_of_them_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "RUNS_AT_ONCE_MAX", 3)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await build(ledgers, [])
        for n in range(12):
            writer = stream.writer()
            await writer.write(table(n))
            await stream.commit_segments(await writer.finish())
            await writer.close()
        running = most = 0
        inner = ledgers.open_unconfirmed

        async def counting(ledger_id: int) -> FakeReader:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(5):
                await asyncio.sleep(0)
            running -= 1
            return await inner(ledger_id)

        ledgers.open_unconfirmed = counting  # type: ignore[method-assign]
        assert await numbers(stream.read()) == list(range(12))
        assert most == 3

    run(scenario())
