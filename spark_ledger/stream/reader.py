"""Reads ranges of segments: fetches entries, decodes them, cuts at rows. Knows no commits' nodes.

A range carries the segment it belongs to, so a process that is given ranges needs no metadata but
the schemas. Entries are read without asking for the last add confirmed: a commit names only
confirmed entries. Neighbouring segments of one ledger are fetched as one range, because small
micro-batches would otherwise cost a request each.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from spark_ledger.errors import (
    BookieUnavailableError,
    CorruptionError,
    DataLossError,
    DigestMismatchError,
    LedgerError,
    NoSuchLedgerError,
    NotFoundError,
)
from spark_ledger.limits import KIB, READ_CHUNK_BYTES_TARGET, READ_REQUEST_BYTES_MAX
from spark_ledger.stream.format.entries import decode_entry, read_header
from spark_ledger.stream.format.metadata_column import PositionedBatch
from spark_ledger.stream.format.schema import Projection
from spark_ledger.stream.ledgers import LedgerRange, Ledgers
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.schema_registry import (
    STALE_READ_DELAY_S,
    STALE_READ_RETRIES,
    SchemaRegistry,
)
from spark_ledger.types import Dlsn, Entry, EntryId, LedgerId

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

CHUNKS_AHEAD = 4
"""Chunks of about one MiB that are fetched and decoded before they are asked for."""

GROUP_BYTES_MAX = READ_REQUEST_BYTES_MAX
"""Neighbouring segments are joined up to what a bookie sends for one request."""

GROUPS_AT_ONCE_MAX = 32

DECODE_IN_THREAD_BYTES_MIN = 256 * KIB
LEDGERS_OPEN_MAX = 64


class _OpenLedger(NamedTuple):
    ledger: LedgerRange
    opened_s: float
    covered: EntryId
    """Up to this entry its metadata know every fragment."""


class _How(NamedTuple):
    """What all fetches of one read have in common."""

    since_s: float
    """When the read began: what it reads was committed by then."""
    replica_hint: int


class RangeReader:
    """Reads ranges of one stream's segments. Bound to one event loop."""

    def __init__(self, ledgers: Ledgers, nodes: StreamNodes, schemas: SchemaRegistry) -> None:
        self._ledgers = ledgers
        self._nodes = nodes
        self._schemas = schemas
        self._open: OrderedDict[LedgerId, _OpenLedger] = OrderedDict()

    async def read(
        self,
        ranges: AsyncIterator[SegmentRange] | Iterable[SegmentRange],
        *,
        schema: pa.Schema,
        replica_hint: int = 0,
    ) -> AsyncGenerator[PositionedBatch, None]:
        """The rows of the ranges, in order, cast to ``schema``; a batch lies within one entry.

        ``replica_hint`` chooses the replica that is asked first, so that readers share the load.
        Raises ``DataLossError`` (segments are gone), ``NoSuchStreamError`` (the stream is),
        ``CorruptionError``, ``SchemaMismatchError``, ``BookieUnavailableError``.
        """
        async with aclosing(
            self.read_chunks(ranges, schema=schema, replica_hint=replica_hint)
        ) as chunks:
            async for chunk in chunks:
                for batch in chunk:
                    yield batch

    def read_chunks(
        self,
        ranges: AsyncIterator[SegmentRange] | Iterable[SegmentRange],
        *,
        schema: pa.Schema,
        replica_hint: int = 0,
    ) -> AsyncGenerator[list[PositionedBatch], None]:
        """As ``read``, in lists of about one MiB: for callers to whom each item costs."""
        return prefetched(self._chunks(ranges, schema, replica_hint), CHUNKS_AHEAD)

    async def _chunks(
        self,
        ranges: AsyncIterator[SegmentRange] | Iterable[SegmentRange],
        schema: pa.Schema,
        replica_hint: int,
    ) -> AsyncGenerator[list[PositionedBatch], None]:
        how = _How(asyncio.get_running_loop().time(), replica_hint)
        decoder = _Decoder(self._nodes.name, self._schemas, schema)
        async for bundle in bundled(grouped(ranges)):
            if len(bundle) > 1:
                fetched = await _together([self._fetch_all(group, how) for group in bundle])
                yield await decoder.decode([pair for pairs in fetched for pair in pairs])
                continue
            places = deque(bundle[0])
            async with aclosing(self._fetch(bundle[0], how)) as lists:
                async for entries in lists:
                    yield await decoder.decode(_placed(entries, places))

    async def _fetch_all(
        self, group: list[SegmentRange], how: _How
    ) -> list[tuple[SegmentRange, Entry]]:
        places, result = deque(group), []
        async with aclosing(self._fetch(group, how)) as lists:
            async for entries in lists:
                result += _placed(entries, places)
        return result

    async def _fetch(
        self, group: list[SegmentRange], how: _How
    ) -> AsyncGenerator[list[Entry], None]:
        """The entries of a group, in lists.

        What fails with metadata that were read earlier is tried again with fresh ones: bookies may
        have been replaced since. A metadata server that lags may not know the newest fragment of
        an open ledger, so an entry that is nowhere is looked for again, before it counts as lost.
        """
        ledger_id, following = group[0].segment.ledger_id, group[0].first_entry
        last = group[-1].last_entry
        is_fresh, may_change, attempts = True, False, 0
        while following <= last:
            try:
                ledger, is_fresh = await self._ledger(ledger_id, last, how.since_s)
                may_change = not ledger.is_closed
                async with aclosing(
                    ledger.read_batches(
                        following, last, unconfirmed=True, replica_hint=how.replica_hint
                    )
                ) as batches:
                    async for entries in batches:
                        assert entries[0].entry_id == following, "entries come in order"
                        following = EntryId(entries[-1].entry_id + 1)
                        yield entries
                assert following == last + 1, "the ledger delivered the whole range"
            except (NotFoundError, BookieUnavailableError, DigestMismatchError) as error:
                self._open.pop(ledger_id, None)
                attempts += 1
                is_gone = isinstance(error, NotFoundError)
                may_help = not is_fresh or (is_gone and may_change)
                if attempts > STALE_READ_RETRIES or isinstance(error, NoSuchLedgerError):
                    may_help = False
                if not may_help and is_gone:
                    raise await self._why_missing(group, following, error) from error
                if not may_help:
                    raise
                if is_fresh:
                    await asyncio.sleep(STALE_READ_DELAY_S)

    async def _ledger(
        self, ledger_id: LedgerId, last: EntryId, since_s: float
    ) -> tuple[LedgerRange, bool]:
        """A ledger whose metadata cover an entry, and whether they were read just now.

        Metadata of an open ledger tell nothing of fragments made later. They serve for entries
        that were committed before they were read.
        """
        known = self._open.get(ledger_id)
        if known is not None and (
            known.ledger.is_closed or last <= known.covered or since_s <= known.opened_s
        ):
            self._open[ledger_id] = known._replace(covered=max(last, known.covered))
            self._open.move_to_end(ledger_id)
            return known.ledger, False
        opened_s = asyncio.get_running_loop().time()
        ledger = await self._ledgers.open_unconfirmed(ledger_id)
        self._open[ledger_id] = _OpenLedger(ledger, opened_s, last)
        if len(self._open) > LEDGERS_OPEN_MAX:
            self._open.popitem(last=False)
        return ledger, True

    async def _why_missing(
        self, group: list[SegmentRange], entry_id: EntryId, cause: LedgerError
    ) -> LedgerError:
        """The error that explains why an entry of a committed segment is gone."""
        place = next(place for place in group if entry_id <= place.last_entry)
        await self._schemas.refresh()  # raises NoSuchStreamError when the stream was deleted
        head = (await self._nodes.head()).value
        number = place.segment.number
        if number < head.earliest.segment:
            return DataLossError(
                f"stream {self._nodes.name!r}: segment {number} was truncated while it was read; "
                f"the earliest position is {tuple(head.earliest)}"
            )
        return DataLossError(
            f"stream {self._nodes.name!r}: segment {number} (ledger {place.segment.ledger_id}, "
            f"entries {place.segment.first_entry}..{place.segment.last_entry}) was committed, but "
            f"its entries are gone: {cause}"
        )


