"""LedgerBatchReader: Spark's batch read, a snapshot between two positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from connector.options import ReadOptions
from connector.read.open_source import check_schema, open_source
from connector.read.reading import read_partition
from connector.retry import START_PATIENCE_S, patiently


class LedgerBatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads what is committed when the read is planned. Spark plans a DataFrame once."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The plan between the starting and the ending position."""
        return patiently(
            self._plan, f"{self._options.subject}: planning a read", patience_s=START_PATIENCE_S
        )

    def _plan(self) -> list[InputPartition]:
        check_schema(self._options, self._schema)
        source = open_source(self._options)
        return list(source.plan(source.initial_offset(), source.final_offset()))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition as Arrow batches; runs in a task."""
        return read_partition(self._options, self._schema, partition)
