"""Schemas: Spark's types to stored Arrow types and back, and what a declared schema may ask for."""

from __future__ import annotations

from contextlib import nullcontext

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from connector.schema import (
    METADATA_TYPE,
    arrow_schema_of,
    check_declared,
    check_declared_of_several,
    read_schema,
    spark_schema_of,
    why_refused,
    widest_schema,
)
from spark_ledger.errors import SchemaMismatchError
from spark_ledger.stream.format.metadata_column import ledger_type


def field(name: str, data_type: spark.DataType, nullable: bool = True) -> spark.StructField:
    return spark.StructField(name, data_type, nullable)


EVERY_TYPE = spark.StructType(
    [
        field("interval", spark.DayTimeIntervalType(1, 3)),
        field("collated", spark.StringType("UTF8_LCASE")),
        field("variant", spark.VariantType()),
        field("map", spark.MapType(spark.StringType(), spark.ArrayType(spark.IntegerType(), True))),
        field("nothing", spark.NullType()),
        field("instant", spark.TimestampType()),
        field("local", spark.TimestampNTZType()),
        field("time", spark.TimeType(6)),
        field("decimal", spark.DecimalType(38, 10)),
        spark.StructField("noted", spark.LongType(), True, {"comment": "why"}),
        field("struct", spark.StructType([field("x", spark.DayTimeIntervalType(1, 1))])),
    ]
)


def test_spark_types_survive_the_arrow_schema() -> None:
    stored = arrow_schema_of(EVERY_TYPE)
    assert spark_schema_of(stored, include_metadata=False) == EVERY_TYPE
    assert read_schema(EVERY_TYPE).equals(stored)


def test_schema_that_was_converted_before_is_known_and_one_that_grew_is_not() -> None:
    given = spark.StructType([field("a", spark.LongType())])
    stored = arrow_schema_of(given)
    assert arrow_schema_of(spark.StructType([field("a", spark.LongType())])) is stored
    given.add(field("b", spark.StringType("UTF8_LCASE")))
    assert arrow_schema_of(given).names == ["a", "b"]
    plain = spark.StructType([given.fields[0], field("b", spark.StringType())])
    assert not arrow_schema_of(plain).equals(arrow_schema_of(given), check_metadata=True)
    for other in ("B", "c"):
        renamed = spark.StructType([given.fields[0], field(other, spark.StringType())])
        assert arrow_schema_of(renamed).names == ["a", other]
    noted = spark.StructType([spark.StructField("a", spark.LongType(), True, {"comment": "why"})])
    assert arrow_schema_of(noted).field("a").metadata, "the comment is this one's"
    for n in range(20):
        arrow_schema_of(spark.StructType([field(f"x{n}", spark.LongType())]))
    assert arrow_schema_of(spark.StructType([field("a", spark.LongType())])).equals(stored)


def test_stored_schema_is_nullable_throughout() -> None:
    inner = spark.StructType([field("x", spark.DayTimeIntervalType(1, 1), False)])
    items = spark.ArrayType(spark.MapType(spark.StringType(), inner, False), False)
    nothing = spark.ArrayType(spark.NullType(), False)  # as array() has it
    given = spark.StructType([field("items", items, False), field("nothing", nothing, False)])
    back = spark_schema_of(arrow_schema_of(given), include_metadata=False)
    assert "false" not in back.json().lower()
    assert back.simpleString() == given.simpleString()


def test_spark_type_in_metadata_that_no_longer_fits_is_ignored() -> None:
    stored = pa.schema([pa.field("a", pa.int64(), metadata={b"spark.type": b'"string"'})])
    assert spark_schema_of(stored, include_metadata=False)["a"].dataType == spark.LongType()


def test_type_without_arrow_counterpart_names_the_column() -> None:
    schema = spark.StructType([field("months", spark.YearMonthIntervalType())])
    with pytest.raises(SchemaMismatchError, match=r"'months' has the type interval year to month"):
        arrow_schema_of(schema)


