"""Streams for code without a loop: wrappers that run the async handles on the portal's loop."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Self, TypeVar, Unpack
from weakref import WeakSet

import pyarrow as pa

from spark_ledger.client.blocking import LedgerConnection
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format.arrow_types import Rows
from spark_ledger.stream.format.metadata_column import PositionedBatch
from spark_ledger.stream.model import (
    ENTRY_BYTES_DEFAULT,
    SEGMENT_ROLL_AGE_S_DEFAULT,
    SEGMENT_ROLL_BYTES_DEFAULT,
    Commit,
    CommitMark,
    Compression,
    Head,
    Retention,
    Segment,
    SegmentRange,
    SinkRecord,
    StreamConfig,
)
from spark_ledger.stream.packs.optimizer import OptimizeOptions, Packed, Progress
from spark_ledger.stream.plan.locate import Located
from spark_ledger.stream.positions import Position
from spark_ledger.stream.retention.blocking import StreamRetention
from spark_ledger.stream.segment_writer import SegmentWriter as AsyncSegmentWriter
from spark_ledger.stream.segment_writer import as_batches
from spark_ledger.stream.several import AppendedStreams, commit_to, wait_for_any
from spark_ledger.stream.stream import Stream as AsyncStream
from spark_ledger.stream.taken_rows import taken_rows
from spark_ledger.stream.where import Where
from spark_ledger.types import Dlsn, LedgerId, ReplicaHint

T = TypeVar("T")


class StreamConnection(LedgerConnection):
    """A blocking connection to a cluster: its ledgers and its streams."""

    def __init__(self, portal: BlockingPortal, client: LedgerClient) -> None:
        super().__init__(portal, client)
        self._streams = StreamCatalog(client)
        self._appended = AppendedStreams(self._streams)
        self._handles: WeakSet[Stream | SegmentWriter] = WeakSet()

    def close(self) -> None:
        """Close the streams and writers that were opened here, and in any case the connection."""
        try:
            if not self._closed:
                for handle in list(self._handles):
                    handle.close()
                self._call(self._appended.close())
        finally:  # else its session would go on
            super().close()

    def _handle(self, stream: AsyncStream) -> Stream:
        handle = Stream(self._portal, stream, self._handles)
        self._handles.add(handle)
        return handle

    def create_stream(
        self,
        name: str,
        schema: pa.Schema,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        compression: str | Compression = Compression.LZ4,
        entry_bytes: int = ENTRY_BYTES_DEFAULT,
        segment_roll_bytes: int = SEGMENT_ROLL_BYTES_DEFAULT,
        segment_roll_age_s: float = SEGMENT_ROLL_AGE_S_DEFAULT,
        retention: Retention | None = None,
        key_columns: Sequence[str] = (),
        time_column: str | None = None,
        exist_ok: bool = False,
    ) -> Stream:
        """Create a stream for rows of a ``pyarrow.Schema``. See ``StreamCatalog.create``."""
        created = self._call(
            self._streams.create(
                name,
                schema,
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                compression=compression,
                entry_bytes=entry_bytes,
                segment_roll_bytes=segment_roll_bytes,
                segment_roll_age_s=segment_roll_age_s,
                retention=retention,
                key_columns=key_columns,
                time_column=time_column,
                exist_ok=exist_ok,
            )
        )
        return self._handle(created)

    def stream(self, name: str) -> Stream:
        """Open a stream. Raises NoSuchStreamError."""
        return self._handle(self._call(self._streams.open(name)))

    def append_to(
        self,
        data: Mapping[str, Rows],
        *,
        sink_id: str | None = None,
        transaction_id: int | None = None,
        run_id: str = "",
        merge_schema: bool = False,
    ) -> dict[str, Commit]:
        """Append rows to several streams by name: all of them have theirs, or none.

        ``client.append_to({"a": table, "b": table}, sink_id="job", transaction_id=7)``. The same
        pair again for the same streams changes nothing. See ``several.append_to`` for the errors.
        """
        with ExitStack() as taken:
            parts = {name: taken.enter_context(taken_rows(rows)) for name, rows in data.items()}
            return self._call(
                self._appended.append_to(
                    parts,
                    sink_id=sink_id,
                    transaction_id=transaction_id,
                    run_id=run_id,
                    merge_schema=merge_schema,
                )
            )

    def commit_to(
        self,
        parts: Sequence[tuple[Stream, Sequence[Segment]]],
        *,
        sink_id: str | None = None,
        transaction_id: int | None = None,
        run_id: str = "",
        new_columns: pa.Schema | None = None,
    ) -> list[Commit]:
        """Commit segments that writers finished to several streams: to all of them, or to none."""
        return self._call(
            commit_to(
                [(stream._stream, segments) for stream, segments in parts],
                sink_id=sink_id,
                transaction_id=transaction_id,
                run_id=run_id,
                new_columns=[new_columns] * len(parts),
            )
        )

    def wait_for_any(self, after: Iterable[tuple[Stream, int]], timeout_s: float) -> None:
        """Wait until one of the streams has a segment above its number, is gone, or time is up."""
        self._call(wait_for_any([(each._stream, n) for each, n in after], timeout_s))

    def stream_names(self) -> list[str]:
        """The names in use, sorted: also of streams just being created or deleted. One read."""
        return self._call(self._streams.names_in_use())

    def list_streams(self) -> list[str]:
        """The names of all streams, sorted."""
        return self._call(self._streams.names())

    def delete_stream(self, name: str) -> None:
        """Delete a stream with its rows. Raises NoSuchStreamError."""
        self._call(self._streams.delete(name))


class Stream:
    """A stream. Threads may share it. See ``stream.Stream`` for what the methods promise."""

    def __init__(
        self,
        portal: BlockingPortal,
        stream: AsyncStream,
        handles: WeakSet[Stream | SegmentWriter],
    ) -> None:
        self._portal = portal
        self._stream = stream
        self._handles = handles
        self.retention = StreamRetention(portal, stream.retention)

    def _call(self, work: Coroutine[object, object, T]) -> T:
        return self._portal.call(work)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._stream.name

    @property
    def config(self) -> StreamConfig:
        """The configuration as it was last read; ``refresh`` reads it again."""
        return self._stream.config

    @property
    def schema(self) -> pa.Schema:
        """The newest schema known (``pyarrow.Schema``), in stored types."""
        return self._stream.schema

    def refresh(self, *, latest: bool = False) -> StreamConfig:
        """Read the configuration again (``latest``: no older one). Raises NoSuchStreamError."""
        return self._call(self._stream.refresh(latest=latest))

    # -- appending ---------------------------------------------------------------------------------

    def append(
        self,
        data: Rows,
        *,
        sink_id: str | None = None,
        transaction_id: int | None = None,
        run_id: str = "",
        merge_schema: bool = False,
        overwrite: bool = False,
    ) -> Commit:
        """Append rows as one commit; the same (sink id, transaction id) again changes nothing.

        An iterable may block: it is taken in a thread of its own (see ``taken_rows``).
        """
        with taken_rows(data) as rows:
            return self._call(
                self._stream.append(
                    rows,
                    sink_id=sink_id,
                    transaction_id=transaction_id,
                    run_id=run_id,
                    merge_schema=merge_schema,
                    overwrite=overwrite,
                )
            )

    def commit_segments(
        self,
        segments: Sequence[Segment],
        *,
        sink_id: str | None = None,
        transaction_id: int | None = None,
        run_id: str = "",
        overwrite: bool = False,
        new_columns: pa.Schema | None = None,
    ) -> Commit:
        """Commit segments that writers finished, here or in other processes, in this order."""
        return self._call(
            self._stream.commit_segments(
                segments,
                sink_id=sink_id,
                transaction_id=transaction_id,
                run_id=run_id,
                overwrite=overwrite,
                new_columns=new_columns,
            )
        )

    def last_transaction(self, sink_id: str) -> SinkRecord | None:
        """The newest transaction of a sink with its commit, or None."""
        return self._call(self._stream.last_transaction(sink_id))

    def last_transactions(self) -> list[SinkRecord]:
        """The newest transaction of every sink. Reads a metadata node for each."""
        return self._call(self._stream.last_transactions())

    def writer(
        self,
        *,
        merge_schema: bool = False,
        compression: str | Compression | None = None,
        entry_bytes: int | None = None,
    ) -> SegmentWriter:
        """A writer of segments that keeps its ledger open between micro-batches."""
        writer = SegmentWriter(
            self._portal,
            self._stream.writer(
                merge_schema=merge_schema, compression=compression, entry_bytes=entry_bytes
            ),
        )
        self._handles.add(writer)
        return writer

    def check_schema(self, schema: pa.Schema, *, merge_schema: bool = False) -> None:
        """Raises SchemaMismatchError if data of this schema cannot be appended as they are, or
        with ``merge_schema``. Changes nothing."""
        self._call(self._stream.check_schema(schema, merge_schema=merge_schema))

    def merge_schema(self, schema: pa.Schema) -> pa.Schema:
        """Add the columns that the stream lacks, nullable, at once; the newest schema then."""
        return self._call(self._stream.merge_schema(schema))

    # -- looking up --------------------------------------------------------------------------------

    def head(self) -> Head:
        """How far the stream reaches."""
        return self._call(self._stream.head())

    def wait_for_commit(self, *, after_segment: int, timeout_s: float | None) -> Head:
        """The head once its ``next_segment`` is above ``after_segment``, or at the timeout."""
        return self._call(
            self._stream.wait_for_commit(after_segment=after_segment, timeout_s=timeout_s)
        )

    def commit_of(self, record: SinkRecord) -> Commit:
        """The commit of a sink's newest transaction; without segments if it was truncated."""
        return self._call(self._stream.commit_of(record))

    def commit(self, number: int) -> Commit:
        """A commit by number."""
        return self._call(self._stream.commit(number))

    def commits(self, first: int, end: int) -> list[Commit]:
        """Commits ``first`` .. ``end - 1`` by number."""
        return self._call(self._stream.commits(first, end))

    def commit_at(self, segment: int) -> Commit:
        """The commit that holds a segment."""
        return self._call(self._stream.commit_at(segment))

    def commits_between(
        self,
        first_segment: int,
        end_segment: int,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> list[Commit]:
        """The commits that hold segments ``first_segment`` .. ``end_segment - 1``, in order."""
        return self._call(
            self._stream.commits_between(
                first_segment, end_segment, max_rows=max_rows, max_bytes=max_bytes
            )
        )

    def locate(self, ledger_ids: Iterable[LedgerId]) -> Located:
        """Where the entries of ledgers lie, as far as that can be looked up now."""
        return self._call(self._stream.locator.locate(ledger_ids))

    def marks(self, first: int, end: int) -> list[CommitMark]:
        """Where every hundredth commit between two begins: see ``stream.Stream.marks``."""
        return self._call(self._stream.marks(first, end))

    def first_commit_since(self, time_ms: int) -> Commit | None:
        """The first commit made at this time (ms since 1970) or later, or None."""
        return self._call(self._stream.first_commit_since(time_ms))

    def position_at_timestamp(self, time_ms: int) -> Dlsn:
        """The first row committed at this time or later; the end of the stream without one."""
        return self._call(self._stream.position_at_timestamp(time_ms))

    def position_of_row(self, row: int) -> Dlsn:
        """The row before which so many were committed: see ``stream.Stream.position_of_row``."""
        return self._call(self._stream.position_of_row(row))

    def position_of(self, sink_id: str, transaction_id: int) -> Dlsn | None:
        """The first row of a sink's transaction, or of the next one that it made; or None."""
        return self._call(self._stream.position_of(sink_id, transaction_id))

    # -- reading -----------------------------------------------------------------------------------

    def read(
        self,
        start: Position = "earliest",
        end: Position = "latest",
        *,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows from ``start`` (inclusive) to ``end`` (exclusive) as record batches."""
        chunks = self._stream.read_chunks(start, end, schema=schema, columns=columns, where=where)
        return _flatten(self._portal.iterate(chunks))

    def tail(
        self,
        start: Position = "latest",
        *,
        idle_timeout: float | None = None,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows from ``start`` on, also those to come, until none came for ``idle_timeout`` s."""
        tail = self._stream.tail(start, idle_timeout=idle_timeout, schema=schema, columns=columns)
        return self._portal.iterate(tail)

    def read_ranges(
        self,
        ranges: Iterable[SegmentRange],
        *,
        schema: pa.Schema | None = None,
        replica_hint: ReplicaHint = 0,
        where: Where | None = None,
    ) -> Iterator[PositionedBatch]:
        """The rows of ranges that a planner made, each batch with its position."""
        read = self._stream.read_range_chunks
        chunks = read(ranges, schema=schema, replica_hint=replica_hint, where=where)
        return _flatten(self._portal.iterate(chunks))

    def read_commits(
        self,
        commits: range,
        start: Dlsn,
        end: Dlsn,
        *,
        schema: pa.Schema | None = None,
        replica_hint: ReplicaHint = 0,
        where: Where | None = None,
    ) -> Iterator[PositionedBatch]:
        """The rows between two positions that are in these commits, each batch with its place."""
        chunks = self._stream.read_commit_chunks(
            commits, start, end, schema=schema, replica_hint=replica_hint, where=where
        )
        return _flatten(self._portal.iterate(chunks))

    def optimize(
        self, *, progress: Progress | None = None, **options: Unpack[OptimizeOptions]
    ) -> list[Packed]:
        """Copy small commits into packs of large entries; what was packed. See ``Optimizer.run``.

        Positions, commits and rows stay as they are. ``progress`` runs on the connection's thread.
        """
        return self._call(self._stream.optimizer.run_all(progress=progress, **options))

    def close(self) -> None:
        """Stop watching, and close the ledger that ``append`` uses. Idempotent."""
        self._call(self._stream.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _flatten(chunks: Iterator[list[T]]) -> Iterator[T]:
    """The items of lists. Closing this generator closes ``chunks``."""
    try:
        for chunk in chunks:
            yield from chunk
    finally:
        chunks.close()  # type: ignore[attr-defined]  # it is a generator of the portal


class SegmentWriter:
    """Writes segments from one thread, for one micro-batch after the other."""

    def __init__(self, portal: BlockingPortal, writer: AsyncSegmentWriter) -> None:
        self._portal = portal
        self._writer = writer

    def write(self, data: Rows, *, merge_schema: bool | pa.Schema | None = None) -> int:
        """Append rows to the micro-batch; how many. Waits only while too much is in flight.

        Items are taken in the caller's thread, as that may block; an error there spoils the rest.
        """
        try:
            return sum(
                self._portal.call(self._writer.write(batch, merge_schema=merge_schema))
                for batch in as_batches(data)
            )
        except BaseException:
            self._portal.call(self._writer.spoil())
            raise

    def finish(self) -> list[Segment]:
        """End the micro-batch; its segments (no number yet) once all entries are confirmed."""
        return self._portal.call(self._writer.finish())

    def abandon(self) -> None:
        """Forget the micro-batch. Its entries stay, but no commit will name them."""

        async def abandon() -> None:
            self._writer.abandon()

        self._portal.call(abandon())

    def close(self) -> None:
        """Close the ledger. Idempotent."""
        self._portal.call(self._writer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
