"""The columns of Spark's Kafka source over a stream: ``includeMetadata=kafka``. Pure.

A stream stands in for a topic of one partition, 0. The offset of a row is how many rows were
committed to the stream before it: dense, the same for ever, and known from the commits alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark

from connector.schema import read_schema, spark_schema_of
from connector.widening import widens
from spark_ledger.errors import SchemaMismatchError
from spark_ledger.stream.format.arrow_types import ArrowArray
from spark_ledger.stream.format.metadata_column import PositionedBatch, numbers

KAFKA_SCHEMA: Final = spark.StructType(
    [
        spark.StructField("key", spark.BinaryType()),
        spark.StructField("value", spark.BinaryType()),
        spark.StructField("topic", spark.StringType()),
        spark.StructField("partition", spark.IntegerType()),
        spark.StructField("offset", spark.LongType()),
        spark.StructField("timestamp", spark.TimestampType()),
        spark.StructField("timestampType", spark.IntegerType()),
    ]
)
"""Names, order and types of Spark's Kafka source."""

_HEADER: Final = spark.StructType(
    [
        spark.StructField("key", spark.StringType()),
        spark.StructField("value", spark.BinaryType()),
    ]
)
HEADERS: Final = spark.StructField("headers", spark.ArrayType(_HEADER))
"""With ``includeHeaders``, behind the others."""

STORED: Final = ("key", "value", "timestamp", "timestampType", "headers")
"""Columns that come from the stream, as far as it has them. The others are about the row."""

CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Kafka's types of timestamps: the time that the writer gave, and the time of the append."""


def kafka_schema(*, headers: bool) -> spark.StructType:
    """The columns of a read."""
    return spark.StructType([*KAFKA_SCHEMA.fields, *([HEADERS] if headers else [])])


def check_kafka(
    declared: spark.StructType, schemas: Mapping[str, pa.Schema], *, headers: bool
) -> None:
    """Refuse a stream without these columns, and a declared schema of others.

    Raises SchemaMismatchError naming the stream and the column.
    """
    offered = kafka_schema(headers=headers)
    for field in declared.fields:
        if field not in offered.fields:
            raise SchemaMismatchError(
                f"with includeMetadata=kafka the columns are {offered.simpleString()}: column "
                f"{field.name!r} cannot be declared; select and cast after load()"
            )
    for name, stored in schemas.items():
        has = {
            field.name.lower(): field
            for field in spark_schema_of(stored, include_metadata=False).fields
        }
        if "value" not in has:
            raise SchemaMismatchError(
                f"stream {name!r} has no column 'value', which includeMetadata=kafka needs; its "
                f"columns are {', '.join(stored.names)}: read it without the option"
            )
        for field in offered.fields:
            stored_type = has[field.name.lower()].dataType if field.name.lower() in has else None
            if field.name not in STORED or stored_type is None:
                continue
            if not widens(stored_type, field.dataType):
                raise SchemaMismatchError(
                    f"stream {name!r}: column {field.name!r} is {stored_type.simpleString()}, and "
                    f"includeMetadata=kafka gives it as {field.dataType.simpleString()}: read the "
                    "stream without the option, and cast it"
                )


def stored_columns(wanted: pa.Schema) -> pa.Schema:
    """What to read from the stream for the columns that are wanted: what the stream lacks is null.

    The time is always there, because its type says whether it is there.
    """
    full = read_schema(kafka_schema(headers=wanted.get_field_index(HEADERS.name) >= 0))
    return pa.schema([field for field in full if field.name in STORED])


def kafka_batch(positioned: PositionedBatch, topic: str, wanted: pa.Schema) -> pa.RecordBatch:
    """A batch of the columns that are wanted, of one of ``stored_columns``."""
    import pyarrow.compute as pc

    stored, rows = positioned.batch, positioned.batch.num_rows
    columns = dict(zip(stored.schema.names, stored.columns, strict=True))
    columns["topic"] = pa.repeat(pa.scalar(topic), rows)
    columns["partition"] = pa.repeat(pa.scalar(0, pa.int32()), rows)
    columns["offset"] = pc.add(numbers(0, rows), pa.scalar(positioned.row, pa.int64()))
    columns["timestamp"], columns["timestampType"] = _times(positioned)
    return pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], schema=wanted)


def _times(positioned: PositionedBatch) -> tuple[ArrowArray, ArrowArray]:
    """The time of each row and its type: the stream's own where it has one, else the commit's."""
    import pyarrow.compute as pc

    own, types = positioned.batch.column("timestamp"), positioned.batch.column("timestampType")
    rows, is_null = len(own), own.is_null()
    commit_us = pa.scalar(positioned.commit_time_ms * 1000, pa.int64()).cast(own.type)
    if own.null_count == rows:
        return pa.repeat(commit_us, rows), pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), rows)
    types = types.fill_null(CREATE_TIME)
    appended = pa.scalar(LOG_APPEND_TIME, pa.int32())
    return own.fill_null(commit_us), pc.if_else(is_null, appended, types)
