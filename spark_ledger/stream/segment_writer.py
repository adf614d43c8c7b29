"""Writes batches into ledgers as segments, for one micro-batch after the other.

One ledger stays open between micro-batches, so a micro-batch costs appends and no ledger creation.
It is replaced when it is large or old, and after any failed append: what was pushed behind a
failure has an unknown outcome, so nothing more may follow it there. When nothing comes for a while
it is closed, so that a process that ends without a word leaves no open ledger. Segments name only
entries that are confirmed; entries of failed or abandoned attempts stay in the ledger, and no
commit names them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from spark_ledger.client.timer import Alarm
from spark_ledger.errors import (
    ConfigurationError,
    LedgerError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.limits import KIB
from spark_ledger.limits.stream import IDLE_LEDGER_S
from spark_ledger.stream.declared import Describer
from spark_ledger.stream.format.arrow_types import AsyncRows, Rows
from spark_ledger.stream.format.entries import EncodedEntry, EntryEncoder, in_pieces
from spark_ledger.stream.ledgers import PURPOSE_SEGMENTS, Ledgers, OpenLedger, new_ledger
from spark_ledger.stream.model import UNPLACED, Compression, Segment, parse_compression
from spark_ledger.stream.schema_registry import Fit, SchemaRegistry
from spark_ledger.stream.statistics import NO_FACTS, EntryFacts, merged, of_entries
from spark_ledger.types import EntryId

logger = logging.getLogger(__name__)

ENCODE_IN_THREAD_BYTES_MIN: Final = 256 * KIB
"""From this size on encoding takes longer than handing it to a thread, and the loop stays free."""


def as_batches(data: Rows) -> Iterator[pa.RecordBatch]:
    """The record batches of a ``pyarrow`` RecordBatch, Table or RecordBatchReader, or of an
    iterable of them. Raises ConfigurationError for anything else."""
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | dict):
        for item in data:
            if not isinstance(item, pa.RecordBatch | pa.Table):
                raise ConfigurationError(
                    f"data: needs pyarrow record batches or tables, not {type(item).__name__} "
                    f"(in a {type(data).__name__})"
                )
            yield from as_batches(item)
    else:
        raise ConfigurationError(
            "data: needs a pyarrow.Table, a pyarrow.RecordBatch or an iterable of them, not "
            f"{type(data).__name__}"
        )


async def _batches_of(data: AsyncRows) -> AsyncIterator[pa.RecordBatch]:
    """As ``as_batches``; also the batches of an async iterable, as they arrive."""
    if isinstance(data, AsyncIterable):
        async for item in data:
            for batch in as_batches(item):
                yield batch
    else:
        for batch in as_batches(data):
            yield batch


@dataclass(slots=True)
class _OpenSegment:
    """A segment that is being written: consecutive entries of one ledger and schema version."""

    ledger: OpenLedger
    schema_version: int
    first_entry: EntryId
    entry_rows: list[int] = field(default_factory=list)
    facts: EntryFacts = NO_FACTS
    """Of all entries together: a task may write any number of them."""
    size_bytes: int = 0
    last: asyncio.Future[int] | None = None
    """The entry pushed last. A ledger confirms in order, so with it all are confirmed."""
    failure: BaseException | None = None
    new_schema: pa.Schema | None = None
    """The schema of the entries, if the commit adds it to the stream (rule T19)."""
    written_in: pa.Schema | None = None
    """The schema of the entries, if the stream has it, and did not from its beginning."""
    stream_id: str = ""

    def push(self, entry: EncodedEntry) -> None:
        future = self.ledger.append_nowait(entry.payload)
        future.add_done_callback(self._keep_failure)
        self.last = future
        self.entry_rows.append(entry.rows)
        if entry.facts is not None:
            self.facts = merged(self.facts, entry.facts)
        self.size_bytes += len(entry.payload)

    def _keep_failure(self, future: asyncio.Future[int]) -> None:
        """Keep the first failure. Looks at each one, or asyncio would report it as not handled."""
        error: BaseException | None
        if future.cancelled():
            error = OutcomeUnknownError("the append was cancelled with its ledger")
        else:
            error = future.exception()
        self.failure = self.failure or error

    async def confirmed(self) -> Segment:
        """The segment once all of its entries are confirmed (rule T1). Raises the first failure."""
        assert self.last is not None, "a segment has entries"
        # Not awaited itself: a cancellation of this call must not cancel the append.
        await asyncio.wait([self.last])
        if self.failure is None:
            self._keep_failure(self.last)
        if self.failure is not None:
            raise self.failure
        last_entry = EntryId(self.first_entry + len(self.entry_rows) - 1)
        assert self.last.result() == last_entry, "nothing else was pushed to this ledger in between"
        return Segment(
            number=UNPLACED,
            ledger_id=self.ledger.ledger_id,
            first_entry=self.first_entry,
            last_entry=last_entry,
            rows=sum(self.entry_rows),
            size_bytes=self.size_bytes,
            schema_version=self.schema_version,
            entry_rows=tuple(self.entry_rows),
            new_schema=self.new_schema,
            incarnation=self.ledger.incarnation,
            written_in=self.written_in,
            stream_id=self.stream_id,
            statistics=of_entries([self.facts]),
        )


class PendingSegments:
    """Segments whose entries are all pushed, and perhaps not all confirmed yet."""

    def __init__(self, writer: SegmentWriter, segments: list[_OpenSegment]) -> None:
        self._writer = writer
        self._segments = segments

    async def confirm(self) -> list[Segment]:
        """The segments, once every entry is confirmed. Raises what an append failed with; then
        nothing of this micro-batch may be committed (rule T1)."""
        confirmed = []
        for segment in self._segments:
            try:
                confirmed.append(await segment.confirmed())
            except LedgerError:
                self._writer.stop_using(segment.ledger)
                raise
        return confirmed


class SegmentWriter:
    """Writes to one stream. One micro-batch at a time: ``write`` ..., then ``finish``."""

    def __init__(
        self,
        ledgers: Ledgers,
        schemas: SchemaRegistry,
        *,
        merge_schema: bool = False,
        compression: str | Compression | None = None,
        entry_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledgers = ledgers
        self._schemas = schemas
        self._merge_schema = merge_schema
        config = schemas.config
        self._compression = parse_compression(compression or config.compression)
        self._entry_bytes = entry_bytes or config.entry_bytes
        self._describe = Describer(config) if config.has_declared else None
        self._clock = clock
        self._ledger: OpenLedger | None = None
        self._ledger_opened_s = 0.0
        self._ledger_bytes = 0
        self._last_push: asyncio.Future[int] | None = None
        self._encoder: EntryEncoder | None = None
        self._segments: list[_OpenSegment] = []
        self._new: list[Fit] = []
        """The new schema versions of this micro-batch. Its commit adds them (rule T19)."""
        self._is_broken = False
        """A part of this micro-batch could not be written, so none of it may be finished."""
        self._closing: set[asyncio.Task[None]] = set()
        self._calls = 0
        """Calls that are writing now. A ledger is only idle between them."""
        self._idle_since = 0.0
        self._idle: Alarm | None = None
        """Made in the loop, and this object perhaps not."""

    @property
    def ledger_id(self) -> int | None:
        """The ledger that takes entries now, or None if none is open."""
        return None if self._ledger is None else self._ledger.ledger_id

    async def write(self, data: AsyncRows, *, merge_schema: bool | pa.Schema | None = None) -> int:
        """Append rows to the micro-batch; how many. Returns once they are pushed, or held to be
        joined with the next ones. ``data``: see ``as_batches``, or an async iterable of such.
        ``merge_schema`` as a schema: what the columns are that the commit adds.

        Raises SchemaMismatchError, EntryTooLargeError that names the row, or what an append
        failed with. After an error the micro-batch has to be abandoned and written again.
        """
        merge = self._merge_schema if merge_schema is None else merge_schema
        rows = 0
        self._calls += 1
        try:
            async for batch in _batches_of(data):
                await self._write_batch(batch, merge)
                rows += batch.num_rows
        except BaseException:
            self._is_broken = True
            raise
        finally:
            self._calls -= 1
            self._used()
        return rows

    async def spoil(self) -> None:
        """A part of this micro-batch cannot be had from its caller: none of it may be finished."""
        self._is_broken = True

    async def _write_batch(self, batch: pa.RecordBatch, merge: bool | pa.Schema) -> None:
        fit = await self._schemas.fit(batch.schema, merge=merge, pending=self._new)
        if fit.is_new and all(known.schema is not fit.schema for known in self._new):
            self._new.append(fit)
        encoder = await self._encoder_for(fit)

        def encode(piece: pa.RecordBatch) -> list[EncodedEntry]:
            return encoder.add(fit.projection.apply(piece))

        for piece in in_pieces(batch):
            if piece.nbytes >= ENCODE_IN_THREAD_BYTES_MIN:
                entries = await asyncio.to_thread(encode, piece)
            else:
                entries = encode(piece)
            await self._push(entries, encoder)

    async def seal(self) -> PendingSegments:
        """End the micro-batch: push the rows that are held. The next one may begin at once.

        Raises what an append failed with, RetryableError if a ``write`` or ``seal`` of it failed
        before: the rest would be a micro-batch with rows missing.
        """
        self._check_whole()
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            self._calls += 1
            try:
                await self._push(encoder.flush(), encoder)
            except BaseException:
                self._is_broken = True
                raise
            finally:
                self._calls -= 1
                self._used()
            self._check_whole()
        segments, self._segments = self._segments, []
        self._new = []
        return PendingSegments(self, segments)

    def _check_whole(self) -> None:
        if self._is_broken:
            self.abandon()
            raise RetryableError(
                f"stream {self._schemas.config.name!r}: a part of this micro-batch could not be "
                "written, so none of it can be finished: write all of it again"
            )

    async def finish(self) -> list[Segment]:
        """End the micro-batch; its segments (no number yet) once all entries are confirmed.

        There is one as a rule, none if there are no rows, and several if the ledger was replaced
        or the schema changed in between. Raises as ``seal`` and ``PendingSegments.confirm``.
        """
        try:
            return await (await self.seal()).confirm()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Forget the micro-batch. Its entries stay, but no commit will name them (rule T1).

        What a ``write`` or ``seal`` that is under way still brings is not the whole of it: that one
        cannot be finished.
        """
        failed = [segment.ledger for segment in self._segments if segment.failure is not None]
        self._segments, self._encoder, self._is_broken = [], None, self._calls > 0
        self._new = []
        for ledger in failed:
            self.stop_using(ledger)

    async def close(self) -> None:
        """Close the ledger, once what was pushed is confirmed or has failed. Idempotent.

        A micro-batch that is being written, and has not failed, cannot be finished any more: its
        rows so far are forgotten.
        """
        has_rows = bool(self._segments or self._encoder) and not self._is_broken
        self.abandon()
        self._is_broken = self._is_broken or has_rows
        if self._idle is not None:
            self._idle.cancel()
        self._close_ledger()
        while self._closing:
            await asyncio.wait(self._closing)

    def stop_using(self, ledger: OpenLedger) -> None:
        """Append nothing more to a ledger in which an append has failed."""
        if self._ledger is ledger:
            self._close_ledger()

    async def _encoder_for(self, fit: Fit) -> EntryEncoder:
        """The encoder of a version. A new version ends the entry: entries have one (rule T8)."""
        encoder = self._encoder
        if encoder is not None and (
            encoder.schema_version != fit.schema_version or encoder.schema is not fit.schema
        ):
            await self._push(encoder.flush(), encoder)
            encoder = None
        if encoder is None:
            encoder = self._encoder = EntryEncoder(
                fit.schema,
                fit.schema_version,
                compression=self._compression,
                entry_bytes=self._entry_bytes,
                describe=self._describe,
            )
        return encoder

    async def _push(self, entries: list[EncodedEntry], encoder: EntryEncoder) -> None:
        for entry in entries:
            ledger = await self._ledger_for(len(entry.payload))
            await ledger.wait_for_room()
            for segment in self._segments:
                if segment.failure is not None:
                    self.stop_using(segment.ledger)
                    raise segment.failure
            segment = self._segment_for(ledger, encoder)
            try:
                segment.push(entry)
            except LedgerError:
                self.stop_using(ledger)
                raise
            self._last_push = segment.last
            self._ledger_bytes += len(entry.payload)

    def _segment_for(self, ledger: OpenLedger, encoder: EntryEncoder) -> _OpenSegment:
        """The segment that takes the next entry: the last one, unless ledger or version changed."""
        version = encoder.schema_version
        is_new = any(fit.schema is encoder.schema for fit in self._new)
        new_schema = encoder.schema if is_new else None
        if self._segments:
            segment = self._segments[-1]
            if (segment.ledger, segment.schema_version, segment.new_schema) == (
                ledger,
                version,
                new_schema,
            ):
                return segment
        first = EntryId(ledger.last_add_pushed + 1)
        segment = _OpenSegment(ledger, version, first, new_schema=new_schema)
        if version > 0 and not is_new:
            segment.written_in = encoder.schema
        segment.stream_id = self._schemas.config.stream_id
        self._segments.append(segment)
        return segment

    async def _ledger_for(self, size_bytes: int) -> OpenLedger:
        """The ledger that takes an entry; a new one if the last is closed, old or full."""
        config = self._schemas.config
        if self._ledger is not None and (
            self._ledger.is_closed
            or self._clock() - self._ledger_opened_s >= config.segment_roll_age_s
            or self._ledger_bytes + size_bytes > config.ledger_bytes_max
        ):
            self._close_ledger()
        if self._ledger is None:
            self._ledger = await new_ledger(self._ledgers, config, PURPOSE_SEGMENTS)
            self._ledger_opened_s = self._clock()
            self._ledger_bytes = 0
            self._last_push = None
        return self._ledger

    def _used(self) -> None:
        """Something was written: from now on the ledger is idle."""
        self._idle_since = asyncio.get_running_loop().time()
        if self._idle is None:
            self._idle = self._ledgers.timer.alarm(self._on_idle)
        if self._ledger is not None:
            self._idle.set_by(self._idle_since + IDLE_LEDGER_S)

    def _on_idle(self) -> None:
        """Close a ledger that nobody has used for a while.

        All of it happens in one turn of the loop, so no micro-batch can begin in between: it finds
        the ledger open and in use, or gets a new one. A micro-batch that was begun and waits for
        more rows keeps its ledger, as do its entries that wait to be joined with the next ones.
        """
        assert self._idle is not None, "it rings"
        idle_until = self._idle_since + IDLE_LEDGER_S
        if self._ledger is not None and self._ledger.is_closed:
            return  # failed, or gone with its connection: the next micro-batch sees it
        is_used = bool(self._calls or self._segments or self._encoder is not None)
        # With too few bookies for another ledger this one still takes entries (rule P10).
        size = self._schemas.config.quorums.ensemble_size
        if is_used or not self._ledgers.has_bookies_for(size):
            idle_until = asyncio.get_running_loop().time() + IDLE_LEDGER_S
        elif self._idle.was_due >= idle_until:
            self._close_ledger()
        if self._ledger is not None:
            self._idle.set_by(idle_until)

    def _close_ledger(self) -> None:
        """Use another ledger from now on; close this one once its appends have ended."""
        ledger, self._ledger = self._ledger, None
        if ledger is None:
            return
        task = asyncio.get_running_loop().create_task(
            _close(self._ledgers, ledger, self._last_push)
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def push_all(
    writer: SegmentWriter, data: AsyncRows, *, merge_schema: bool
) -> PendingSegments:
    """One micro-batch of all the data, pushed and not confirmed yet."""
    try:
        await writer.write(data, merge_schema=merge_schema)
        return await writer.seal()
    except BaseException:
        writer.abandon()
        raise


async def _close(
    ledgers: Ledgers, ledger: OpenLedger, last_push: asyncio.Future[int] | None
) -> None:
    """Close a ledger that is no longer used. If that fails the connection closes it by recovery:
    what a commit names is confirmed in either case (rule T9)."""
    if last_push is not None:
        await asyncio.wait([last_push])
    try:
        await ledger.close()
    except NotFoundError:
        logger.info(
            "ledger %d was deleted, with its stream, before it was closed", ledger.ledger_id
        )
    except LedgerError as error:
        logger.warning("ledger %d of a stream is not closed: %s", ledger.ledger_id, error)
    if ledger.is_left_open:
        ledgers.close_later(ledger.ledger_id)
