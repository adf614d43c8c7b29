"""Which types a declared schema may name: those that have every value of the stored one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from connector.schema import METADATA_TYPE, check_declared, read_schema, spark_schema_of
from connector.widening import fits, widens
from spark_ledger.errors import SchemaMismatchError
from spark_ledger.stream.format.metadata_column import LEDGER_COLUMN

SAME_OR_WIDER = [
    ("tinyint", "smallint"),
    ("int", "bigint"),
    ("int", "double"),
    ("smallint", "float"),
    ("float", "double"),
    ("tinyint", "decimal(3,0)"),
    ("smallint", "decimal(5,0)"),
    ("int", "decimal(10,0)"),
    ("bigint", "decimal(19,0)"),
    ("bigint", "decimal(21,2)"),
    ("decimal(10,2)", "decimal(12,3)"),
    ("date", "timestamp_ntz"),
    ("string", "binary"),
    ("string", "string collate UNICODE_CI"),
    ("void", "timestamp"),
    ("interval day", "interval day to second"),
    ("interval hour", "interval day to second"),
    ("interval day", "interval hour"),
    ("time(3)", "time(6)"),
    ("array<int>", "array<bigint>"),
    ("map<string,int>", "map<string,bigint>"),
    ("struct<a:int,b:string>", "struct<A:bigint,b:string>"),
    ("timestamp", "timestamp"),
    ("variant", "variant"),
]

NOT_WIDER = [
    ("date", "timestamp"),
    ("timestamp", "timestamp_ntz"),
    ("timestamp_ntz", "timestamp"),
    ("timestamp", "date"),
    ("timestamp", "bigint"),
    ("timestamp", "string"),
    ("int", "boolean"),
    ("boolean", "int"),
    ("int", "string"),
    ("string", "int"),
    ("binary", "string"),
    ("bigint", "int"),
    ("bigint", "double"),
    ("int", "float"),
    ("double", "float"),
    ("double", "decimal(38,18)"),
    ("tinyint", "decimal(2,0)"),
    ("smallint", "decimal(4,0)"),
    ("int", "decimal(9,0)"),
    ("bigint", "decimal(18,0)"),
    ("int", "decimal(11,2)"),
    ("decimal(10,2)", "decimal(12,1)"),
    ("decimal(10,2)", "double"),
    ("bigint", "timestamp"),
    ("interval day", "bigint"),
    ("interval day to second", "interval day"),
    ("interval hour", "interval day"),
    ("time(6)", "time(3)"),
    ("map<int,string>", "map<bigint,string>"),
    ("array<date>", "array<timestamp>"),
    ("struct<a:int,b:string>", "struct<b:string,a:int>"),
    ("struct<a:int>", "struct<a:boolean>"),
    ("struct<a:int,b:int>", "struct<b:int,a:int>"),
    ("struct<a:int,b:int>", "struct<a:int>"),
    ("struct<a:int>", "struct<a:int,b:int>"),
    ("struct<a:int>", "int"),
    ("int", "struct<a:int>"),
    ("int", "array<int>"),
    ("int", "map<int,int>"),
]


def type_of(text: str) -> spark.DataType:
    if text == "string collate UNICODE_CI":
        return spark.StringType("UNICODE_CI")
    nested = {
        "array<int>": spark.ArrayType(spark.IntegerType(), False),
        "array<bigint>": spark.ArrayType(spark.LongType()),
    }
    if text in nested:
        return nested[text]
    return parse(text)


def parse(text: str) -> spark.DataType:
    """The types above, without a session (Spark's own parser needs one)."""
    simple: dict[str, spark.DataType] = {
        "tinyint": spark.ByteType(),
        "smallint": spark.ShortType(),
        "int": spark.IntegerType(),
        "bigint": spark.LongType(),
        "float": spark.FloatType(),
        "double": spark.DoubleType(),
        "boolean": spark.BooleanType(),
        "string": spark.StringType(),
        "binary": spark.BinaryType(),
        "date": spark.DateType(),
        "timestamp": spark.TimestampType(),
        "timestamp_ntz": spark.TimestampNTZType(),
        "void": spark.NullType(),
        "variant": spark.VariantType(),
        "interval day": spark.DayTimeIntervalType(0, 0),
        "interval hour": spark.DayTimeIntervalType(1, 1),
        "interval day to second": spark.DayTimeIntervalType(0, 3),
        "time(6)": spark.TimeType(6),
        "time(3)": spark.TimeType(3),
    }
    if text in simple:
        return simple[text]
    kind, _, inner = text.rstrip(">)").partition("(" if text.startswith("decimal") else "<")
    if kind == "decimal":
        precision, scale = inner.split(",")
        return spark.DecimalType(int(precision), int(scale))
    if kind == "array":
        return spark.ArrayType(parse(inner))
    if kind == "map":
        key, value = inner.split(",")
        return spark.MapType(parse(key), parse(value))
    pairs = [part.split(":") for part in inner.split(",")]
    return spark.StructType([spark.StructField(name, parse(each)) for name, each in pairs])


@pytest.mark.parametrize(("stored", "declared"), SAME_OR_WIDER)
def test_type_is_widened(stored: str, declared: str) -> None:
    assert widens(type_of(stored), type_of(declared))


@pytest.mark.parametrize(("stored", "declared"), NOT_WIDER)
def test_type_that_loses_or_guesses_is_refused(stored: str, declared: str) -> None:
    assert not widens(type_of(stored), type_of(declared))


def inside(data_type: spark.DataType) -> list[spark.DataType]:
    """The type, and types with it in them."""
    field = spark.StructField("x", data_type)
    return [
        data_type,
        spark.ArrayType(data_type),
        spark.MapType(spark.StringType(), data_type),
        spark.MapType(data_type, spark.StringType()),
        spark.StructType([field]),
    ]


PARTS = spark.StructType(
    [
        spark.StructField("value", spark.BinaryType()),
        spark.StructField("metadata", spark.BinaryType()),
    ]
)
HERE, THERE = spark.GeometryType(4326), spark.GeometryType(3857)


class Point(spark.UserDefinedType):
    @classmethod
    def sqlType(cls) -> spark.DataType:
        return spark.ArrayType(spark.DoubleType())

    @classmethod
    def module(cls) -> str:
        return __name__


class Vector(Point):
    pass


@pytest.mark.parametrize(
    ("offered", "column", "both_ways"),
    [
        (spark.StringType("UTF8_LCASE"), spark.StringType(), True),
        (spark.StringType("UNICODE_CI"), spark.StringType("UTF8_LCASE"), True),
        (spark.NullType(), HERE, False),
        (HERE, HERE, True),
        (HERE, spark.GeometryType("ANY"), False),
        (spark.GeographyType(4326), spark.GeographyType("ANY"), False),
        (spark.VariantType(), spark.VariantType(), True),
        (spark.DayTimeIntervalType(0, 0), spark.DayTimeIntervalType(0, 3), False),
        (spark.DayTimeIntervalType(0, 3), spark.DayTimeIntervalType(1, 3), True),
        (spark.TimeType(0), spark.TimeType(6), False),
        (spark.ArrayType(spark.LongType(), False), spark.ArrayType(spark.LongType()), True),
        (Point(), Point.sqlType(), True),
        (Point(), Vector(), True),
    ],
)
def test_column_takes_what_it_has_all_values_of(
    offered: spark.DataType, column: spark.DataType, both_ways: bool
) -> None:
    for given, stored in zip(inside(offered), inside(column), strict=True):
        assert fits(given, stored)
        assert fits(stored, given) is both_ways


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (HERE, THERE),
        (HERE, spark.GeographyType(4326)),
        (spark.GeometryType("ANY"), spark.GeographyType("ANY")),
        (spark.VariantType(), PARTS),
        (spark.LongType(), spark.IntegerType()),
        (spark.StringType(), spark.BinaryType()),
        (PARTS, spark.StructType(PARTS.fields[::-1])),
        (PARTS, spark.StructType(PARTS.fields[:1])),
    ],
)
def test_column_takes_no_other_kind(one: spark.DataType, other: spark.DataType) -> None:
    for a, b in zip(inside(one), inside(other), strict=True):
        assert not fits(a, b) and not fits(b, a)


def test_declared_type_that_is_not_wider_is_named() -> None:
    stored = pa.schema([("day", pa.date32())])
    declared = spark.StructType([spark.StructField("Day", spark.TimestampType())])
    with pytest.raises(SchemaMismatchError, match=r"'Day' is stored as date, .* as timestamp with"):
        check_declared(declared, stored, include_metadata=False, subject="stream 's'")


def test_metadata_column_may_be_declared_as_text() -> None:
    """All of a schema from text is nullable."""
    stored = pa.schema([("a", pa.int64())])
    text = spark.StructType([spark.StructField(f.name, f.dataType) for f in METADATA_TYPE.fields])
    declared = spark.StructType([spark.StructField(LEDGER_COLUMN, text)])
    check_declared(declared, stored, include_metadata=True, subject="stream 's'")
    assert read_schema(declared) != read_schema(spark_schema_of(stored, include_metadata=True))
