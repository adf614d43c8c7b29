"""What a reading task does on an executor: fetch the rows of its partition as Arrow batches.

The batches have the schema that Spark declared and about 1 to 2 MB. Reading goes on after a
transient error where it stopped, so no row is delivered twice or left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from connector import sessions
from connector.kafka_columns import kafka_batch, stored_columns
from connector.options import ReadOptions
from connector.read.partitions import LedgerPartition, StreamPartition, StreamSpan
from connector.retry import RetryBudget
from connector.schema import read_schema
from spark_ledger.errors import (
    DataLossError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchStreamError,
    NotFoundError,
    RetryableError,
)
from spark_ledger.limits.connector import (
    RETRY_IN_TASK_S,
    SPARK_BATCH_BYTES_MAX,
    SPARK_BATCH_BYTES_TARGET,
)
from spark_ledger.stream.format.arrow_types import ArrowArray, concat_batches, with_type
from spark_ledger.stream.format.metadata_column import LEDGER_COLUMN, PositionedBatch, ledger_array
from spark_ledger.stream.model import SegmentRange
from spark_ledger.types import Dlsn

logger = logging.getLogger(__name__)

_DESCRIBED_ROWS_MAX: Final = 65_536
"""Rows that get the columns about them at once: some 4 MB, in memory as in what Spark is given."""

_ONLY_COUNTED: Final = pa.schema([pa.field(LEDGER_COLUMN, pa.null())])
"""What is read where no stored column is wanted: one that no stream has, so that it is null in each
row. A batch without a column has no rows."""


def read_partition(
    options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. An empty read has one partition of Spark's own, without rows."""
    wanted = read_schema(schema)
    if isinstance(partition, StreamPartition):
        return _resized(_stream_batches(options, _StreamRead(options, wanted, partition)))
    if isinstance(partition, StreamSpan):
        return _resized(_stream_batches(options, _SpanRead(options, wanted, partition)))
    if isinstance(partition, LedgerPartition):
        return _resized(_read_with_retries(options, _LedgerRead(options, wanted, partition)))
    return iter(())


class _ResumableRead(Protocol):
    """A read that knows what it has delivered."""

    def remaining(self) -> Iterator[pa.RecordBatch]:
        """The batches that were not delivered yet. May be called again after an error."""


def _read_with_retries(options: ReadOptions, read: _ResumableRead) -> Iterator[pa.RecordBatch]:
    """All batches of a read, which is resumed after transient errors."""
    budget = RetryBudget(f"{options.subject}: reading", RETRY_IN_TASK_S)
    while True:
        try:
            for batch in read.remaining():
                budget.reset()
                yield batch
        except RetryableError as error:
            budget.pause_or_raise(error)
        else:
            return


def _stream_batches(options: ReadOptions, read: _ResumableRead) -> Iterator[pa.RecordBatch]:
    """The rows of a stream's partition.

    Raises DataLossError if the stream was deleted after the read was planned; with
    failOnDataLoss=false the rows that are left are skipped.
    """
    try:
        yield from _read_with_retries(options, read)
    except NoSuchStreamError as error:
        lost = f"{options.subject} was deleted after this read was planned, and its rows are gone"
        if options.fail_on_data_loss:
            raise DataLossError(
                f"{lost}. If it was created again, load it again; a streaming query needs a new "
                "checkpoint location, or failOnDataLoss=false to go on from the earliest row of "
                "the new stream"
            ) from error
        logger.warning("%s; going on without them, because failOnDataLoss=false", lost)


