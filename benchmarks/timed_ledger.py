"""``format("timed")``: the connector, of which each call of Spark's is written down as a span.

Besides, what such a call waits for: requests to the metadata store, and entries to be confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from benchmarks.spans import span, watched, watched_async
from connector.datasource import LedgerDataSource
from connector.garbage import set_aside
from connector.options import read_options, write_options
from connector.read.offsets import AnyOffset
from connector.read.readers import LedgerStreamReader
from connector.write.task import TaskWritten
from connector.write.writers import LedgerStreamWriter
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore
from spark_ledger.stream.blocking import SegmentWriter

PREPARE, WRITE, COMMIT = "prepare", "write", "commit"
LATEST, PLAN, READ = "latestOffset", "partitions", "read"
CALLS: Final = (LATEST, PLAN, READ, PREPARE, WRITE, COMMIT)
"""What Spark calls, in the order of a micro-batch."""

METADATA_READ, METADATA_WRITE = "metadata reads", "metadata writes"
ROWS, CONFIRM = "rows from Spark", "confirmation"
WAITS: Final = (METADATA_READ, METADATA_WRITE, ROWS, CONFIRM)
"""What a call may wait for."""


class TimedLedger(LedgerDataSource):
    """The source and the sink of streams."""

    @classmethod
    def name(cls) -> str:
        """The word in ``format("timed")``."""
        return "timed"

    def streamReader(self, schema: StructType) -> LedgerStreamReader:
        """A streaming read."""
        return _Reader(read_options(self.options, streaming=True), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LedgerStreamWriter:
        """A streaming write."""
        _watch_waits()
        with span(PREPARE):
            made = _Writer(write_options(self.options, streaming=True), schema, overwrite=overwrite)
            set_aside("prepare")
        return made


class _Writer(LedgerStreamWriter):
    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TaskWritten:
        _watch_waits()
        with span(WRITE):
            return super().write(_waited_for(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with span(COMMIT):
            super().commit(messages, batchId)


class _Reader(LedgerStreamReader):
    def latestOffset(self, start: AnyOffset, limit: ReadLimit) -> AnyOffset:
        _watch_waits()
        with span(LATEST):
            return super().latestOffset(start, limit)

    def partitions(self, start: AnyOffset, end: AnyOffset) -> Sequence[InputPartition]:
        with span(PLAN):
            return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        _watch_waits()
        with span(READ):
            yield from super().read(partition)


def _waited_for(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while True:
        with span(ROWS):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


_WATCHED: Final[list[bool]] = []


def _watch_waits() -> None:
    """Have this process write down what it waits for, from now on."""
    if _WATCHED:
        return
    _WATCHED.append(True)
    for part, names in (
        (METADATA_READ, ("get", "get_latest", "children", "listing")),
        (METADATA_WRITE, ("create", "put", "delete", "transaction")),
    ):
        for name in names:
            setattr(ZooKeeperStore, name, watched_async(part, getattr(ZooKeeperStore, name)))
    setattr(SegmentWriter, "finish", watched(CONFIRM, SegmentWriter.finish))  # noqa: B010
