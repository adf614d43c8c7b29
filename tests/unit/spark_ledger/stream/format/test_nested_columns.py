"""Columns within columns: whose fields match by name in any case, and where a null is forbidden."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_ledger.errors import SchemaMismatchError
from spark_ledger.stream.format.arrow_types import ArrowField, map_type
from spark_ledger.stream.format.schema import (
    Projection,
    canonical_schema,
    check_covers,
    merge_schema,
    mismatch,
)

INT, TEXT = pa.int64(), pa.string()
PAIR = pa.struct([("x", INT), ("y", INT)])


def required(name: str, type_: pa.DataType) -> ArrowField:
    return pa.field(name, type_, nullable=False)


def one(type_: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("c", type_, nullable=nullable)])


def columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema(types)


def batch_of(schema: pa.Schema, values: list[object]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, schema.field(0).type)], schema=schema)


@pytest.mark.parametrize(
    ("stored", "offered", "path"),
    [
        # as many fields of the same types, which are others
        (PAIR, pa.struct([("x", INT), ("z", INT)]), "'c'"),
        (PAIR, pa.struct([("y", INT), ("x", INT)]), "'c'"),
        (PAIR, pa.struct([("x", INT), ("y", INT), ("z", INT)]), "'c'"),
        (pa.list_(PAIR), pa.list_(pa.struct([("a", INT), ("b", INT)])), "'c.element'"),
        (pa.map_(TEXT, PAIR), pa.map_(TEXT, pa.struct([("y", INT), ("x", INT)])), "'c.value'"),
        (pa.map_(PAIR, TEXT), pa.map_(pa.struct([("a", INT), ("b", INT)]), TEXT), "'c.key'"),
        # of another kind altogether
        (INT, pa.list_(INT), "'c'"),
        (pa.list_(INT), INT, "'c'"),
        (pa.list_(PAIR), PAIR, "'c'"),
        (PAIR, pa.map_(TEXT, INT), "'c'"),
        (pa.map_(TEXT, INT), pa.list_(PAIR), "'c'"),
    ],
)
def test_column_of_other_fields_is_no_column_of_the_stream(
    stored: pa.DataType, offered: pa.DataType, path: str
) -> None:
    ours, theirs = canonical_schema(one(stored)), canonical_schema(one(offered))
    reason = mismatch(ours, theirs)
    assert reason is not None and reason.startswith(f"field {path}: the stream has type ")
    with pytest.raises(SchemaMismatchError, match="merge_schema only adds new columns"):
        merge_schema(ours, theirs)


def test_fields_of_all_depths_are_named_as_the_stream_names_them() -> None:
    deep = pa.struct([("Inner", pa.struct([("Text", TEXT), ("n", INT)])), ("m", INT)])
    stored = canonical_schema(one(pa.map_(TEXT, pa.list_(deep))))
    other = pa.struct([("INNER", pa.struct([("text", pa.large_string()), ("N", INT)])), ("M", INT)])
    given = one(pa.map_(TEXT, pa.list_(other)))
    assert mismatch(stored, canonical_schema(given)) is None
    value = [("k", [{"INNER": {"text": "t", "N": 1}, "M": 2}, None]), ("l", None)]
    found = Projection(given, stored).apply(batch_of(given, [value, None]))
    assert found.schema.equals(stored)
    assert found.column(0).to_pylist() == [
        [("k", [{"Inner": {"Text": "t", "n": 1}, "m": 2}, None]), ("l", None)],
        None,
    ]


FORBIDDEN: list[tuple[pa.DataType, pa.DataType, object, object, str]] = [
    # what the stream has, what is offered, a value with a null there, one without, and where
    (
        pa.struct([required("s", pa.struct([required("x", INT)]))]),
        pa.struct([("s", pa.struct([("x", INT)]))]),
        {"s": {"x": None}},
        {"s": {"x": 1}},
        r"'c\.s\.x'",
    ),
    (
        pa.struct([("s", pa.struct([required("x", INT)]))]),
        pa.struct([("s", pa.struct([("x", INT)]))]),
        {"s": {"x": None}},
        {"s": None},
        r"'c\.s\.x'",
    ),
    (
        pa.struct([("l", pa.list_(required("element", INT)))]),
        pa.struct([("l", pa.list_(INT))]),
        {"l": [1, None]},
        {"l": [1]},
        r"'c\.l\.element'",
    ),
    (
        map_type(required("key", pa.struct([required("x", INT)])), pa.field("value", INT)),
        pa.map_(pa.struct([("x", INT)]), INT),
        [({"x": None}, 1)],
        [({"x": 1}, None)],
        r"'c\.key\.x'",
    ),
    (
        map_type(required("key", TEXT), pa.field("value", pa.list_(required("element", INT)))),
        pa.map_(TEXT, pa.list_(INT)),
        [("k", [None])],
        [("k", None)],
        r"'c\.value\.element'",
    ),
    (
        map_type(required("key", TEXT), required("value", INT)),
        pa.map_(TEXT, INT),
        [("k", 1), ("l", None)],
        [("k", 1), ("l", 2)],
        r"'c\.value'",
    ),
]


@pytest.mark.parametrize(("stored", "offered", "bad", "good", "path"), FORBIDDEN)
@pytest.mark.parametrize("nullable", [True, False])
def test_null_is_found_at_any_depth_and_only_in_the_rows_that_are_there(
    stored: pa.DataType,
    offered: pa.DataType,
    bad: object,
    good: object,
    path: str,
    nullable: bool,
) -> None:
    """Also where the column that is offered is itself declared as one without nulls."""
    ours, theirs = one(stored), one(offered, nullable=nullable)
    projection = Projection(theirs, ours)
    batch = batch_of(theirs, [good, bad, good, good])
    for first, rows in ((0, 4), (1, 1), (0, 2), (1, 3)):
        with pytest.raises(SchemaMismatchError, match=f"field {path} must not be null"):
            projection.apply(batch.slice(first, rows))
    for first, rows in ((0, 1), (2, 2), (3, 1), (2, 0)):
        found = projection.apply(batch.slice(first, rows))
        assert found.schema.equals(ours)
        assert found.column(0).to_pylist() == [good] * rows


def test_null_struct_hides_what_is_below_it_though_names_differ_in_case() -> None:
    stored = one(pa.struct([required("Text", TEXT)]))
    given = one(pa.struct([("text", TEXT)]))
    children = [pa.array([None, "b"])]
    column = pa.StructArray.from_arrays(children, ["text"], mask=pa.array([True, False]))
    found = Projection(given, stored).apply(pa.record_batch([column], schema=given))
    assert found.schema.equals(stored)
    assert found.column(0).to_pylist() == [None, {"Text": "b"}]


def test_rows_cover_a_schema_that_was_merged_for_them() -> None:
    merged = pa.schema([required("id", INT), pa.field("text", TEXT), pa.field("New", INT)])
    check_covers(merged, pa.schema([("ID", INT), ("new", INT)]))
    check_covers(merged, columns(id=INT, unknown=pa.null()))
    with pytest.raises(SchemaMismatchError, match="'id' of type int64 is missing in the data"):
        check_covers(merged, columns(text=TEXT, new=INT))
    with pytest.raises(SchemaMismatchError, match="'other' of type int64 is in the data, but not"):
        check_covers(merged, pa.schema([("id", INT), ("other", INT)]))
