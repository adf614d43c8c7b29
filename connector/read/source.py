"""What a reader asks of a stream or a raw ledger, and how the options' source is opened.

Everything here runs in the source and planner processes beside Spark's driver, never in a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from connector import sessions
from connector.kafka_columns import check_kafka, kafka_schema
from connector.options import ReadOptions
from connector.read.ledger_source import LedgerSource
from connector.read.offsets import AnyOffset, CheckpointOffset
from connector.read.several_source import SeveralSource
from connector.read.stream_source import StreamSource
from connector.schema import (
    LEDGER_SCHEMA,
    check_declared,
    check_declared_of_several,
    spark_schema_of,
    widest_schema,
)
from spark_ledger.errors import NoSuchStreamError, SchemaMismatchError

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream


def _newest(options: ReadOptions, name: str) -> Stream:
    """The stream with its newest schema: a server that lags does not know the columns that a commit
    of before has added, and a read would leave them out (rule T7)."""
    return sessions.fresh_stream(options.connection, name, latest=True)


def _schemas(options: ReadOptions) -> dict[str, pa.Schema]:
    """The schemas of the streams. Raises NoSuchStreamError if the only one does not exist, or one
    of several that are named and failOnDataLoss is true."""
    several = options.several
    if several is None:
        assert options.stream is not None, "the options name a stream"
        return {options.stream: _newest(options, options.stream).schema}
    connection = sessions.connection(options.connection)
    names = several.names or [n for n in connection.stream_names() if several.takes(n)]
    found = {}
    for name in names:
        try:
            found[name] = _newest(options, name).schema
        except NoSuchStreamError:
            if several.names and options.fail_on_data_loss:
                raise
    return found


class Source(Protocol):
    """Positions and plans of a stream (``StreamSource``) or a raw ledger (``LedgerSource``).

    Never pickled. Used by one thread.
    """

    def initial_offset(self, *, is_kept: bool = True) -> AnyOffset:
        """Where a new query starts. Resolved once: later calls answer the same. ``is_kept``: for a
        checkpoint, so it names what lies before it."""

    def start_moves(self) -> bool:
        """Whether that is where it ended then: asked for again it is another one (rule T31)."""

    def pin_target(self) -> None:
        """Read nothing that arrives from now on (trigger availableNow)."""

    def latest_offset(self, start: CheckpointOffset, *, unlimited: bool) -> AnyOffset:
        """Where the next micro-batch ends; ``start`` itself if there is nothing to do."""

    def newest_offset(self) -> AnyOffset | None:
        """The end of what there is, whatever the limits; shown as lag in the query's progress."""

    def final_offset(self) -> AnyOffset:
        """Where a batch read ends."""

    def plan(self, start: CheckpointOffset, end: CheckpointOffset) -> Sequence[InputPartition]:
        """The partitions between two offsets: the same for the same offsets."""

    def forget(self, end: CheckpointOffset) -> None:
        """Everything before ``end`` has been processed; caches of it may go."""


def open_source(options: ReadOptions, declared: StructType | None = None) -> Source:
    """The source of a read. ``declared`` is its schema, which streams have to fit that join later.

    Raises NoSuchStreamError or NoSuchLedgerError if it does not exist.
    """
    if options.several is not None:
        return SeveralSource(options, declared)
    if options.ledger_id is not None:
        connection = options.connection
        return LedgerSource(
            options,
            sessions.ledger_reader(connection, options.ledger_id),
            bookies=sessions.connection(connection).registered_bookies,
        )
    assert options.stream is not None, "the options name a stream or a ledger"
    return StreamSource(options, sessions.fresh_stream(options.connection, options.stream))


def stored_schema(options: ReadOptions) -> StructType:
    """The Spark schema of what is read, for a read for which the user declared none."""
    if options.ledger_id is not None:
        return LEDGER_SCHEMA
    if options.kafka_columns:
        schema = kafka_schema(headers=options.kafka_headers)
        check_schema(options, schema)
        return schema
    if options.several is not None:
        return widest_schema(
            _schemas(options),
            include_metadata=options.include_metadata,
            subject=options.subject,
        )
    assert options.stream is not None, "the options name a stream or a ledger"
    stream = _newest(options, options.stream)
    return spark_schema_of(stream.schema, include_metadata=options.include_metadata)


def check_schema(options: ReadOptions, declared: StructType) -> None:
    """Refuse a schema that cannot be delivered.

    Raises SchemaMismatchError if ``declared`` has a column that is not stored, or not as such, or
    none at all.
    """
    if not declared.fields:
        raise SchemaMismatchError(
            f"{options.subject}: the declared schema has no column: name one, or declare none"
        )
    if options.ledger_id is not None:
        if any(field not in LEDGER_SCHEMA.fields for field in declared.fields):
            raise SchemaMismatchError(
                f"{options.subject}: a raw ledger has the schema {LEDGER_SCHEMA.simpleString()}; "
                "declare no other, or some of its columns"
            )
        return
    if options.kafka_columns:
        check_kafka(declared, _schemas(options), headers=options.kafka_headers)
        return
    if options.several is not None:
        check_declared_of_several(
            declared,
            _schemas(options),
            include_metadata=options.include_metadata,
            subject=options.subject,
        )
        return
    assert options.stream is not None, "the options name a stream or a ledger"
    stream = _newest(options, options.stream)
    check_declared(
        declared,
        stream.schema,
        include_metadata=options.include_metadata,
        subject=options.subject,
    )
