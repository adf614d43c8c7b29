"""Writes batches into ledgers as segments, for one micro-batch after the other.

One ledger stays open between micro-batches, so a micro-batch costs appends and no ledger creation.
It is replaced when it is large or old, and after any failed append: what was pushed behind a
failure has an unknown outcome, so nothing more may follow it there. Segments name only entries that
are confirmed; entries of failed or abandoned attempts stay in the ledger, and no commit names them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from spark_ledger.errors import (
    ConfigurationError,
    LedgerError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.limits import KIB
from spark_ledger.stream.format.arrow_types import AsyncRows, Rows
from spark_ledger.stream.format.entries import EncodedEntry, EntryEncoder, in_pieces
from spark_ledger.stream.ledgers import PURPOSE_SEGMENTS, Ledgers, OpenLedger, ledger_tags
from spark_ledger.stream.model import UNPLACED, Compression, Segment, parse_compression
from spark_ledger.stream.schema_registry import Fit, SchemaRegistry
from spark_ledger.types import EntryId

logger = logging.getLogger(__name__)

ENCODE_IN_THREAD_BYTES_MIN = 256 * KIB
"""From this size on encoding takes longer than handing it to a thread, and the loop stays free."""


def as_batches(data: Rows) -> Iterator[pa.RecordBatch]:
    """The record batches of a ``pyarrow`` RecordBatch, Table or RecordBatchReader, or of an
    iterable of them. Raises ``ConfigurationError`` for anything else."""
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


async def _drawn(data: AsyncRows) -> AsyncIterator[pa.RecordBatch]:
    """The batches of data; those of an async iterable as they come."""
    if isinstance(data, AsyncIterable):
        async for item in data:
            for batch in as_batches(item):
                yield batch
    else:
        for batch in as_batches(data):
            yield batch


@dataclass(slots=True)
class _Part:
    """A segment that is being written: consecutive entries of one ledger and schema version."""

    ledger: OpenLedger
    schema_version: int
    first_entry: EntryId
    entry_rows: list[int] = field(default_factory=list)
    size_bytes: int = 0
    last: asyncio.Future[int] | None = None
    failure: BaseException | None = None

    def push(self, entry: EncodedEntry) -> None:
        future = self.ledger.append_nowait(entry.payload)
        future.add_done_callback(self._note)
        self.last = future
        self.entry_rows.append(entry.rows)
        self.size_bytes += len(entry.payload)

    def _note(self, future: asyncio.Future[int]) -> None:
        """Keep the first failure. Each one is looked at, or asyncio reports it as forgotten."""
        error: BaseException | None
        if future.cancelled():
            error = OutcomeUnknownError("the append was cancelled with its ledger")
        else:
            error = future.exception()
        self.failure = self.failure or error

    async def confirmed(self) -> Segment:
        """The segment once all of its entries are confirmed; raises what the first failed with."""
        assert self.last is not None, "a part has entries"
        await asyncio.wait([self.last])  # not awaited itself: our cancellation must not reach it
        if self.failure is None:
            self._note(self.last)
        if self.failure is not None:
            raise self.failure
        last_entry = EntryId(self.first_entry + len(self.entry_rows) - 1)
        assert self.last.result() == last_entry, "entries of a part are consecutive"
        return Segment(
            number=UNPLACED,
            ledger_id=self.ledger.ledger_id,
            first_entry=self.first_entry,
            last_entry=last_entry,
            rows=sum(self.entry_rows),
            size_bytes=self.size_bytes,
            schema_version=self.schema_version,
            entry_rows=tuple(self.entry_rows),
        )


class PendingSegments:
    """Segments whose entries are pushed and maybe not confirmed yet."""

    def __init__(self, writer: SegmentWriter, parts: list[_Part]) -> None:
        self._writer = writer
        self._parts = parts

    async def confirm(self) -> list[Segment]:
        """The segments, once every entry is confirmed. Raises the failure of an append; then
        nothing of this micro-batch may be committed."""
        segments = []
        for part in self._parts:
            try:
                segments.append(await part.confirmed())
            except LedgerError:
                self._writer.give_up(part.ledger)
                raise
        return segments


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
        self._clock = clock
        self._ledger: OpenLedger | None = None
        self._ledger_opened_s = 0.0
        self._ledger_bytes = 0
        self._last_push: asyncio.Future[int] | None = None
        self._encoder: EntryEncoder | None = None
        self._parts: list[_Part] = []
        self._is_broken = False
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def ledger_id(self) -> int | None:
        """The ledger that takes entries now, if one is open."""
        return None if self._ledger is None else self._ledger.ledger_id

    async def write(self, data: AsyncRows, *, merge_schema: bool | None = None) -> int:
        """Append rows to the micro-batch; how many. Returns once they are pushed or held.

        ``data``: see ``as_batches``; an async iterable of such is drawn on as it comes.

        Raises ``SchemaMismatchError``, ``EntryTooLargeError`` (naming the row), or what an append
        failed with. After an error the micro-batch is to be abandoned and written again.
        """
        merge = self._merge_schema if merge_schema is None else merge_schema
        rows = 0
        try:
            async for batch in _drawn(data):
                await self._write_batch(batch, merge)
                rows += batch.num_rows
        except BaseException:
            self._is_broken = True
            raise
        return rows

    async def _write_batch(self, batch: pa.RecordBatch, merge: bool) -> None:
        fit = await self._schemas.fit(batch.schema, merge=merge)
        encoder = await self._encoder_for(fit.schema_version, fit.schema)
        for piece in in_pieces(batch):
            if piece.nbytes >= ENCODE_IN_THREAD_BYTES_MIN:
                entries = await asyncio.to_thread(_encode, encoder, fit, piece)
            else:
                entries = _encode(encoder, fit, piece)
            await self._push(entries, encoder.schema_version)

    async def seal(self) -> PendingSegments:
        """End the micro-batch: push the rest. The next one may begin before this is confirmed.

        Raises what an append failed with, ``RetryableError`` when a ``write`` or ``seal`` of it
        failed before: a part is no micro-batch.
        """
        if self._is_broken:
            self.abandon()
            raise RetryableError(
                f"stream {self._schemas.config.name!r}: a part of this micro-batch could not be "
                "written, so none of it can be finished: write all of it again"
            )
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            try:
                await self._push(encoder.flush(), encoder.schema_version)
            except BaseException:
                self._is_broken = True
                raise
        parts, self._parts = self._parts, []
        return PendingSegments(self, parts)

    async def finish(self) -> list[Segment]:
        """End the micro-batch; its segments (no number yet) once all entries are confirmed.

        Usually one; none without rows; several when the ledger was replaced in between.
        """
        try:
            return await (await self.seal()).confirm()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Forget the micro-batch. Its entries stay, but no commit will name them."""
        failed = [part.ledger for part in self._parts if part.failure is not None]
        self._parts, self._encoder, self._is_broken = [], None, False
        for ledger in failed:
            self.give_up(ledger)

    async def close(self) -> None:
        """Close the ledger, once what was pushed is confirmed or failed. Idempotent."""
        self.abandon()
        self._retire()
        while self._closing:
            await asyncio.wait(self._closing)

    def give_up(self, ledger: OpenLedger) -> None:
        """Append nothing more to a ledger in which an append failed."""
        if self._ledger is ledger:
            self._retire()

    async def _encoder_for(self, schema_version: int, schema: pa.Schema) -> EntryEncoder:
        """The encoder of a version. A change of version ends the entry, as a segment has one."""
        encoder = self._encoder
        if encoder is not None and encoder.schema_version != schema_version:
            await self._push(encoder.flush(), encoder.schema_version)
            encoder = None
        if encoder is None:
            encoder = self._encoder = EntryEncoder(
                schema,
                schema_version,
                compression=self._compression,
                entry_bytes=self._entry_bytes,
            )
        return encoder

    async def _push(self, entries: list[EncodedEntry], schema_version: int) -> None:
        for entry in entries:
            ledger = await self._ledger_for(len(entry.payload))
            await ledger.wait_for_room()
            for part in self._parts:
                if part.failure is not None:
                    self.give_up(part.ledger)
                    raise part.failure
            part = self._part_for(ledger, schema_version)
            try:
                part.push(entry)
            except LedgerError:
                self.give_up(ledger)
                raise
            self._last_push = part.last
            self._ledger_bytes += len(entry.payload)

    def _part_for(self, ledger: OpenLedger, schema_version: int) -> _Part:
        if self._parts:
            part = self._parts[-1]
            if part.ledger is ledger and part.schema_version == schema_version:
                return part
        part = _Part(ledger, schema_version, EntryId(ledger.last_add_pushed + 1))
        self._parts.append(part)
        return part

    async def _ledger_for(self, size_bytes: int) -> OpenLedger:
        config = self._schemas.config
        if self._ledger is not None and (
            self._ledger.is_closed
            or self._clock() - self._ledger_opened_s >= config.segment_roll_age_s
            or self._ledger_bytes + size_bytes > config.segment_roll_bytes
        ):
            self._retire()
        if self._ledger is None:
            quorums = config.quorums
            self._ledger = await self._ledgers.create_ledger(
                ensemble_size=quorums.ensemble_size,
                write_quorum=quorums.write_quorum,
                ack_quorum=quorums.ack_quorum,
                custom_metadata=ledger_tags(config.name, config.stream_id, PURPOSE_SEGMENTS),
            )
            self._ledger_opened_s = self._clock()
            self._ledger_bytes = 0
            self._last_push = None
        return self._ledger

    def _retire(self) -> None:
        """Stop using the ledger, and close it once what was pushed to it is decided."""
        ledger, self._ledger = self._ledger, None
        if ledger is None:
            return
        task = asyncio.get_running_loop().create_task(_close(ledger, self._last_push))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _encode(encoder: EntryEncoder, fit: Fit, batch: pa.RecordBatch) -> list[EncodedEntry]:
    return encoder.add(fit.projection.apply(batch))


async def _close(ledger: OpenLedger, last_push: asyncio.Future[int] | None) -> None:
    """Close a ledger that is no longer needed. When it cannot be closed it is left to recovery:
    what a commit names is confirmed, whether the ledger is closed or not."""
    if last_push is not None:
        await asyncio.wait([last_push])
    try:
        await ledger.close()
    except NotFoundError:
        logger.info(
            "ledger %d was deleted, with its stream, before it was closed", ledger.ledger_id
        )
    except LedgerError as error:
        logger.warning("ledger %d of a stream is left open: %s", ledger.ledger_id, error)