def test_char_and_varchar_are_written_as_text_and_not_declared() -> None:
    def made(text: spark.DataType) -> spark.StructType:
        inner = spark.StructType([field("x", text)])
        items = spark.MapType(text, spark.ArrayType(inner))
        return spark.StructType([field("name", text), field("items", items)])

    plain = made(spark.StringType())
    for kind in (spark.CharType(5), spark.VarcharType(5)):
        stored = arrow_schema_of(made(kind))
        assert stored.equals(arrow_schema_of(plain), check_metadata=True)
        assert why_refused(plain, made(kind), merge=False) is None
        for type_ in made(kind):  # Spark's Python side fails behind the plan
            declared = spark.StructType([type_])
            with pytest.raises(SchemaMismatchError, match="declare it as string, and use rpad"):
                check_declared(declared, stored, include_metadata=False, subject="stream 's'")


def test_map_with_void_keys_names_the_column() -> None:
    schema = spark.StructType([field("tags", spark.MapType(spark.NullType(), spark.NullType()))])
    with pytest.raises(SchemaMismatchError, match=r"'tags' has the type map<void,void>.*cast it"):
        arrow_schema_of(schema)


def test_metadata_column_has_its_type() -> None:
    schema = spark_schema_of(pa.schema([("a", pa.int64())]), include_metadata=True)
    assert schema.names == ["a", "_ledger"] and schema["_ledger"].dataType == METADATA_TYPE
    assert read_schema(schema).field("_ledger").type.equals(ledger_type())


def test_declared_schema_that_cannot_be_delivered_is_refused() -> None:
    columns: dict[str, pa.DataType] = {"a": pa.int32(), "b": pa.string()}
    stored = pa.schema(columns)

    def check(*fields: spark.StructField, include_metadata: bool = False) -> None:
        check_declared(
            spark.StructType(list(fields)),
            stored,
            include_metadata=include_metadata,
            subject="stream 's'",
        )

    check(field("b", spark.StringType()))
    check(field("b", spark.StringType()), field("a", spark.LongType()))
    check(field("_ledger", METADATA_TYPE, False), include_metadata=True)
    with pytest.raises(SchemaMismatchError, match=r"no column 'c'.* its columns are a, b"):
        check(field("c", spark.LongType()))
    with pytest.raises(SchemaMismatchError, match="column 'a' is stored as int, "):
        check(field("a", spark.MapType(spark.StringType(), spark.StringType())))
    with pytest.raises(SchemaMismatchError, match="'_ledger' must be"):
        check(field("_ledger", spark.LongType()), include_metadata=True)


OF_SEVERAL = spark.StructType([field("stream", spark.StringType()), *METADATA_TYPE.fields])


@pytest.mark.parametrize(
    ("declared", "include_metadata", "told"),
    [
        ((field("_ledger", OF_SEVERAL), field("B", spark.LongType())), True, ""),
        ((field("_ledger", METADATA_TYPE),), True, "stream 'x': the declared type of '_ledger'"),
        ((field("_ledger", OF_SEVERAL),), False, "none of the streams has a column '_ledger'"),
        ((field("c", spark.LongType()),), True, "none of the streams has a column 'c'"),
        ((field("a", spark.IntegerType()),), True, "stream 'y': column 'a' is stored as bigint"),
    ],
)
def test_schema_declared_for_several_streams_is_checked_against_each_and_all(
    declared: tuple[spark.StructField, ...], include_metadata: bool, told: str
) -> None:
    """A column that one has is null in the rows of the others; one that none has is a mistake."""
    check_declared_of_several(
        spark.StructType([]), {}, include_metadata=include_metadata, subject="streams"
    )
    schemas = {
        "x": pa.schema([("a", pa.int32())]),
        "y": pa.schema([("a", pa.int64()), ("b", pa.int64())]),
    }
    with pytest.raises(SchemaMismatchError, match=told) if told else nullcontext():
        check_declared_of_several(
            spark.StructType(list(declared)),
            schemas,
            include_metadata=include_metadata,
            subject="streams",
        )


