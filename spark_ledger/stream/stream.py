"""The handle of a stream: append, commit, read, follow, and look up commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, TypeVar

import pyarrow as pa

from spark_ledger.errors import ConfigurationError, DataLossError
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.commit.commit_rules import Proposal
from spark_ledger.stream.commit.committer import Committer
from spark_ledger.stream.commit.head_watch import HeadWatch
from spark_ledger.stream.commit.proposals import columns_of, new_proposal
from spark_ledger.stream.concurrency import flatten
from spark_ledger.stream.format.arrow_types import AsyncRows
from spark_ledger.stream.format.metadata_column import PositionedBatch
from spark_ledger.stream.format.schema import canonical_schema
from spark_ledger.stream.ledgers import Ledgers
from spark_ledger.stream.model import (
    Commit,
    CommitMark,
    Compression,
    Head,
    Segment,
    SegmentRange,
    SinkRecord,
    StreamConfig,
    check_sink_id,
)
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.packs.optimizer import Optimizer
from spark_ledger.stream.plan.locate import Locator
from spark_ledger.stream.positions import Position, parse_position
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.stream.reader import RangeReader
from spark_ledger.stream.retention.handle import StreamRetention
from spark_ledger.stream.schema_registry import (
    STALE_READ_DELAY_S,
    STALE_READ_RETRIES,
    SchemaRegistry,
)
from spark_ledger.stream.segment_writer import SegmentWriter, push_all
from spark_ledger.stream.wanted import columns_wanted, rows_wanted
from spark_ledger.stream.where import Where
from spark_ledger.types import Dlsn, ReplicaHint, Versioned

T = TypeVar("T")

_COMMITS_PER_STEP_MIN: Final = 16
_COMMITS_PER_STEP_MAX: Final = 1024
"""A read looks up this many commits first, then twice as many each time: a short read ends soon."""

_SPARE_WRITERS_MAX: Final = 2
"""Writers of data that were still to come, kept with their open ledgers for later ones."""


class Stream:
    """One stream. Made by ``StreamCatalog``; bound to one event loop."""

    def __init__(
        self, ledgers: Ledgers, nodes: StreamNodes, config: Versioned[StreamConfig]
    ) -> None:
        self._ledgers = ledgers
        self._nodes = nodes
        self._schemas = SchemaRegistry(nodes, config)
        self._log = CommitLog(ledgers, nodes, config.value.stream_id)
        self._watch = HeadWatch(nodes, config.value.stream_id, self._log.history)
        self._committer = Committer(ledgers, nodes, self._log, self._schemas, self._watch.heads)
        self._reader = RangeReader(ledgers, nodes, self._schemas)
        self.locator = Locator(ledgers)
        self.retention = StreamRetention(nodes, self._schemas, self._log, self._reader.packs)
        self.optimizer = Optimizer(ledgers, nodes, self._log, self._reader, self.retention)
        self._append_lock = asyncio.Lock()
        self._append_writer: SegmentWriter | None = None
        self._spare_writers: list[SegmentWriter] = []

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._nodes.name

    @property
    def config(self) -> StreamConfig:
        """The configuration as it was last read; ``refresh`` reads it again."""
        return self._schemas.config

    @property
    def schema(self) -> pa.Schema:
        """The newest schema known (``pyarrow.Schema``), in stored types."""
        return self.config.schema

    async def refresh(self, *, latest: bool = False) -> StreamConfig:
        """Read the configuration again (``latest``: no older one). Raises NoSuchStreamError."""
        return await self._schemas.refresh(latest=latest)

    async def close(self) -> None:
        """Stop watching, and close the ledgers that ``append`` uses. Idempotent."""
        self._watch.close()
        await self._committer.sealer.close()
        writers, self._spare_writers = self._spare_writers, []
        if self._append_writer is not None:
            writers.append(self._append_writer)
            self._append_writer = None
        for writer in writers:
            await writer.close()

    # -- appending ---------------------------------------------------------------------------------

    async def append(
        self,
        data: AsyncRows,
        *,
        sink_id: str | None = None,
        transaction_id: int | None = None,
        run_id: str = "",
        merge_schema: bool = False,
        overwrite: bool = False,
    ) -> Commit:
        """Append rows as one commit, visible to readers all at once.

        ``data`` is a ``pyarrow`` Table or RecordBatch, or an iterable of them. A repetition of a
        sink id and transaction id changes nothing (``Commit.applied`` is false); transactions of a
        sink must ascend. ``run_id`` is kept in the commit, and errors name it. ``merge_schema``
        adds columns that the stream lacks (rule T19), ``overwrite`` drops all rows before, both in
        the same commit.

        Raises ConfigurationError for a bad id, SchemaMismatchError, EntryTooLargeError,
        ConflictError if the sink has applied a newer transaction or a hold keeps rows that would be
        dropped, NoSuchStreamError, OutcomeUnknownError if it may have been made, and what the
        client raises.
        """
        columns = columns_of(data) if merge_schema else None
        proposal = new_proposal("append", sink_id, transaction_id, run_id, overwrite, columns)
        applied = await self._applied(proposal)
        if applied is not None:
            return applied
        segments = await self.write(data, merge_schema=merge_schema)
        return await self._commit(proposal, segments)

    async def _applied(self, proposal: Proposal) -> Commit | None:
        """The commit of a pair that was applied before."""
        if not proposal.is_remembered:
            return None
        record = await self.last_transaction(proposal.sink_id)
        if record is None or record.transaction_id != proposal.transaction_id:
            return None
        return replace(await self._log.of_record(record), applied=False)

    async def write(self, data: AsyncRows, *, merge_schema: bool = False) -> list[Segment]:
        """Write the data into no commit; their segments, once all is confirmed (rule T1).

        Data in memory go through one writer: appends push one after another, and wait for
        confirmations together. Data that are still to come get one of their own.
        """
        if isinstance(data, pa.RecordBatch | pa.Table):
            async with self._append_lock:
                if self._append_writer is None:
                    self._append_writer = self.writer()
                pending = await push_all(self._append_writer, data, merge_schema=merge_schema)
            return await pending.confirm()
        writer = self._spare_writers.pop() if self._spare_writers else self.writer()
        try:
            return await (await push_all(writer, data, merge_schema=merge_schema)).confirm()
        finally:
            if len(self._spare_writers) < _SPARE_WRITERS_MAX:
                self._spare_writers.append(writer)
            else:
                await writer.close()

    async def commit_segments(
        self,
        segments: Sequence[Segment],
        *,
        sink_id: str | None = None,
        transaction_id: int | None = None,
        run_id: str = "",
        overwrite: bool = False,
        new_columns: pa.Schema | None = None,
    ) -> Commit:
        """Commit segments that writers finished, here or in other processes, in this order.

        As ``append``, without writing. An empty list makes a commit as well. It adds those of
        ``new_columns`` that the stream lacks, also if no segment has them.
        """
        proposal = new_proposal("commit", sink_id, transaction_id, run_id, overwrite, new_columns)
        return await self._commit(proposal, segments)

    async def _commit(self, proposal: Proposal, segments: Iterable[Segment]) -> Commit:
        _, offered = await self.offered(proposal, segments)
        commit = await self._committer.commit(offered)
        self.committed()
        return commit

    async def offered(
        self, proposal: Proposal, segments: Iterable[Segment]
    ) -> tuple[Committer, Proposal]:
        """The proposal for these segments, whose schemas are known here, and who commits it."""
        proposal = proposal.with_segments(tuple(segments))
        await self._schemas.look_for(proposal.segments)  # they may be new to this process (rule T8)
        return self._committer, proposal

    def committed(self) -> None:
        """A commit was made through this handle."""
        self._watch.invalidate()  # so that a writer sees its own commit at once

    async def last_transaction(self, sink_id: str) -> SinkRecord | None:
        """The newest transaction of a sink with the number of its commit, or None."""
        record = await self._nodes.sink(check_sink_id(sink_id))
        return None if record is None else record.value

    async def last_transactions(self) -> list[SinkRecord]:
        """The newest transaction of every sink. Reads a metadata node for each."""
        return await self._nodes.sinks()

    def writer(
        self,
        *,
        merge_schema: bool = False,
        compression: str | Compression | None = None,
        entry_bytes: int | None = None,
    ) -> SegmentWriter:
        """A writer of segments that keeps its ledger open; commit what it finishes with
        ``commit_segments``. Compression and entry size are the stream's unless given."""
        return SegmentWriter(
            self._ledgers,
            self._schemas,
            merge_schema=merge_schema,
            compression=compression,
            entry_bytes=entry_bytes,
        )

    async def check_schema(self, schema: pa.Schema, *, merge_schema: bool = False) -> None:
        """Raises SchemaMismatchError if data of this schema cannot be appended."""
        await self._schemas.fit(schema, merge=merge_schema)

    async def merge_schema(self, schema: pa.Schema) -> pa.Schema:
        """Add the columns that the stream lacks, nullable, at once; the newest schema then."""
        return await self._schemas.merge(canonical_schema(schema))

    # -- looking up --------------------------------------------------------------------------------

    async def head(self) -> Head:
        """How far the stream reaches."""
        return await self._watch.current()

    async def wait_for_commit(self, *, after_segment: int, timeout_s: float | None) -> Head:
        """The head once its ``next_segment`` is above ``after_segment``, or at the timeout."""
        return await self._watch.wait(after_segment=after_segment, timeout_s=timeout_s)

    async def commit_of(self, record: SinkRecord) -> Commit:
        """The commit of a sink's newest transaction; without segments if it was truncated."""
        return await self._log.of_record(record)

    async def commit(self, number: int) -> Commit:
        """A commit by number. Raises DataLossError if it was truncated, NotFoundError."""
        return await self._log.get(number)

    async def commits(self, first: int, end: int) -> list[Commit]:
        """Commits ``first`` .. ``end - 1`` by number."""
        return await self._log.range(first, end)

    async def commit_at(self, segment: int) -> Commit:
        """The commit that holds a segment. Raises DataLossError if the segment was truncated,
        ConfigurationError if it does not exist yet."""
        head = await self._head_reaching(Dlsn(segment, 0, 1))
        return await self._log.at_segment(head, segment)

    async def commits_between(
        self,
        first_segment: int,
        end_segment: int,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> list[Commit]:
        """The commits that hold segments ``first_segment`` .. ``end_segment - 1``, in order.

        With a limit, only as many as hold that many rows or bytes, counted from the start of the
        first. Commits without rows are left out. Raises as ``commit_at``.
        """
        if first_segment >= end_segment:
            return []
        head = await self._head_reaching(Dlsn(end_segment - 1, 0, 1))
        return await self._log.between(
            head, first_segment, end_segment, max_rows=max_rows, max_bytes=max_bytes
        )

    async def marks(self, first: int, end: int) -> list[CommitMark]:
        """Where every hundredth commit between two, both excluded, begins: to share out a read."""
        return await self._log.marks(first, end)

    async def sealed_commits(self) -> int:
        """How many commits are in manifests; later ones are metadata nodes (rule T11)."""
        return (await self._log.manifests.read_root()).sealed

    async def first_commit_since(self, time_ms: int) -> Commit | None:
        """The first commit made at this time (ms since 1970) or later, or None."""
        return await self._log.first_since(await self._watch.read(latest=True), time_ms)

    async def position_at_timestamp(self, time_ms: int) -> Dlsn:
        """The first row committed at this time or later; the end of the stream without one."""
        return await self._log.position_since(await self._watch.read(latest=True), time_ms)

    async def position_of_row(self, row: int) -> Dlsn:
        """Where a row is, by how many were committed before it: see ``CommitLog``."""
        return await self._log.position_of_row(await self._watch.read(latest=True), row)

    async def position_of(self, sink_id: str, transaction_id: int) -> Dlsn | None:
        """The first row of a sink's transaction; of its next one, if it made none of this number.

        None if it has made neither, the earliest row if its rows were truncated.
        """
        record = await self.last_transaction(sink_id)
        if record is None:
            return None
        head = await self._watch.read(latest=True)
        commit = await self._log.first_of_sink(head, record, transaction_id)
        if commit is None:
            return None if record.transaction_id < transaction_id else head.earliest
        return max(Dlsn(commit.first_segment), head.earliest)

    # -- reading -----------------------------------------------------------------------------------

    def read(
        self,
        start: Position = "earliest",
        end: Position = "latest",
        *,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """The rows from ``start`` (inclusive) to ``end`` (exclusive) as record batches, in order.

        ``schema`` casts them (missing columns are null); ``columns`` picks some of the newest
        schema, ``where`` some of the rows (rule T30).

        Raises DataLossError if the start was truncated, ConfigurationError if a position lies
        behind the end of the stream, and what ``RangeReader.read`` raises.
        """
        return flatten(self.read_chunks(start, end, schema=schema, columns=columns, where=where))

    async def read_chunks(
        self,
        start: Position = "earliest",
        end: Position = "latest",
        *,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> AsyncGenerator[list[pa.RecordBatch], None]:
        """As ``read``, in lists of about four MiB, for callers to whom each item costs time."""
        target = await columns_wanted(self._schemas, schema, columns)
        rows = rows_wanted(self._schemas, where)
        first, last = await self._resolve(start, end)
        ranges = self._ranges(first, last)
        async with aclosing(self._reader.read(ranges, schema=target, where=rows)) as chunks:
            async for chunk in chunks:
                yield [positioned.wanted() for positioned in chunk]

    async def tail(
        self,
        start: Position = "latest",
        *,
        idle_timeout: float | None = None,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """As ``read``, also rows to come. Ends after ``idle_timeout`` s without (None: never)."""
        target = await columns_wanted(self._schemas, schema, columns)
        position, end = await self._resolve(start, "latest")
        while True:
            async with aclosing(
                self._reader.read(self._ranges(position, end), schema=target)
            ) as chunks:
                async for chunk in chunks:
                    for positioned in chunk:
                        yield positioned.batch
            position = max(position, end)
            head = await self.wait_for_commit(
                after_segment=position.segment, timeout_s=idle_timeout
            )
            if head.end <= position:
                return
            self._refuse_truncated(position, head)
            end = head.end

    def read_ranges(
        self,
        ranges: Iterable[SegmentRange],
        *,
        schema: pa.Schema | None = None,
        replica_hint: ReplicaHint = 0,
        where: Where | None = None,
    ) -> AsyncGenerator[PositionedBatch, None]:
        """The rows of ranges that a planner made, each batch with its position.

        Reads no commits. Ranges must be in order; ``schema`` as for ``read``. ``replica_hint``
        chooses the replica that is asked first, so that readers share the load.
        """
        read = self.read_range_chunks
        chunks = read(ranges, schema=schema, replica_hint=replica_hint, where=where)
        return flatten(chunks)

    def read_range_chunks(
        self,
        ranges: Iterable[SegmentRange],
        *,
        schema: pa.Schema | None = None,
        replica_hint: ReplicaHint = 0,
        where: Where | None = None,
    ) -> AsyncGenerator[list[PositionedBatch], None]:
        """As ``read_ranges``, in lists of about four MiB, as each item costs some callers time."""
        target = self.schema if schema is None else schema
        rows = rows_wanted(self._schemas, where)
        return self._reader.read(ranges, schema=target, replica_hint=replica_hint, where=rows)

    def read_commit_chunks(
        self,
        commits: range,
        start: Dlsn,
        end: Dlsn,
        *,
        schema: pa.Schema | None = None,
        replica_hint: ReplicaHint = 0,
        where: Where | None = None,
    ) -> AsyncGenerator[list[PositionedBatch], None]:
        """The rows between two positions that are in these commits, which are looked up as it goes.

        Reads no head: commits that were truncated since are read as long as they are there.
        """
        target = self.schema if schema is None else schema
        ranges = self._ranges_of(commits, start, end)
        rows = rows_wanted(self._schemas, where)
        return self._reader.read(ranges, schema=target, replica_hint=replica_hint, where=rows)

    async def _ranges(self, start: Dlsn, end: Dlsn) -> AsyncIterator[SegmentRange]:
        """The ranges between two positions, from commits that are looked up in growing steps."""
        if start >= end:
            return
        head = await self._head_reaching(end)
        if start.segment >= head.next_segment:
            return
        number = (await self._log.at_segment(head, start.segment)).number
        async for part in self._ranges_of(range(number, head.next_commit), start, end):
            yield part

    async def _ranges_of(
        self, numbers: range, start: Dlsn, end: Dlsn
    ) -> AsyncIterator[SegmentRange]:
        number, step = numbers.start, _COMMITS_PER_STEP_MIN
        while number < numbers.stop:
            commits = await self._log.range(number, min(number + step, numbers.stop))
            for part in ranges_between(commits, start, end):
                yield part
            if Dlsn(commits[-1].end_segment) >= end:
                return
            number, step = number + step, min(2 * step, _COMMITS_PER_STEP_MAX)

    async def _resolve(self, start: Position, end: Position) -> tuple[Dlsn, Dlsn]:
        """Both positions as DLSNs; the start is not truncated, and neither is behind the end."""
        parsed = parse_position(start), parse_position(end)
        named = [position for position in parsed if isinstance(position, Dlsn)]
        head = await self._head_reaching(max(named, default=Dlsn(0)), latest=len(named) < 2)
        words = {"earliest": head.earliest, "latest": head.end}
        first, last = (words[p] if isinstance(p, str) else p for p in parsed)
        if first < last:
            self._refuse_truncated(first, head)
        return first, last

    async def _head_reaching(self, position: Dlsn, *, latest: bool = False) -> Head:
        """A head that reaches a position; ``latest``: with all commits made before this call.

        Positions also come from other processes, whose metadata server may be ahead of ours, so
        ours is asked again for a while before the position counts as wrong.
        """
        head = await (self._watch.read(latest=True) if latest else self.head())
        for _ in range(STALE_READ_RETRIES):
            if head.end >= position:
                return head
            await asyncio.sleep(STALE_READ_DELAY_S)
            head = await self._watch.read()
        raise ConfigurationError(
            f"stream {self.name!r}: position {tuple(position)} lies behind the end of the stream, "
            f"{tuple(head.end)}; the stream may have been deleted and created again"
        )

    def _refuse_truncated(self, position: Dlsn, head: Head) -> None:
        if position < head.earliest:
            raise DataLossError(
                f"stream {self.name!r}: rows from position {tuple(position)} on were asked for, "
                f"but those before {tuple(head.earliest)} were truncated; start at 'earliest' or "
                "there"
            )