class _Decoder:
    """Entries with their places to batches in the schema wanted; off the loop when it is much."""

    def __init__(self, stream_name: str, schemas: SchemaRegistry, target: pa.Schema) -> None:
        self._stream_name = stream_name
        self._schemas = schemas
        self._target = target
        self._projections: dict[int, Projection] = {}

    async def decode(self, placed: list[tuple[SegmentRange, Entry]]) -> list[PositionedBatch]:
        for place, _ in placed:
            version = place.segment.schema_version
            if version not in self._projections:
                source = await self._schemas.schema(version)
                self._projections[version] = Projection(source, self._target)
        size_bytes = sum(len(entry.payload) for _, entry in placed)
        if size_bytes >= DECODE_IN_THREAD_BYTES_MIN:
            return await asyncio.to_thread(self._decode_all, placed)
        return self._decode_all(placed)

    def _decode_all(self, placed: list[tuple[SegmentRange, Entry]]) -> list[PositionedBatch]:
        return [self._decode_one(place, entry) for place, entry in placed]

    def _decode_one(self, place: SegmentRange, entry: Entry) -> PositionedBatch:
        segment = place.segment
        number = entry.entry_id - segment.first_entry
        where = (
            f"stream {self._stream_name!r}, segment {segment.number}, entry {number} "
            f"(ledger {segment.ledger_id}, entry {entry.entry_id})"
        )
        header = read_header(entry.payload, where)
        expected = (segment.schema_version, segment.entry_rows[number])
        if (header.schema_version, header.rows) != expected:
            raise CorruptionError(
                f"{where}: schema version {header.schema_version} and {header.rows} rows, but the "
                f"commit says {expected[0]} and {expected[1]}"
            )
        projection = self._projections[segment.schema_version]
        batch = decode_entry(entry.payload, projection.source, where)
        first = place.start[1] if number == place.start[0] else 0
        end = place.end[1] if number == place.end[0] else header.rows
        if (first, end) != (0, header.rows):
            batch = batch.slice(first, end - first)
        return PositionedBatch(
            Dlsn(segment.number, number, first),
            segment.ledger_id,
            place.commit,
            place.commit_time_ms,
            projection.apply(batch),
        )


