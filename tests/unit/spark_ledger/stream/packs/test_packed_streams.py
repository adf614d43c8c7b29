"""Streams that are optimized while anything happens to them, compared with a list of their rows."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from spark_ledger.errors import (
    ConflictError,
    DataLossError,
    LedgerError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.metadata.memory import Fault, Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format.metadata_column import PositionedBatch, ledger_array
from spark_ledger.stream.ledgers import PURPOSE_SEGMENTS, purpose_of
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.packs.format import decode_packs
from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.effort import PACKED_STREAMS, in_shares
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    another,
    run,
    small_manifests,
)

STEPS = 30
WIDER = pa.schema([*SCHEMA, pa.field("more", pa.int64())])
NOT_TEXT = b"\xff\xfe"


class Row(NamedTuple):
    """A row as it was first read: its values, its ``_ledger`` column, its commit, and how many rows
    of the stream come before it, which is its offset for code that was written for Kafka."""

    values: tuple[object, ...]
    place: tuple[object, ...]
    commit: int
    before: int

    @property
    def position(self) -> Dlsn:
        return Dlsn(*self.place[:3])  # type: ignore[arg-type]


def rows_of(batches: list[PositionedBatch]) -> list[Row]:
    found: list[Row] = []
    for each in batches:
        # Text may be any bytes, which Python cannot have as text.
        columns = [
            c.cast(pa.binary()) if pa.types.is_string(c.type) else c for c in each.batch.columns
        ]
        values = zip(*(column.to_pylist() for column in columns), strict=True)
        places = zip(*(part.to_pylist() for part in ledger_array(each).flatten()), strict=True)
        rows = enumerate(zip(values, places, strict=True), each.row)
        found += [Row(v, p, each.commit, number) for number, (v, p) in rows]
    return found


def batch(first: int, count: int, wide: bool) -> pa.RecordBatch:
    numbers = pa.array(range(first, first + count), pa.int64())
    _, offsets, data = pa.array([NOT_TEXT] * count, pa.binary()).buffers()
    assert offsets is not None and data is not None
    text = pa.StringArray.from_buffers(count, offsets, data)
    columns: list[pa.Array[Any]] = [numbers, text, *([numbers] if wide else [])]
    return pa.RecordBatch.from_arrays(columns, schema=WIDER if wide else SCHEMA)


class Trouble:
    """Replies get lost, and at some call the process dies."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.calls_left = draw.choice([3, 8, 20, 60, 10_000])

    def __call__(self, name: str, path: str) -> Fault:
        self.calls_left -= 1
        if self.calls_left < 0:
            return Fault(Outcome.UNAVAILABLE)
        if name not in ("get", "get_latest", "children") and self.draw.random() < 0.06:
            return Fault(self.draw.choice([Outcome.LOST_REPLY, Outcome.LOST_REQUEST]))
        return Fault()


