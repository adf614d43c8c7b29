"""LedgerDataSource: the class from which Spark makes readers and writers.

Spark makes it once per query and pickles it into the processes beside its driver (planner, source,
commit), which call the methods below. So it holds the options as given and nothing else. Options
are checked here, before any task starts. It is not sent to the tasks; readers and writers are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from connector.garbage import set_aside
from connector.options import read_options, write_options
from connector.sentences import one_sentence
from spark_ledger.errors import ConfigurationError

if TYPE_CHECKING:
    from connector.read.readers import (
        LedgerBatchReader,
        LedgerStreamReader,
        RefusedStreamReader,
    )
    from connector.write.routed import RoutedBatchWriter, RoutedStreamWriter
    from connector.write.writers import LedgerBatchWriter, LedgerStreamWriter


@one_sentence("schema", "reader", "writer", "streamWriter")
class LedgerDataSource(DataSource):
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
        from connector.read.source import stored_schema

        return stored_schema(read_options(self.options, streaming=None))

    def reader(self, schema: StructType) -> LedgerBatchReader:
        """A batch read."""
        from connector.read.readers import LedgerBatchReader

        return LedgerBatchReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> LedgerStreamReader | RefusedStreamReader:
        """A streaming read. Raises nothing about options: see ``RefusedStreamReader``."""
        from connector.read.readers import LedgerStreamReader, RefusedStreamReader

        try:
            return LedgerStreamReader(read_options(self.options, streaming=True), schema)
        except ConfigurationError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> LedgerBatchWriter | RoutedBatchWriter:
        """A batch write."""
        from connector.write.writers import LedgerBatchWriter

        options = write_options(self.options, streaming=False)
        if options.route_column is not None:
            from connector.write.routed import RoutedBatchWriter

            return RoutedBatchWriter(options, schema, overwrite=overwrite)
        return LedgerBatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> LedgerStreamWriter | RoutedStreamWriter:
        """A streaming write; made twice per micro-batch, for its tasks and for its commit."""
        from connector.write.writers import LedgerStreamWriter

        options = write_options(self.options, streaming=True)
        made: LedgerStreamWriter | RoutedStreamWriter
        if options.route_column is not None:
            from connector.write.routed import RoutedStreamWriter

            made = RoutedStreamWriter(options, schema, overwrite=overwrite)
        else:
            made = LedgerStreamWriter(options, schema, overwrite=overwrite)
        set_aside("prepare")
        return made