class _StreamRead:
    """A stream's partition, and which of its ranges are not delivered yet. Lives in one task."""

    def __init__(self, options: ReadOptions, wanted: pa.Schema, partition: StreamPartition) -> None:
        self._options = options
        self._wanted = wanted
        self._partition = partition
        self._ranges: tuple[SegmentRange, ...] = partition.plan.ranges

    def remaining(self) -> Iterator[pa.RecordBatch]:
        """The rows that were not delivered yet.

        Raises DataLossError for rows that are gone, unless they were truncated and failOnDataLoss
        is false.
        """
        options, wanted, plan = self._options, self._wanted, self._partition.plan
        assert options.stream is not None, "only the read of a stream has such a partition"
        stream = sessions.present_stream(
            options.connection, options.stream, self._partition.stream_id
        )
        stored, metadata_index = _stored_columns(options, wanted)
        while self._ranges:
            try:
                # The entries are in a commit, so they are confirmed: no LAC is asked for (rule T9).
                found = stream.read_ranges(
                    self._ranges,
                    schema=stored,
                    replica_hint=plan.reads.order or plan.replica_hint,
                    where=options.where,
                )
                for positioned in _in_parts(found, is_described=stored is not wanted):
                    yield _with_metadata(positioned, wanted, metadata_index, options)
                    # Behind the yield: a batch counts once its taker comes back for the next one,
                    # so that a retry neither leaves rows out nor gives them twice.
                    self._ranges = ranges_after(
                        self._ranges, positioned.position, positioned.batch.num_rows
                    )
            except DataLossError as error:
                earliest = stream.head().earliest
                kept = tuple(p for p in self._ranges if p.segment.number >= earliest.segment)
                if options.fail_on_data_loss or len(kept) == len(self._ranges):
                    raise
                logger.warning("%s; going on behind it, because failOnDataLoss=false", error)
                self._ranges = kept
            else:
                return


class _SpanRead:
    """A span of a stream, and the next row of it to deliver. Lives in one task."""

    def __init__(self, options: ReadOptions, wanted: pa.Schema, partition: StreamSpan) -> None:
        self._options = options
        self._wanted = wanted
        self._stream_id = partition.stream_id
        self._span = partition.span

    def remaining(self) -> Iterator[pa.RecordBatch]:
        """The rows that were not delivered yet. Raises as ``_StreamRead.remaining``."""
        options, wanted = self._options, self._wanted
        assert options.stream is not None, "only the read of a stream has such a partition"
        stream = sessions.present_stream(options.connection, options.stream, self._stream_id)
        stored, metadata_index = _stored_columns(options, wanted)
        while self._span.commits:
            commits, start, end, replica_hint, reads = self._span
            try:
                found = stream.read_commits(
                    commits,
                    start,
                    end,
                    schema=stored,
                    replica_hint=reads.order or replica_hint,
                    where=options.where,
                )
                for positioned in _in_parts(found, is_described=stored is not wanted):
                    yield _with_metadata(positioned, wanted, metadata_index, options)
                    segment, entry, slot = positioned.position
                    self._span = self._span._replace(
                        commits=range(positioned.commit, commits.stop),
                        start=Dlsn(segment, entry, slot + positioned.batch.num_rows),
                    )
            except NoSuchStreamError:
                raise
            except (DataLossError, NotFoundError) as error:  # NotFoundError: a lost segment list
                head = stream.head()
                if options.fail_on_data_loss or head.earliest <= self._span.start:
                    raise
                logger.warning("%s; going on behind it, because failOnDataLoss=false", error)
                first = max(head.earliest_commit, commits.start)
                self._span = self._span._replace(
                    commits=range(first, commits.stop), start=head.earliest
                )
            else:
                return


def ranges_after(
    ranges: Sequence[SegmentRange], position: Dlsn, rows: int
) -> tuple[SegmentRange, ...]:
    """The rest of ranges after ``rows`` rows of one entry, from ``position`` on, were delivered."""
    left = list(ranges)
    while left and left[0].segment.number < position.segment:
        del left[0]
    if left and left[0].segment.number == position.segment:
        entry, slot = position.entry, position.slot + rows
        if slot >= left[0].segment.entry_rows[entry]:
            entry, slot = entry + 1, 0
        if (entry, slot) < left[0].end:
            left[0] = left[0]._replace(start=(entry, slot))
        else:
            del left[0]
    return tuple(left)


def _stored_columns(options: ReadOptions, wanted: pa.Schema) -> tuple[pa.Schema, int]:
    """The columns to read from the stream, and where ``_ledger`` stands among those that are
    wanted; -1 if it is not wanted."""
    if options.kafka_columns:
        return stored_columns(wanted), -1
    metadata_index = wanted.get_field_index(LEDGER_COLUMN) if options.include_metadata else -1
    if metadata_index < 0:
        return wanted, -1
    return (wanted.remove(metadata_index) if len(wanted) > 1 else _ONLY_COUNTED), metadata_index


