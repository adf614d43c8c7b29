"""Opens what the options name, on the driver: a source of positions, and its schema."""

from __future__ import annotations

from pyspark.sql.types import StructType

from connector import sessions
from connector.options import ReadOptions
from connector.read.ledger_source import LedgerSource
from connector.read.source import Source
from connector.read.stream_source import StreamSource
from connector.schema import LEDGER_SCHEMA, check_declared, spark_schema_of
from spark_ledger.errors import SchemaMismatchError


def open_source(options: ReadOptions) -> Source:
    """The source of a read. Raises NoSuchStreamError or NoSuchLedgerError."""
    if options.ledger_id is not None:
        return LedgerSource(options, sessions.ledger_reader(options.connection, options.ledger_id))
    assert options.stream is not None, "the options name a stream or a ledger"
    return StreamSource(options, sessions.fresh_stream(options.connection, options.stream))


def declared_schema(options: ReadOptions) -> StructType:
    """The schema of a read for which the user declared none."""
    if options.ledger_id is not None:
        return LEDGER_SCHEMA
    assert options.stream is not None, "the options name a stream or a ledger"
    stream = sessions.fresh_stream(options.connection, options.stream)
    return spark_schema_of(stream.schema, include_metadata=options.include_metadata)


def check_schema(options: ReadOptions, schema: StructType) -> None:
    """Refuse a declared schema that cannot be delivered. Raises SchemaMismatchError."""
    if options.ledger_id is not None:
        if any(field not in LEDGER_SCHEMA.fields for field in schema.fields):
            raise SchemaMismatchError(
                f"{options.subject}: a raw ledger has the schema {LEDGER_SCHEMA.simpleString()}; "
                "declare no other, or some of its columns"
            )
        return
    assert options.stream is not None, "the options name a stream or a ledger"
    stream = sessions.fresh_stream(options.connection, options.stream)
    check_declared(
        schema,
        stream.schema,
        include_metadata=options.include_metadata,
        subject=options.subject,
    )