class Life:
    """One stream, the rows that it should have, and readers of different ages."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.ledgers = FakeLedgers()
        self.rows: list[Row] = []
        self.next_number = 0
        self.readers: list[Stream] = []
        self.plans: list[list[SegmentRange]] = []
        self.log: list[str] = []

    async def begin(self) -> None:
        await self.ledgers.store.create("keeper", b"")
        await StreamCatalog(self.ledgers).create("s", SCHEMA, entry_bytes=1024)

    async def healthy(self) -> Stream:
        return await another(self.ledgers)[1].open("s")

    def packs(self) -> Packs:
        nodes = self.ledgers.store.tree._nodes
        path = "streams/s/packs"
        return decode_packs(nodes[path].data, path) if path in nodes else Packs()

    async def write(self) -> None:
        """Several tasks write, with ledgers of their own, which some of them keep."""
        stream = await self.healthy()
        writers = [stream.writer(merge_schema=True) for _ in range(self.draw.choice([1, 2, 3]))]
        wide = len(stream.config.schemas) > 1 or self.draw.random() < 0.1
        for _ in range(self.draw.choice([1, 3, 8])):
            overwrite = self.draw.random() < 0.03
            segments = []
            for writer in writers:
                for _ in range(self.draw.choice([0, 1, 1, 2])):
                    count = self.draw.choice([1, 2, 3, 90])
                    await writer.write(batch(self.next_number, count, wide))
                    self.next_number += count
                segments += await writer.finish()
            made = await stream.commit_segments(segments, overwrite=overwrite)
            ranges = ranges_between([made], Dlsn(made.first_segment), Dlsn(made.end_segment))
            chunks = stream.read_range_chunks(ranges, schema=WIDER)
            new = rows_of([each async for chunk in chunks for each in chunk])
            self.rows = new if overwrite else self.rows + new
        for writer in writers:
            if self.draw.random() < 0.7:
                await writer.close()

    async def plan(self) -> None:
        """A batch is planned that will be read later, perhaps again and again."""
        stream = await self.healthy()
        head = await stream.head()
        commits = await stream.commits(head.earliest_commit, head.next_commit)
        self.plans.append(ranges_between(commits, *self.some_positions()))

    def some_positions(self) -> tuple[Dlsn, Dlsn]:
        if not self.rows:
            return Dlsn(0), Dlsn(0)
        low, high = sorted(self.draw.randrange(len(self.rows)) for _ in range(2))
        return self.rows[low].position, self.rows[high].position

    async def optimize(self) -> None:
        other, streams = another(self.ledgers)
        stream = await streams.open("s")
        if self.draw.random() < 0.5:
            other.store.interpose = Trouble(self.draw)
        try:
            async for _ in stream.optimizer.run(
                entry_bytes=self.draw.choice([1024, 4096, 1 << 16]),
                pack_bytes=self.draw.choice([1 << 16, 1 << 20]),
                entries_min=self.draw.choice([1, 4]),
            ):
                pass
        except (RetryableError, OutcomeUnknownError, MetadataUnavailableError, DataLossError):
            pass

    async def two_optimizers(self) -> None:
        await asyncio.gather(self.optimize(), self.optimize())

    async def optimize_beside_others(self) -> None:
        await asyncio.gather(self.optimize(), self.write(), self.reclaim())

    async def truncate(self) -> None:
        if len(self.rows) < 2:
            return
        row = self.draw.choice(self.rows)
        stream = await self.healthy()
        earliest = await stream.retention.truncate(row.position)
        self.rows = [each for each in self.rows if each.position >= earliest]

    async def reclaim(self) -> None:
        other, streams = another(self.ledgers)
        stream = await streams.open("s")
        if self.draw.random() < 0.6:
            other.store.interpose = Trouble(self.draw)
        with contextlib.suppress(ConflictError, OutcomeUnknownError, MetadataUnavailableError):
            await self._reclaim(stream, other)

    async def _reclaim(self, stream: Stream, ledgers: FakeLedgers) -> None:
        names = LiveNames()
        earliest = (await stream.head()).earliest_commit
        config = await stream.refresh()
        if earliest:
            for _ in range(3):
                step = await stream.retention.reclaimer(ClosedDeletions(ledgers), names).step(
                    earliest
                )
                if step.is_done:
                    break
        if config.has_packs:
            await stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames()).free_packed()

    async def read(self) -> None:
        """A new reader, or one that knows old packs or none, reads between any two rows."""
        if not self.readers or self.draw.random() < 0.3:
            self.readers.append(await self.healthy())
        stream = self.draw.choice(self.readers[-3:])
        stream._watch.invalidate()
        first, last = self.some_positions()
        head = await stream.head()
        commits = await stream.commits(head.earliest_commit, head.next_commit)
        chunks = stream.read_range_chunks(ranges_between(commits, first, last), schema=WIDER)
        found = rows_of([each async for chunk in chunks for each in chunk])
        assert found == [row for row in self.rows if first <= row.position < last]

    async def read_plan(self) -> None:
        """A batch that was planned before reads what it would have read then, or says that the
        rows were truncated."""
        if not self.plans:
            return
        plan = self.draw.choice(self.plans)
        stream = (
            await self.healthy()
            if self.draw.random() < 0.5 or not self.readers
            else (self.draw.choice(self.readers))
        )
        head = await (await self.healthy()).head()
        is_live = bool(plan) and plan[0].segment.number >= head.earliest.segment
        try:
            chunks = stream.read_range_chunks(plan, schema=WIDER)
            found = rows_of([each async for chunk in chunks for each in chunk])
        except DataLossError:
            assert not is_live
            return
        if is_live:
            known = {row.position: row for row in self.rows}
            assert found == [known[row.position] for row in found]
            assert len(found) == sum(part.rows for part in plan)

    async def check(self) -> None:
        """All rows are read as they were first read, and what the node says holds."""
        stream = await self.healthy()
        head = await stream.head()
        commits = await stream.commits(head.earliest_commit, head.next_commit)
        ranges = ranges_between(commits, head.earliest, head.end)
        chunks = stream.read_range_chunks(ranges, schema=WIDER)
        assert rows_of([each async for chunk in chunks for each in chunk]) == self.rows
        assert all(pack.ledger_id in self.ledgers.ledgers for pack in self.packs().packs)

    async def settled(self) -> None:
        """After a keeper has worked, no former ledger is left that no unpacked commit needs."""
        for ledger in self.ledgers.ledgers.values():
            ledger.closed = True
        stream = await self.healthy()
        for _ in range(4):
            await self._reclaim(stream, self.ledgers)
        await self.check()
        packs = self.packs()
        head = await stream.head()
        numbers = packs.numbers_outside(head.earliest_commit, head.next_commit)
        needed = {
            segment.ledger_id
            for number in numbers
            for segment in (await stream.commit(number)).segments
        }
        if packs.packs:
            assert all(pack.is_freed and pack.end > head.earliest_commit for pack in packs.packs)
        named = {
            segment.ledger_id
            for commit in await stream.commits(head.earliest_commit, head.next_commit)
            for segment in commit.segments
        }
        left = {
            each.ledger_id
            for each in self.ledgers.ledgers.values()
            if purpose_of(each.metadata) == PURPOSE_SEGMENTS
        }
        assert needed <= left
        assert not (left & named) - needed, "former ledgers are deleted"


@pytest.mark.parametrize("part", in_shares(list(range(PACKED_STREAMS.proof)), PACKED_STREAMS))
def test_stream_that_is_optimized_is_read_as_if_it_were_not(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=3, kept=2)

    async def scenario(seed: int) -> None:
        life = Life(seed)
        await life.begin()
        acts = [life.write] * 6 + [life.optimize] * 3 + [life.read] * 4 + [life.reclaim] * 2
        acts += [life.plan, life.read_plan, life.read_plan, life.truncate, life.two_optimizers]
        acts += [life.optimize_beside_others]
        try:
            for _ in range(STEPS):
                act = life.draw.choice(acts)
                life.log.append(act.__name__)
                await act()
                await life.check()
            await life.settled()
        except (Exception, LedgerError) as error:
            raise AssertionError(f"seed {seed}: {' '.join(life.log)}: {error!r}") from error

    run(scenario(random.randrange(1 << 30)))