def _in_parts(
    batches: Iterable[PositionedBatch], *, is_described: bool
) -> Iterator[PositionedBatch]:
    """The same rows, not too many at once if they get columns about them: these take sixty bytes,
    and an entry of a mebibyte has eight million rows of one bit."""
    for positioned in batches:
        if is_described:
            yield from positioned.in_parts(_DESCRIBED_ROWS_MAX)
        else:
            yield positioned


def _with_metadata(
    positioned: PositionedBatch, wanted: pa.Schema, metadata_index: int, options: ReadOptions
) -> pa.RecordBatch:
    """The rows that are wanted, with the columns that say where they are."""
    return positioned.wanted(_all_with_metadata(positioned, wanted, metadata_index, options))


def _all_with_metadata(
    positioned: PositionedBatch, wanted: pa.Schema, metadata_index: int, options: ReadOptions
) -> pa.RecordBatch:
    batch = positioned.batch
    if options.kafka_columns:
        assert options.stream is not None, "only the read of a stream has such columns"
        return kafka_batch(positioned, options.stream, wanted)
    if metadata_index < 0:
        return batch
    columns = list(batch.columns[: len(wanted) - 1])  # none of ``_ONLY_COUNTED``
    type_ = wanted.field(metadata_index).type
    of_several = None if options.several is None else options.stream
    columns.insert(metadata_index, with_type(ledger_array(positioned, of_several), type_))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


class _LedgerRead:
    """A raw ledger's partition, and the next entry to deliver. Lives in one task."""

    def __init__(self, options: ReadOptions, wanted: pa.Schema, partition: LedgerPartition) -> None:
        self._options = options
        self._wanted = wanted
        self._partition = partition
        self._next_entry = int(partition.first_entry)

    def remaining(self) -> Iterator[pa.RecordBatch]:
        """The entries that were not delivered yet."""
        ledger_id, last = self._partition.ledger_id, self._partition.last_entry
        if self._next_entry > last:
            return
        reader = sessions.ledger_reader(self._options.connection, ledger_id)
        if last > reader.last_add_confirmed:
            try:
                reader.refresh()
            except MetadataUnavailableError:  # the driver goes on with whom it knows
                reader.refresh_confirmed()
                if last > reader.last_add_confirmed:
                    raise
        batches = reader.read_batches(
            self._next_entry,
            last,
            # The driver's plan has only confirmed entries. This reader may know an older LAC.
            unconfirmed=not reader.is_closed,
            replica_hint=self._partition.reads.order or self._partition.replica_hint,
        )
        try:
            for batch in batches:
                columns: dict[str, ArrowArray] = {
                    "ledger_id": pa.repeat(pa.scalar(ledger_id, pa.int64()), len(batch)),
                    "entry_id": pa.array(batch.entry_ids, pa.int64()),
                    "payload": batch.payloads(),
                }
                wanted = self._wanted
                yield pa.RecordBatch.from_arrays([columns[n] for n in wanted.names], schema=wanted)
                self._next_entry = batch.last_entry + 1
        except NoSuchEntryError:
            known = reader.metadata
            reader.refresh()  # others may have it, and only the metadata name them
            if reader.metadata == known:
                raise
            yield from self.remaining()


def _resized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a size that Spark moves fast: joined if small, cut if large."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        size_bytes = batch.nbytes
        if batch.num_rows == 0:
            continue  # a filter left none of its rows
        if held and held_bytes + size_bytes > SPARK_BATCH_BYTES_MAX:
            yield _joined(held)
            held, held_bytes = [], 0
        if size_bytes > SPARK_BATCH_BYTES_MAX:
            step = max(1, batch.num_rows * SPARK_BATCH_BYTES_TARGET // size_bytes)
            for offset in range(0, batch.num_rows, step):
                yield batch.slice(offset, step)
            continue
        held.append(batch)
        held_bytes += size_bytes
        if held_bytes >= SPARK_BATCH_BYTES_TARGET:
            yield _joined(held)
            held, held_bytes = [], 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else concat_batches(batches)
