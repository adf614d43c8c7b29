"""What Spark notes at a column for itself is of one query; what users note stays."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import metadata_key

from connector.marks import MARKS
from connector.schema import TYPE_KEY, arrow_schema_of, spark_schema_of, widest_schema

NOTES = {"comment": "why", "ml_attr": {"type": "nominal", "vals": ["a", "b"]}}
HOURS = spark.DayTimeIntervalType(1, 1)  # its exact type is kept in metadata too


def noted(metadata: dict[str, object]) -> spark.StructType:
    """Columns with the same metadata, also those of fields inside of types."""
    inner = spark.StructType([spark.StructField("x", HOURS, True, metadata)])
    kinds = {
        "plain": spark.TimestampType(),
        "struct": inner,
        "list": spark.ArrayType(inner),
        "map": spark.MapType(inner, spark.ArrayType(inner)),
    }
    fields = [spark.StructField(name, kind, True, metadata) for name, kind in kinds.items()]
    return spark.StructType(fields)


@pytest.mark.parametrize("mark", sorted(MARKS))
def test_what_spark_notes_for_itself_is_not_stored(mark: str) -> None:
    """Such as the watermark of a query: another one would drop rows by it."""
    stored = arrow_schema_of(noted({mark: 0, **NOTES}))
    assert stored.equals(arrow_schema_of(noted(dict(NOTES))), check_metadata=True)
    assert mark not in str([field.metadata for field in stored])
    assert arrow_schema_of(noted({mark: 0})).field("plain").metadata is None
    assert spark_schema_of(stored, include_metadata=False) == noted(dict(NOTES))


def as_it_was_stored(schema: spark.StructType) -> pa.Schema:
    """Columns as a stream has them that was made when marks were stored."""
    clean = arrow_schema_of(schema)
    return pa.schema(
        [
            kept.with_metadata(
                {
                    metadata_key: json.dumps(field.metadata).encode(),
                    TYPE_KEY: field.dataType.json().encode(),
                }
            )
            for kept, field in zip(clean, schema, strict=True)
        ]
    )


def test_what_spark_noted_in_a_stream_that_exists_is_not_read() -> None:
    stored = as_it_was_stored(noted({"spark.watermarkDelayMs": 0, **NOTES}))
    assert "watermark" in str(stored.field("struct").metadata)
    expected = noted(dict(NOTES))
    assert spark_schema_of(stored, include_metadata=False) == expected
    both = {"a": stored, "b": arrow_schema_of(expected)}
    assert widest_schema(both, include_metadata=False, subject="streams") == expected
