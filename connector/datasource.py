"""LedgerDataSource: the class Spark calls, in many processes, to make readers and writers.

Instances are pickled by Spark again and again, so they hold the options as given and nothing else.
Options are checked here, on the driver, before any task starts.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from connector.options import read_options, write_options


class LedgerDataSource(DataSource):  # type: ignore[misc]
    """Reads and writes streams, and reads raw ledgers. See ``connector.options`` for the options.

    ``spark.read`` and ``spark.readStream`` give the stream's columns; ``df.write.mode("append")``
    and ``df.writeStream`` append to it, exactly once per micro-batch.
    """

    @classmethod
    def name(cls) -> str:
        """The word in ``format("ledger")``."""
        return "ledger"

    def __repr__(self) -> str:
        return f"LedgerDataSource({sorted(self.options)})"  # names only: values may be secret

    def schema(self) -> StructType:
        """The stream's newest schema, or that of raw entries."""
        from connector.read.open_source import declared_schema

        return declared_schema(read_options(self.options, streaming=None))

    def reader(self, schema: StructType) -> Any:
        """A batch read."""
        from connector.read.batch_reader import LedgerBatchReader

        return LedgerBatchReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> Any:
        """A streaming read."""
        from connector.read.stream_reader import LedgerStreamReader

        return LedgerStreamReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """A batch write."""
        from connector.write.batch_writer import LedgerBatchWriter

        options = write_options(self.options, streaming=False)
        return LedgerBatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """A streaming write; made again for every micro-batch, and once more to commit it."""
        from connector.write.stream_writer import LedgerStreamWriter

        options = write_options(self.options, streaming=True)
        return LedgerStreamWriter(options, schema, overwrite=overwrite)