def _placed(
    entries: Sequence[Entry], places: deque[SegmentRange]
) -> list[tuple[SegmentRange, Entry]]:
    """Each entry with its range; ranges that are passed leave ``places``, except the last one."""
    result = []
    for entry in entries:
        while entry.entry_id > places[0].last_entry:
            places.popleft()
        result.append((places[0], entry))
    return result


async def grouped(
    ranges: AsyncIterator[SegmentRange] | Iterable[SegmentRange],
) -> AsyncIterator[list[SegmentRange]]:
    """Ranges in lists whose entries follow each other in one ledger."""
    group: list[SegmentRange] = []
    size_bytes = 0
    async for place in _each(ranges):
        if group and (
            place.segment.ledger_id != group[-1].segment.ledger_id
            or place.first_entry != group[-1].last_entry + 1
            or size_bytes >= GROUP_BYTES_MAX
        ):
            yield group
            group, size_bytes = [], 0
        group.append(place)
        size_bytes += place.segment.size_bytes
    if group:
        yield group


async def bundled(
    groups: AsyncIterator[list[SegmentRange]],
) -> AsyncIterator[list[list[SegmentRange]]]:
    """Small groups in lists of about a chunk, to be fetched at the same time; large ones alone.

    Where several sinks write, neighbouring segments lie in different ledgers: asking for one after
    the other would cost a round trip for each.
    """
    bundle: list[list[SegmentRange]] = []
    room_bytes = READ_CHUNK_BYTES_TARGET
    async for group in groups:
        size_bytes = sum(place.segment.size_bytes for place in group)
        if bundle and (size_bytes > room_bytes or len(bundle) == GROUPS_AT_ONCE_MAX):
            yield bundle
            bundle, room_bytes = [], READ_CHUNK_BYTES_TARGET
        bundle.append(group)
        room_bytes -= size_bytes
    if bundle:
        yield bundle


async def _together(work: list[Coroutine[object, object, T]]) -> list[T]:
    """The results of all; the first failure, in order, ends the others."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _each(items: AsyncIterator[T] | Iterable[T]) -> AsyncIterator[T]:
    if isinstance(items, Iterable):
        for item in items:
            yield item
    else:
        async for item in items:
            yield item


async def prefetched(source: AsyncGenerator[T, None], ahead: int) -> AsyncGenerator[T, None]:
    """The items of ``source``, of which up to ``ahead`` are made before they are asked for.

    Errors of the source arrive in their place. Closing this closes the source.
    """
    ready: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
    room = asyncio.Semaphore(ahead)

    async def pump() -> None:
        try:
            async for item in source:
                ready.put_nowait((item,))
                await room.acquire()
        finally:
            await source.aclose()
            ready.put_nowait(None)

    task = asyncio.get_running_loop().create_task(pump())
    try:
        while (item := await ready.get()) is not None:
            room.release()
            yield item[0]
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # delivered above, or nobody waits for it any more
