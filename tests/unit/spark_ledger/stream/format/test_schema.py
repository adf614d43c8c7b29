"""Stored types, compatibility, merging, and casts that never change a value silently."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError, SchemaMismatchError
from spark_ledger.stream.format.arrow_types import ArrowField, map_type
from spark_ledger.stream.format.schema import (
    Projection,
    canonical_schema,
    canonical_type,
    merge_schema,
    mismatch,
)

UTC_US = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.binary(4), pa.binary()),
        (pa.uuid(), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.timestamp("ns", tz="Europe/Berlin"), UTC_US),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.date64(), pa.date32()),
        (pa.time32("s"), pa.time64("ns")),
        (pa.duration("ns"), pa.duration("us")),
        (pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.decimal256(30, 3), pa.decimal128(30, 3)),
        (pa.decimal64(10, 3), pa.decimal128(10, 3)),
        (pa.null(), pa.null()),
        (
            pa.large_list(pa.large_string()),
            pa.list_(pa.field("element", pa.string())),
        ),
        (pa.list_(pa.int8(), 2), pa.list_(pa.field("element", pa.int8()))),
        (pa.map_(pa.large_string(), pa.date64()), pa.map_(pa.string(), pa.date32())),
        (
            pa.struct([pa.field("x", pa.list_(pa.uint8()), nullable=False)]),
            pa.struct([pa.field("x", pa.list_(pa.field("element", pa.int16())), nullable=False)]),
        ),
        (pa.struct([]), pa.struct([])),
    ],
)
def test_types_are_stored_as_spark_has_them(given: pa.DataType, stored: pa.DataType) -> None:
    assert canonical_type(given, "f") == stored
    assert canonical_type(stored, "f") == stored


@pytest.mark.parametrize(
    "type_",
    [
        pa.decimal256(60, 3),
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.list_view(pa.int8()),
        pa.large_list_view(pa.int8()),
    ],
)
def test_types_spark_lacks_are_refused_with_the_path_of_the_field(type_: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match=r"field a\.element\.b"):
        canonical_schema(pa.schema([("a", pa.list_(pa.struct([("b", type_)])))]))


@pytest.mark.parametrize(
    ("wrap", "where"),
    [
        (lambda inner: inner, "field s: "),
        (lambda inner: pa.list_(inner), "field s.element: "),
        (lambda inner: pa.map_(pa.string(), inner), "field s.value: "),
        (lambda inner: pa.struct([("deep", inner)]), "field s.deep: "),
    ],
)
def test_names_that_differ_in_case_only_are_refused(
    wrap: Callable[[pa.DataType], pa.DataType], where: str
) -> None:
    wrong = "'Ab' and 'aB' differ in case only.*rename one"
    fields: list[tuple[str, pa.DataType]] = [
        ("Ab", pa.int64()),
        ("x", pa.int64()),
        ("aB", pa.string()),
    ]
    with pytest.raises(SchemaMismatchError, match=f"^schema: the names {wrong}"):
        canonical_schema(pa.schema(fields))
    with pytest.raises(SchemaMismatchError, match=f"^{where}the names {wrong}"):
        canonical_schema(pa.schema([("s", wrap(pa.struct(fields)))]))


def test_schemas_without_columns_or_with_a_name_twice_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one column"):
        canonical_schema(pa.schema([]))
    with pytest.raises(ConfigurationError, match="'a' occurs twice"):
        canonical_schema(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    with pytest.raises(ConfigurationError, match="occurs twice"):
        canonical_schema(pa.schema([("s", pa.struct([("a", pa.int8()), ("a", pa.int8())]))]))
    with pytest.raises(ConfigurationError, match=r"pyarrow\.Schema"):
        canonical_schema("a int")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["_ledger", "_Ledger"])
def test_the_name_of_the_metadata_column_is_taken(name: str) -> None:
    with pytest.raises(SchemaMismatchError, match=f"'{name}'.*includeMetadata"):
        canonical_schema(pa.schema([("id", pa.int64()), (name, pa.int64())]))
    canonical_schema(pa.schema([("nested", pa.struct([(name, pa.int64())]))]))


def test_schema_metadata_goes_and_field_metadata_stays() -> None:
    field = pa.field("v", pa.struct([pa.field("m", pa.binary(), metadata={"variant": "true"})]))
    stored = canonical_schema(pa.schema([field], metadata={"pandas": "x"}))
    assert stored.metadata is None
    assert stored.field("v").type.field(0).metadata == {b"variant": b"true"}


STORED_FIELDS: list[ArrowField] = [
    pa.field("a", pa.int64(), nullable=False),
    pa.field("b", pa.string()),
    pa.field("c", pa.list_(pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())]))),
    pa.field("m", pa.map_(pa.string(), pa.int32())),
]
STORED = canonical_schema(pa.schema(STORED_FIELDS))


def replaced(name: str, type_: pa.DataType) -> pa.Schema:
    return canonical_schema(STORED.set(STORED.get_field_index(name), pa.field(name, type_)))


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        (replaced("a", pa.int32()), ["'a'", "int64", "int32"]),
        (replaced("b", pa.binary()), ["'b'", "string", "binary"]),
        (
            replaced("c", pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())]))),
            ["'c.element.x'", "int32", "int64"],
        ),
        (replaced("c", pa.list_(pa.struct([("x", pa.int32())]))), ["'c.element'"]),
        (replaced("m", pa.map_(pa.string(), pa.int64())), ["'m.value'", "int32", "int64"]),
        (replaced("m", pa.map_(pa.int64(), pa.int32())), ["'m.key'"]),
        (STORED.remove(1), ["'b'", "missing"]),
        (STORED.append(pa.field("z", pa.int8())), ["'z'", "int8", "mergeSchema"]),
    ],
)
def test_a_mismatch_names_the_field_and_both_types(offered: pa.Schema, words: list[str]) -> None:
    reason = mismatch(STORED, offered)
    assert reason is not None
    for word in words:
        assert word in reason


def test_order_nullability_and_null_columns_do_not_matter() -> None:
    reordered = pa.schema([field.with_nullable(True) for field in reversed(list(STORED))])
    assert mismatch(STORED, reordered) is None
    assert mismatch(STORED, replaced("b", pa.null())) is None


def test_merge_appends_new_columns_as_nullable() -> None:
    offered = pa.schema(
        [pa.field("z", pa.int8(), nullable=False), STORED.field("b"), pa.field("n", pa.null())]
    )
    merged = merge_schema(STORED, offered)
    assert merged.names == ["a", "b", "c", "m", "z"]
    assert merged.field("z").nullable
    assert merge_schema(merged, offered) is merged
    with pytest.raises(SchemaMismatchError, match="'a'"):
        merge_schema(STORED, pa.schema([("a", pa.string())]))


def test_columns_whose_names_differ_in_case_are_the_same_columns() -> None:
    inner = pa.struct([pa.field("b", pa.int64(), nullable=False), ("Text", pa.string())])
    stored = pa.schema([("id", pa.int64()), ("pair", inner)])
    other = pa.struct([("B", pa.int64()), ("text", pa.large_string())])
    source = pa.schema([("Pair", pa.list_(other)), ("ID", pa.int64())])
    stored = pa.schema([("id", pa.int64()), ("pair", pa.list_(pa.field("element", inner)))])
    offered = canonical_schema(source)
    assert mismatch(stored, offered) is None
    assert merge_schema(stored, offered) is stored
    rows = [{"ID": 1, "Pair": [{"B": 2, "text": "x"}]}]
    fitted = Projection(source, stored).apply(pa.RecordBatch.from_pylist(rows, schema=source))
    assert fitted.schema.equals(stored)
    assert fitted.to_pylist() == [{"id": 1, "pair": [{"b": 2, "Text": "x"}]}]
    bad = pa.RecordBatch.from_pylist([{"ID": 1, "Pair": [{"text": "x"}]}], schema=source)
    with pytest.raises(SchemaMismatchError, match=r"'pair.element.b' must not be null"):
        Projection(source, stored).apply(bad)


def test_projection_casts_to_stored_types() -> None:
    moment = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    batch = pa.record_batch(
        {
            "t": pa.array([moment], pa.timestamp("ns", tz="Europe/Berlin")),
            "s": pa.array(["x"]).dictionary_encode(),
            "u": pa.array([b"a" * 16], pa.uuid()),
            "d": pa.array([decimal.Decimal("1.5")], pa.decimal256(20, 1)),
            "n": pa.array([[[1, 2]]], pa.large_list(pa.list_(pa.uint8(), 2))),
        }
    )
    stored = canonical_schema(batch.schema)
    result = Projection(batch.schema, stored).apply(batch)
    assert result.schema.equals(stored)
    assert result.to_pylist() == [
        {"t": moment, "s": "x", "u": b"a" * 16, "d": decimal.Decimal("1.5"), "n": [[1, 2]]}
    ]


def test_an_identical_batch_is_not_touched() -> None:
    batch = pa.record_batch({"a": [1]})
    assert Projection(batch.schema, batch.schema).apply(batch) is batch


def test_values_that_would_be_lost_are_refused_by_field() -> None:
    batch = pa.record_batch({"t": pa.array([1001], pa.timestamp("ns"))})
    with pytest.raises(SchemaMismatchError, match="'t'"):
        Projection(batch.schema, pa.schema([("t", pa.timestamp("us"))])).apply(batch)


def required(name: str, type_: pa.DataType) -> ArrowField:
    return pa.field(name, type_, nullable=False)


@pytest.mark.parametrize(
    ("field", "bad", "good", "path"),
    [
        (required("a", pa.int32()), [None], [1], "'a'"),
        (
            pa.field("s", pa.struct([required("x", pa.int32())])),
            [{"x": None}],
            [{"x": 1}, None],
            r"'s\.x'",
        ),
        (
            pa.field("l", pa.list_(required("element", pa.int32()))),
            [[1, None]],
            [[1], None, []],
            r"'l\.element'",
        ),
        (
            pa.field(
                "m",
                map_type(
                    pa.field("key", pa.string(), nullable=False), required("value", pa.int32())
                ),
            ),
            [[("k", None)]],
            [[("k", 1)], None],
            r"'m\.value'",
        ),
        (
            pa.field("d", pa.list_(pa.field("element", pa.struct([required("x", pa.int32())])))),
            [[{"x": 1}, {"x": None}]],
            [[{"x": 1}, None], None],
            r"'d\.element\.x'",
        ),
    ],
)
def test_nulls_are_found_where_the_stream_forbids_them(
    field: ArrowField, bad: list[object], good: list[object], path: str
) -> None:
    stored = pa.schema([field])
    loose = pa.schema([loosened(field)])
    projection = Projection(loose, stored)
    assert projection.apply(batch_of(loose, good)).to_pydict()[field.name] == good
    with pytest.raises(SchemaMismatchError, match=path):
        projection.apply(batch_of(loose, bad))
    # a slice that does not hold the null is fine
    rows = batch_of(loose, [*bad, *good]).slice(len(bad))
    assert projection.apply(rows).num_rows == len(good)


def batch_of(schema: pa.Schema, values: list[object]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, schema.field(0).type)], schema=schema)


def loosened(field: ArrowField) -> ArrowField:
    """The field with everything nullable."""
    type_ = field.type
    if pa.types.is_struct(type_):
        type_ = pa.struct([loosened(type_.field(i)) for i in range(type_.num_fields)])
    elif pa.types.is_list(type_):
        type_ = pa.list_(loosened(type_.value_field))
    elif pa.types.is_map(type_):
        type_ = pa.map_(type_.key_type, loosened(type_.item_field))
    return pa.field(field.name, type_)


def test_missing_columns_are_null_and_extra_ones_left_out() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": ["x", "y"]})
    target = pa.schema([("z", pa.list_(pa.int8())), ("a", pa.int64())])
    assert Projection(batch.schema, target).apply(batch).to_pylist() == [
        {"z": None, "a": 1},
        {"z": None, "a": 2},
    ]
    with pytest.raises(SchemaMismatchError, match="'z'"):
        Projection(batch.schema, pa.schema([required("z", pa.int8())]))


def test_not_null_field_inside_a_null_struct_may_be_null() -> None:
    """As Spark hands over a null struct with a variant in it: the variant's own parts are never
    null, and are null below it."""
    variant = [required("value", pa.binary()), required("metadata", pa.binary())]
    given = pa.struct([required("v", pa.struct(variant))])
    stored = pa.struct([pa.field("v", pa.struct(variant))])
    parts = [pa.array([None, b"1", b"2"]), pa.array([None, b"m", b"n"])]
    inner = pa.StructArray.from_arrays(parts, fields=variant)
    outer = pa.StructArray.from_arrays(
        [inner], fields=list(given), mask=pa.array([True, False, False])
    )
    batch = pa.record_batch([outer], names=["s"])
    found = Projection(batch.schema, pa.schema([("s", stored)])).apply(batch.slice(0, 2))
    assert found.schema.field("s").type.equals(stored)
    assert found.to_pylist() == [{"s": None}, {"s": {"v": {"value": b"1", "metadata": b"m"}}}]