def test_column_that_a_merge_would_add_is_at_no_fault() -> None:
    stored = spark.StructType([field("a", spark.LongType())])
    wider = spark.StructType([*stored.fields, field("b", spark.LongType())])
    assert why_refused(stored, wider, merge=True) is None
    renamed = spark.StructType([field("A", spark.LongType())])
    inner = [spark.StructType([field("x", each)]) for each in (stored, renamed)]
    assert why_refused(*inner, merge=False) is None, "names match in any case"
    assert "'b' of type bigint is not in" in (why_refused(stored, wider, merge=False) or "")


@pytest.mark.parametrize("first_is_null", [True, False])
def test_column_that_may_be_null_in_one_of_several_streams_is_nullable(first_is_null: bool) -> None:
    schemas = {
        "x": pa.schema(
            [pa.field("A", pa.int32(), first_is_null), pa.field("b", pa.int32(), False)]
        ),
        "y": pa.schema([pa.field("a", pa.int64(), not first_is_null)]),
        "z": pa.schema([pa.field("a", pa.int32(), False), pa.field("B", pa.int32(), False)]),
    }
    both = {name: schemas[name] for name in "xz"}
    (a, b) = widest_schema(schemas, include_metadata=False, subject="streams").fields
    assert (a.nullable, b.nullable) == (True, True)
    (a, b) = widest_schema(both, include_metadata=False, subject="streams").fields
    assert (a.nullable, b.nullable) == (first_is_null, False), "in another case it is the same"


@pytest.mark.parametrize("names", ["xy", "yx"])
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_part_of_a_column_that_may_be_null_in_one_of_several_streams_may_be_null(
    names: str, kind: pa.DataType
) -> None:
    """Whatever the order of their names, and whichever has the wider type."""
    strict = pa.list_(pa.field("element", kind, nullable=False))
    lenient = pa.list_(pa.field("element", pa.int32()))
    types: dict[str, pa.DataType] = dict(zip(names, (strict, lenient), strict=True))
    schemas = {name: pa.schema({"a": types[name]}) for name in "xy"}
    (a,) = widest_schema(schemas, include_metadata=False, subject="streams").fields
    wider = spark.IntegerType() if kind == pa.int32() else spark.LongType()
    assert a.dataType == spark.ArrayType(wider, True)
    alike = {"x": schemas["x"], "z": schemas["x"]}
    same = widest_schema(alike, include_metadata=False, subject="streams")
    assert same == spark_schema_of(schemas["x"], include_metadata=False), "as all have it"


def test_streams_that_cannot_be_read_together_are_those_whose_types_are_named() -> None:
    types: dict[str, pa.DataType] = {"x": pa.int32(), "y": pa.int64(), "z": pa.string()}
    schemas = {name: pa.schema({"a": type_}) for name, type_ in types.items()}
    with pytest.raises(SchemaMismatchError, match=r"'y' and 'z' .*'a' is bigint in .* string"):
        widest_schema(schemas, include_metadata=False, subject="streams")


@pytest.mark.parametrize(
    ("offered", "merge", "told"),
    [
        ({"a": spark.NullType(), "b": spark.LongType()}, False, "'b': the stream has type string"),
        (
            {"a": spark.LongType()},
            True,
            "'b' of type string is missing in the DataFrame, and must not",
        ),
    ],
)
def test_column_that_is_at_fault_is_named(
    offered: dict[str, spark.DataType], merge: bool, told: str
) -> None:
    columns = [field("a", spark.LongType()), field("b", spark.StringType(), False)]
    stored = spark.StructType(columns)
    given = spark.StructType([field(name, kind) for name, kind in offered.items()])
    assert told in (why_refused(stored, given, merge=merge) or "")
