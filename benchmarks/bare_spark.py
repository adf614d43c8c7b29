"""``format("bare")``: a source of flights from memory and a sink that drops them, in Python.

What they cost is Spark's own: its JVM, its Arrow transfer, its planning. So they are the limit of
any data source that is written in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.flights import FILES_PER_COPY

_BATCH_ROWS: Final = 8_000
"""About 1 MB, as the connector gives them to Spark."""

_KEPT: Final[dict[tuple[str, int], list[pa.RecordBatch]]] = {}
"""The rows of a file, kept by the worker: to read them is no part of what is measured."""

Offset = dict[str, int]


@dataclass(frozen=True)
class BareOptions:
    """``flights`` is a directory, ``files`` how many of it, ``perTrigger`` how many in a
    micro-batch; of each, all rows or the first ``rows``."""

    flights: str
    files: int
    per_trigger: int
    rows: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> BareOptions:
        """The options as Spark has them."""
        numbers = (int(options.get(name, "0")) for name in ("files", "perTrigger", "rows"))
        return cls(options.get("flights", ""), *numbers)


@dataclass
class _File(InputPartition):
    number: int


class BareSource(DataSource):
    """The source, which needs a schema, and the sink."""

    @classmethod
    def name(cls) -> str:
        """The word in ``format("bare")``."""
        return "bare"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        return _Reader(BareOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming read."""
        return _StreamReader(BareOptions.of(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A streaming write."""
        return _Sink()


class _Reader(DataSourceReader):
    def __init__(self, options: BareOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [_File(number) for number in range(self._options.files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._options, self._schema, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: BareOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def initialOffset(self) -> Offset:
        return {"file": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._options.per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        pass  # no files are added

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        options = self._options
        return {"file": min(options.files, start["file"] + options.per_trigger)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [_File(number) for number in range(start["file"], end["file"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._options, self._schema, partition)


class _Sink(DataSourceStreamArrowWriter):
    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


def _rows(
    options: BareOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, _File), "planned above"
    key = (options.flights, partition.number % FILES_PER_COPY)  # the copies are equal
    batches = _KEPT.get(key)
    if batches is None:
        file = sorted(Path(options.flights).glob("*.parquet"))[key[1]]
        table = pq.read_table(file).cast(to_arrow_schema(schema, timezone="UTC"))
        batches = _KEPT[key] = table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)
    if options.rows:
        yield batches[0].slice(0, options.rows)
    else:
        yield from batches
