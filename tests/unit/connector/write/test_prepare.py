"""Which DataFrames a stream takes, by the types that Spark has and Arrow has not."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    GeometryType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from connector.schema import TYPE_KEY, arrow_schema_of, spark_schema_of, why_kept_out
from spark_ledger.errors import SchemaMismatchError
from tests.unit.connector.world import Cluster, batch_write, cluster

__all__ = ["cluster"]


@pytest.mark.parametrize("name", ["nowhere.Point", "__main__.Point"])
def test_type_of_a_user_whose_class_is_not_here_is_the_type_that_it_is_a_name_for(
    name: str,
) -> None:
    """The program that writes a plain array need not have it."""
    plain = arrow_schema_of(StructType([StructField("x", ArrayType(LongType()))]))
    exact = {"type": "udt", "class": None, "pyClass": name, "sqlType": "string"}
    stored = pa.schema([plain.field("x").with_metadata({TYPE_KEY: json.dumps(exact).encode()})])
    assert why_kept_out(stored, plain) is None
    assert why_kept_out(plain, stored) is None
    with pytest.raises((ImportError, PySparkException)):
        spark_schema_of(stored, include_metadata=False)


@pytest.mark.parametrize("options", [{}, {"mergeSchema": "true"}])
@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (GeometryType(4326), GeometryType(3857), ("geometry(4326)", "geometry(3857)")),
        (DayTimeIntervalType(0, 0), DayTimeIntervalType(), ("interval day", "interval day to s")),
    ],
)
def test_type_that_is_another_one_in_spark_only_is_refused(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    first: DataType,
    second: DataType,
    names: tuple[str, str],
) -> None:
    """Arrow has one type for both. Whoever reads the stream would not get through these rows."""

    def write(data_type: DataType, collation: str) -> None:
        columns = [StructField("t", StringType(collation)), StructField("x", data_type)]
        batch_write(monkeypatch, schema=StructType(columns), options=options)

    write(first, "UTF8_LCASE")
    write(first, "UNICODE_CI")
    write(NullType(), "UTF8_BINARY")
    said = f"'s': column 'x': the stream has type {names[0]}, the DataFrame has type {names[1]}"
    with pytest.raises(SchemaMismatchError, match=re.escape(said)) as refused:
        write(second, "UTF8_LCASE")
    assert "cast it, or write it to a column of its own" in str(refused.value)
