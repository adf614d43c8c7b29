"""Reads a partition inside a task: batches in the schema Spark declared, of about 1 to 2 MB."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from connector import sessions
from connector.options import ReadOptions
from connector.read.partitions import LedgerPartition, StreamPartition
from connector.retry import TASK_PATIENCE_S, Patience
from connector.schema import read_schema
from spark_ledger.errors import DataLossError, NoSuchStreamError, RetryableError
from spark_ledger.limits import MIB
from spark_ledger.stream.format.arrow_types import ArrowArray, concat_batches
from spark_ledger.stream.format.metadata_column import LEDGER_COLUMN, PositionedBatch, ledger_array
from spark_ledger.stream.model import SegmentRange
from spark_ledger.types import Dlsn

_LOG: Final = logging.getLogger(__name__)

BATCH_BYTES_TARGET: Final = 1 * MIB
"""Smaller batches are glued up to this: Spark moves batches of 1 to 2 MB fastest."""

BATCH_BYTES_MAX: Final = 4 * MIB
"""Larger ones are cut into slices of the target."""

ENTRIES_PER_BATCH: Final = 4096
"""Raw entries of a few bytes are handed over in batches of this many."""


def read_partition(
    options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. A partition without a plan, as Spark makes for an empty read, has
    none."""
    wanted = read_schema(schema)
    if isinstance(partition, StreamPartition):
        return _sized(_stream_batches(options, wanted, partition))
    if isinstance(partition, LedgerPartition):
        return _sized(_patiently_read(options, _LedgerRead(options, wanted, partition).rest))
    return iter(())


def _patiently_read(
    options: ReadOptions, rest: Callable[[], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """The batches of ``rest``, which is asked again for what is left when it fails for a passing
    reason."""
    patience = Patience(f"{options.subject}: reading", TASK_PATIENCE_S)
    while True:
        try:
            for batch in rest():
                patience.succeeded()
                yield batch
        except RetryableError as error:
            patience.pause_or_raise(error)
        else:
            return


def _stream_batches(
    options: ReadOptions, wanted: pa.Schema, partition: StreamPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a stream's partition; of a stream that was deleted after it was planned, none."""
    try:
        yield from _patiently_read(options, _StreamRead(options, wanted, partition).rest)
    except NoSuchStreamError as error:
        lost = f"{options.subject} was deleted after this read was planned, and its rows are gone"
        if options.fail_on_data_loss:
            raise DataLossError(
                f"{lost}. If it was created again, load it again; a streaming query needs a new "
                "checkpoint location, or failOnDataLoss=false to go on from the earliest row of "
                "the new stream"
            ) from error
        _LOG.warning("%s; going on without them, because failOnDataLoss=false", lost)


class _StreamRead:
    """A stream's partition, and what is left of it."""

    def __init__(self, options: ReadOptions, wanted: pa.Schema, partition: StreamPartition) -> None:
        self._options = options
        self._wanted = wanted
        self._partition = partition
        self._ranges: tuple[SegmentRange, ...] = partition.plan.ranges

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The rows that were not delivered yet."""
        options, wanted = self._options, self._wanted
        assert options.stream is not None, "a stream's partition comes of a read of a stream"
        stream = sessions.stream(options.connection, options.stream, self._partition.stream_id)
        metadata_index = wanted.get_field_index(LEDGER_COLUMN) if options.include_metadata else -1
        stored = wanted if metadata_index < 0 else wanted.remove(metadata_index)
        while self._ranges:
            try:
                for positioned in stream.read_ranges(
                    self._ranges, schema=stored, replica_hint=self._partition.plan.rotation
                ):
                    yield _with_metadata(positioned, wanted, metadata_index)
                    self._ranges = ranges_behind(
                        self._ranges, positioned.position, positioned.batch.num_rows
                    )
            except DataLossError as error:
                earliest = stream.head().earliest
                kept = tuple(p for p in self._ranges if p.segment.number >= earliest.segment)
                if options.fail_on_data_loss or len(kept) == len(self._ranges):
                    raise
                _LOG.warning("%s; going on behind it, because failOnDataLoss=false", error)
                self._ranges = kept
            else:
                return


def ranges_behind(
    ranges: Sequence[SegmentRange], position: Dlsn, rows: int
) -> tuple[SegmentRange, ...]:
    """What is left of ranges once ``rows`` rows of the entry at ``position`` were delivered."""
    rest = list(ranges)
    while rest and rest[0].segment.number < position.segment:
        del rest[0]
    if rest and rest[0].segment.number == position.segment:
        entry, slot = position.entry, position.slot + rows
        if slot >= rest[0].segment.entry_rows[entry]:
            entry, slot = entry + 1, 0
        if (entry, slot) < rest[0].end:
            rest[0] = rest[0]._replace(start=(entry, slot))
        else:
            del rest[0]
    return tuple(rest)


def _with_metadata(
    positioned: PositionedBatch, wanted: pa.Schema, metadata_index: int
) -> pa.RecordBatch:
    if metadata_index < 0:
        return positioned.batch
    columns = list(positioned.batch.columns)
    columns.insert(metadata_index, ledger_array(positioned))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


class _LedgerRead:
    """A raw ledger's partition, and where it goes on."""

    def __init__(self, options: ReadOptions, wanted: pa.Schema, partition: LedgerPartition) -> None:
        self._options = options
        self._wanted = wanted
        self._partition = partition
        self._following = int(partition.first_entry)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The entries that were not delivered yet."""
        ledger_id, last = self._partition.ledger_id, self._partition.last_entry
        if self._following > last:
            return
        reader = sessions.ledger_reader(self._options.connection, ledger_id)
        if last > reader.last_add_confirmed:
            reader.refresh()
        entries = reader.read(
            self._following,
            last,
            unconfirmed=not reader.is_closed,  # the driver knows that they are confirmed
            replica_hint=self._partition.rotation,
        )
        while group := _group(entries):
            columns: dict[str, ArrowArray] = {
                "ledger_id": pa.repeat(pa.scalar(ledger_id, pa.int64()), len(group)),
                "entry_id": pa.array([entry.entry_id for entry in group], pa.int64()),
                "payload": pa.array([entry.payload for entry in group], pa.binary()),
            }
            wanted = self._wanted
            yield pa.RecordBatch.from_arrays([columns[n] for n in wanted.names], schema=wanted)
            self._following = group[-1].entry_id + 1


def _group(entries: Iterator[Any]) -> list[Any]:
    """The next entries, up to a batch's size."""
    group: list[Any] = []
    size_bytes = 0
    for entry in islice(entries, ENTRIES_PER_BATCH):
        group.append(entry)
        size_bytes += len(entry.payload)
        if size_bytes >= BATCH_BYTES_TARGET:
            break
    return group


def _sized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a good size; neither many tiny ones nor a few huge ones."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        size_bytes = batch.nbytes
        if held and held_bytes + size_bytes > BATCH_BYTES_MAX:
            yield _glued(held)
            held, held_bytes = [], 0
        if size_bytes > BATCH_BYTES_MAX:
            step = max(1, batch.num_rows * BATCH_BYTES_TARGET // size_bytes)
            for offset in range(0, batch.num_rows, step):
                yield batch.slice(offset, step)
            continue
        held.append(batch)
        held_bytes += size_bytes
        if held_bytes >= BATCH_BYTES_TARGET:
            yield _glued(held)
            held, held_bytes = [], 0
    if held:
        yield _glued(held)


def _glued(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else concat_batches(batches)
