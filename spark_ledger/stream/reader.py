"""Reads ranges of segments: fetches entries, decodes them, cuts them at rows. Reads no commits.

A range carries the segment it belongs to, so a process that is given ranges needs no stream
metadata but the schemas. Entries are read without asking for the last add confirmed, because a
commit names only confirmed entries (rule T9).

Where several tasks write, neighbouring segments lie in different ledgers, and to fetch one after
the other would cost a request each. So small segments are fetched in windows (``windows``): what a
window needs of one ledger is one request, the ledgers are read at the same time, and the rows are
put into stream order again. A window is bounded in bytes, and the next one is fetched while rows of
this one are decoded.

Rows that are in a pack are read from there (rule T23). Which packs there are is read once, and
again when a former ledger is gone: then the rest is read from its pack (rule T24).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from spark_ledger.errors import (
    BookieUnavailableError,
    CorruptionError,
    DataLossError,
    DigestMismatchError,
    LedgerError,
    NoSuchLedgerError,
    NotFoundError,
)
from spark_ledger.limits import KIB
from spark_ledger.stream.concurrency import prefetch, run_all
from spark_ledger.stream.format.entries import EntryDecoder, read_header
from spark_ledger.stream.format.metadata_column import PositionedBatch
from spark_ledger.stream.format.schema import Projection
from spark_ledger.stream.ledgers import LedgerRange, Ledgers
from spark_ledger.stream.model import Segment, SegmentRange
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.packs.model import Pack
from spark_ledger.stream.packs.places import PackedRange, cut_out, places
from spark_ledger.stream.packs.store import PackStore
from spark_ledger.stream.row_filter import RowFilter
from spark_ledger.stream.schema_registry import (
    STALE_READ_DELAY_S,
    STALE_READ_RETRIES,
    SchemaRegistry,
)
from spark_ledger.stream.windows import (
    Chunk,
    Ranges,
    group_neighbours,
    in_stream_order,
    runs_of,
    windows,
)
from spark_ledger.types import Dlsn, Entry, EntryId, LedgerId, ReplicaHint

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
FETCHED_AHEAD: Final = 1
DECODED_AHEAD: Final = 2
"""Lists of about four MiB that wait to be decoded, and that were decoded before they are asked for,
beside the one in work on each side."""

RUNS_AT_ONCE_MAX: Final = 32
"""Requests that one read has in flight at most."""

DECODE_IN_THREAD_BYTES_MIN: Final = 256 * KIB
"""From this size on decoding takes longer than handing it to a thread, and the loop stays free."""

LEDGERS_OPEN_MAX: Final = 64
"""Ledgers whose metadata are kept for the next read."""


class _OpenLedger(NamedTuple):
    ledger: LedgerRange
    opened_s: float
    """When its metadata were read, by the loop's clock."""
    covered: EntryId
    """Its metadata name the fragments of all entries up to this one."""


class _ReadOptions(NamedTuple):
    """What all fetches of one read have in common."""

    began_s: float
    """When the read began, by the loop's clock: what it reads was committed before."""
    replica_hint: ReplicaHint
    where: RowFilter | None = None


