"""Which DataFrames a stream takes, by the types that Spark has and Arrow has not."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import (
    DataType,
    DayTimeIntervalType,
    GeometryType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from spark_ledger.errors import SchemaMismatchError
from tests.unit.connector.world import Cluster, batch_write, cluster

__all__ = ["cluster"]


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