class RangeReader:
    """Reads ranges of one stream's segments. Bound to one event loop."""

    def __init__(self, ledgers: Ledgers, nodes: StreamNodes, schemas: SchemaRegistry) -> None:
        self._ledgers = ledgers
        self._nodes = nodes
        self.schemas = schemas
        self.packs = PackStore(ledgers, nodes)
        self._open: OrderedDict[LedgerId, _OpenLedger] = OrderedDict()

    def read(
        self,
        ranges: Ranges,
        *,
        schema: pa.Schema,
        replica_hint: ReplicaHint = 0,
        where: RowFilter | None = None,
    ) -> AsyncGenerator[list[PositionedBatch], None]:
        """The rows of the ranges, in order, cast to ``schema``, in lists of about four MiB.

        A batch lies within one entry. ``replica_hint`` chooses the replica that is asked first, so
        that readers share the load. Raises DataLossError if segments are gone, NoSuchStreamError
        if the stream is, CorruptionError, SchemaMismatchError, BookieUnavailableError.
        """
        return prefetch(self._read(ranges, schema, replica_hint, where), DECODED_AHEAD)

    async def _read(
        self,
        ranges: Ranges,
        schema: pa.Schema,
        replica_hint: ReplicaHint,
        where: RowFilter | None,
    ) -> AsyncGenerator[list[PositionedBatch], None]:
        options = _ReadOptions(asyncio.get_running_loop().time(), replica_hint, where)
        decoder = _Decoder(self._nodes.name, self.schemas, schema, where)
        entries = prefetch(self._fetch_in_order(ranges, options), FETCHED_AHEAD)
        async with aclosing(entries):
            async for chunk in entries:
                yield await decoder.decode(chunk)

    async def _fetch_in_order(
        self, ranges: Ranges, options: _ReadOptions
    ) -> AsyncGenerator[Chunk, None]:
        """All entries with their ranges, in stream order, in lists of about four MiB."""
        if self.schemas.config.has_packs:
            await self.packs.look()
        async for window in windows(group_neighbours(ranges, options.where)):
            packs = self.packs.known
            if packs is None or not packs.packs:
                async with aclosing(self._fetch_former(window, options)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                continue
            parts = [part for group in window for part in group]
            for pack, section in packs.sections(parts):
                if pack is not None:
                    read = self._fetch_packed(pack, section, options)
                else:
                    groups = [group async for group in group_neighbours(section)]
                    read = self._fetch_former(groups, options)
                async with aclosing(read) as chunks:
                    async for chunk in chunks:
                        yield chunk

    async def _fetch_former(
        self, window: list[list[SegmentRange]], options: _ReadOptions
    ) -> AsyncGenerator[Chunk, None]:
        """The entries of a window from the ledgers that the commits name."""
        if len(window) > 1:
            try:
                chunks = await self._fetch_window(window, options)
            except (DataLossError, DigestMismatchError):
                pass  # one after the other, so that all rows before what is lost are delivered
            else:
                for chunk in chunks:
                    yield chunk
                return
        for group in window:
            parts, rest = deque(group), group
            try:
                async with aclosing(self._fetch(group, options)) as batches:
                    async for entries in batches:
                        yield _with_parts(entries, parts)
                        rest = _behind(group, EntryId(entries[-1].entry_id + 1))
            except DataLossError:
                packs = (await self.packs.read()).value
                sections = list(packs.sections(rest))
                if any(pack is None for pack, _ in sections):
                    raise
                for pack, section in sections:
                    assert pack is not None, "the others have raised"
                    async with aclosing(self._fetch_packed(pack, section, options)) as packed:
                        async for chunk in packed:
                            yield chunk

    async def _fetch_packed(
        self, pack: Pack, parts: list[SegmentRange], options: _ReadOptions
    ) -> AsyncGenerator[Chunk, None]:
        """The entries of a pack that have rows of these ranges."""
        name = f"stream {self._nodes.name!r}"
        try:
            index = await self.packs.index(pack, self.schemas.config.stream_id)
        except NotFoundError as error:
            raise await self._why_missing(parts, parts[0].first_entry, error) from error
        for packed in places(pack, index, parts, name):
            async with aclosing(self._fetch([packed.range], options)) as batches:
                async for entries in batches:
                    yield [(packed, entry) for entry in entries]

    async def _fetch_window(
        self, window: list[list[SegmentRange]], options: _ReadOptions
    ) -> Sequence[Chunk]:
        """The entries of a window, each ledger's run of entries fetched by one request."""
        calls = asyncio.Semaphore(RUNS_AT_ONCE_MAX)
        fetched: dict[tuple[LedgerId, EntryId], Entry] = {}

        async def fetch(run: list[SegmentRange]) -> None:
            async with calls, aclosing(self._fetch(run, options)) as batches:
                async for entries in batches:
                    for entry in entries:
                        fetched[entry.ledger_id, entry.entry_id] = entry

        await run_all(fetch(run) for run in runs_of(window))
        return in_stream_order(window, fetched)

    async def _fetch(
        self, group: list[SegmentRange], options: _ReadOptions
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """The entries of a group, in order, in lists as they arrive.

        A read that fails with metadata that were kept is tried again with fresh ones, because
        bookies may have been replaced since. A metadata server that lags may not know the newest
        fragment of an open ledger, so an entry that no bookie has is looked for again before it
        counts as lost.
        """
        ledger_id, following = group[0].segment.ledger_id, group[0].first_entry
        last = group[-1].last_entry
        is_fresh, may_change, attempts = True, False, 0
        while following <= last:
            try:
                ledger, is_fresh = await self._ledger(ledger_id, last, options.began_s)
                may_change = not ledger.is_closed
                async with aclosing(
                    ledger.read_batches(
                        following, last, unconfirmed=True, replica_hint=options.replica_hint
                    )
                ) as batches:
                    async for entries in batches:
                        assert entries[0].entry_id == following, "entries come in order"
                        following = EntryId(entries[-1].entry_id + 1)
                        yield entries
                assert following == last + 1, "a ledger delivers the whole range, or raises"
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
                    raise self._with_place(group, following, error) from error
                if is_fresh:
                    await asyncio.sleep(STALE_READ_DELAY_S)

    async def _ledger(
        self, ledger_id: LedgerId, last: EntryId, read_began_s: float
    ) -> tuple[LedgerRange, bool]:
        """A ledger whose metadata cover an entry, and whether they were read just now.

        Metadata of an open ledger do not name fragments made after they were read. They are good
        enough for entries that were committed before.
        """
        known = self._open.get(ledger_id)
        if known is not None and (
            known.ledger.is_closed or last <= known.covered or read_began_s <= known.opened_s
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

    def _with_place(
        self, group: list[SegmentRange], entry_id: EntryId, cause: LedgerError
    ) -> LedgerError:
        """The same error, which also says which segment cannot be read."""
        part = next(part for part in group if entry_id <= part.last_entry)
        return type(cause)(
            f"stream {self._nodes.name!r}: segment {part.segment.number} cannot be read: {cause}"
        )

    async def _why_missing(
        self, group: list[SegmentRange], entry_id: EntryId, cause: LedgerError
    ) -> LedgerError:
        """The error that says why an entry of a committed segment is gone."""
        part = next(part for part in group if entry_id <= part.last_entry)
        await self.schemas.refresh()  # raises NoSuchStreamError if the stream was deleted
        head = (await self._nodes.head()).value
        number = part.segment.number
        if number < head.earliest.segment:
            return DataLossError(
                f"stream {self._nodes.name!r}: segment {number} was truncated while it was read; "
                f"the earliest position is {tuple(head.earliest)}"
            )
        return DataLossError(
            f"stream {self._nodes.name!r}: segment {number} (ledger {part.segment.ledger_id}, "
            f"entries {part.segment.first_entry}..{part.segment.last_entry}) was committed, but "
            f"its entries are gone: {cause}"
        )


class _Decoder:
    """Turns entries, each with its range, into batches of one schema; large ones in a thread."""

    def __init__(
        self,
        stream_name: str,
        schemas: SchemaRegistry,
        target: pa.Schema,
        where: RowFilter | None,
    ) -> None:
        self._where = where
        self._stream_name = stream_name
        self._schemas = schemas
        self._target = target
        self._projections: dict[int, Projection] = {}
        self._decoders: dict[int, EntryDecoder] = {}
        self._reached = (-1, 0, 0)
        """A segment's number, an entry of it, and the rows of the segment before that entry."""

    async def decode(self, entries: Chunk) -> list[PositionedBatch]:
        for part, _ in entries:
            version = _range_of(part).segment.schema_version
            if version not in self._projections:
                source = await self._schemas.schema(version)
                self._projections[version] = Projection(source, self._target)
                self._decoders[version] = EntryDecoder(source)
        size_bytes = sum(len(entry.payload) for _, entry in entries)
        if size_bytes >= DECODE_IN_THREAD_BYTES_MIN:
            return await asyncio.to_thread(self._decode_all, entries)
        return self._decode_all(entries)

    def _decode_all(self, entries: Chunk) -> list[PositionedBatch]:
        found: list[PositionedBatch] = []
        for part, entry in entries:
            if isinstance(part, PackedRange):
                whole = self._decode_one(part.range, entry)
                found += [cut_out(whole, piece) for piece in part.pieces[entry.entry_id]]
            else:
                found.append(self._decode_one(part, entry))
        return found

    def _decode_one(self, part: SegmentRange, entry: Entry) -> PositionedBatch:
        segment = part.segment
        number = entry.entry_id - segment.first_entry  # as DLSNs count (rule T5)
        assert part.first_entry <= entry.entry_id <= part.last_entry, "an entry of this range"
        where = (
            f"stream {self._stream_name!r}, segment {segment.number}, entry {number} "
            f"(ledger {segment.ledger_id}, entry {entry.entry_id})"
        )
        header = read_header(entry.payload, where)
        expected = (segment.entries_version, segment.entry_rows[number])
        if (header.schema_version, header.rows) != expected:
            raise CorruptionError(
                f"{where}: schema version {header.schema_version} and {header.rows} rows, but the "
                f"commit says {expected[0]} and {expected[1]}"
            )
        batch = self._decoders[segment.schema_version].decode(entry.payload, where)
        first = part.start[1] if number == part.start[0] else 0
        end = part.end[1] if number == part.end[0] else header.rows
        if (first, end) != (0, header.rows):
            batch = batch.slice(first, end - first)
        return PositionedBatch(
            Dlsn(segment.number, number, first),
            segment.ledger_id,
            part.commit,
            part.commit_time_ms,
            self._projections[segment.schema_version].apply(batch),
            part.segment_row + self._rows_before(segment, number) + first,
            None if self._where is None else self._where.matching(batch),
        )

    def _rows_before(self, segment: Segment, entry: int) -> int:
        """How many rows of a segment lie before an entry. Entries come in order, so each row count
        is added once."""
        number, reached, rows = self._reached
        if number != segment.number or reached > entry:
            reached, rows = 0, 0
        rows += sum(segment.entry_rows[reached:entry])
        self._reached = (segment.number, entry, rows)
        return rows


def _range_of(part: SegmentRange | PackedRange) -> SegmentRange:
    return part.range if isinstance(part, PackedRange) else part


def _behind(group: list[SegmentRange], entry_id: EntryId) -> list[SegmentRange]:
    """What is left of a group from an entry on."""
    rest = [part for part in group if part.last_entry >= entry_id]
    if rest and rest[0].first_entry < entry_id:
        rest[0] = rest[0]._replace(start=(entry_id - rest[0].segment.first_entry, 0))
    return rest


def _with_parts(
    entries: Sequence[Entry], parts: deque[SegmentRange]
) -> list[tuple[SegmentRange, Entry]]:
    """Each entry with the range it belongs to. Ranges that are behind are taken off ``parts``."""
    result = []
    for entry in entries:
        while entry.entry_id > parts[0].last_entry:
            parts.popleft()
        result.append((parts[0], entry))
    return result
