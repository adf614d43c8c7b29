"""Schemas of a stream: the types that are stored, what fits them, and casts between versions. Pure.

Stored types are exactly the Arrow types Spark uses for its own (``pyspark.sql.pandas.types``), so
that a reader never has to guess: timestamps are microseconds in UTC or without a zone, text is
``string``, bytes are ``binary``, list items are called ``element``, nothing is dictionary encoded.
Every other type is turned into one of these without losing a value, or refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pat

from spark_ledger.errors import ConfigurationError, SchemaMismatchError
from spark_ledger.stream.format.arrow_types import (
    ArrowArray,
    ArrowField,
    ArrowMap,
    map_type,
    with_type,
)
from spark_ledger.stream.format.metadata_column import LEDGER_COLUMN

_TEXT: Final = (pat.is_string, pat.is_large_string, pat.is_string_view)
_BYTES: Final = (pat.is_binary, pat.is_large_binary, pat.is_binary_view, pat.is_fixed_size_binary)
_LIST_ARRAYS: Final = (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)
_AS_THEY_ARE: Final = (
    pat.is_null,
    pat.is_boolean,
    pat.is_int8,
    pat.is_int16,
    pat.is_int32,
    pat.is_int64,
    pat.is_float32,
    pat.is_float64,
    pat.is_decimal128,
    pat.is_date32,
)
_WIDENED: Final = (
    (pat.is_uint8, pa.int16()),
    (pat.is_uint16, pa.int32()),
    (pat.is_uint32, pa.int64()),
    (pat.is_uint64, pa.decimal128(20, 0)),
    (pat.is_float16, pa.float32()),
    (pat.is_date64, pa.date32()),
    (pat.is_time, pa.time64("ns")),
    (pat.is_duration, pa.duration("us")),
)


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """The stored schema for an Arrow schema. Metadata of fields stay, those of the schema do not.

    Raises SchemaMismatchError if a type cannot be stored, a column is named ``_ledger``, or two
    names (also of fields of a struct) differ at most in case, ConfigurationError if the schema has
    no columns.
    """
    if not isinstance(schema, pa.Schema):
        raise ConfigurationError(
            f"schema: needs a pyarrow.Schema, not {type(schema).__name__} "
            "(for Spark schemas use pyspark.sql.pandas.types.to_arrow_schema)"
        )
    if len(schema) == 0:
        raise ConfigurationError("schema: a stream needs at least one column")
    _refuse_duplicates([field.name for field in schema], "schema")
    for field in schema:
        if field.name.lower() == LEDGER_COLUMN:  # Spark compares names without case
            raise SchemaMismatchError(
                f"field {field.name!r}: no stream has a column of this name, because readers that "
                "ask for metadata (Spark option includeMetadata) find them there; drop or rename it"
            )
    return pa.schema([_canonical_field(field, field.name) for field in schema])


def _refuse_duplicates(names: Sequence[str], where: str) -> None:
    """Raises SchemaMismatchError if two names are equal, or differ only in case."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(name.lower())
        seen[name.lower()] = name
        if other is None:
            continue
        if other == name:
            raise SchemaMismatchError(f"{where}: the name {name!r} occurs twice; rename one")
        raise SchemaMismatchError(
            f"{where}: the names {other!r} and {name!r} differ in case only, and Spark (by its "
            "default spark.sql.caseSensitive=false) cannot tell them apart; rename one"
        )


def _canonical_field(field: ArrowField, path: str, name: str | None = None) -> ArrowField:
    return pa.field(
        field.name if name is None else name,
        canonical_type(field.type, path),
        nullable=field.nullable or pat.is_null(field.type),  # as Spark's array() and map() are
        metadata=field.metadata,
    )


def canonical_type(type_: pa.DataType, path: str) -> pa.DataType:
    """The stored type for an Arrow type; ``path`` names the field in errors. Raises
    SchemaMismatchError if it has none."""
    if any(test(type_) for test in _AS_THEY_ARE):
        return type_
    if any(test(type_) for test in _TEXT):
        return pa.string()
    if any(test(type_) for test in _BYTES):
        return pa.binary()
    for test, wider in _WIDENED:
        if test(type_):
            return wider
    if pat.is_timestamp(type_):
        return pa.timestamp("us", tz="UTC" if type_.tz is not None else None)
    if pat.is_decimal(type_) and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale)
    if pat.is_dictionary(type_):
        return canonical_type(type_.value_type, path)
    if isinstance(type_, pa.BaseExtensionType):
        return canonical_type(type_.storage_type, path)
    return _canonical_nested(type_, path)


def _canonical_nested(type_: pa.DataType, path: str) -> pa.DataType:
    if pat.is_list(type_) or pat.is_large_list(type_) or pat.is_fixed_size_list(type_):
        # Not the list views: Arrow's casts make invalid lists of them, which nobody could read.
        return pa.list_(_canonical_field(type_.value_field, f"{path}.element", "element"))
    if pat.is_map(type_):
        key = _canonical_field(type_.key_field, f"{path}.key", "key")
        value = _canonical_field(type_.item_field, f"{path}.value", "value")
        return map_type(key.with_nullable(False), value)
    if pat.is_struct(type_):
        fields = [type_.field(index) for index in range(type_.num_fields)]
        _refuse_duplicates([field.name for field in fields], f"field {path}")
        return pa.struct([_canonical_field(f, f"{path}.{f.name}") for f in fields])
    raise SchemaMismatchError(
        f"field {path}: type {type_} cannot be stored; cast it to a type that Spark has"
    )


# -- compatibility ---------------------------------------------------------------------------------


def mismatch(stored: pa.Schema, offered: pa.Schema) -> str | None:
    """Why rows of the canonical schema ``offered`` cannot be rows of ``stored``, or None.

    Columns match by name, in any order and in any case, as in Spark: no two names differ in case
    only. A column of type null fits every nullable column, because
    all of its values are null. A nullable column fits a not-null one: Spark declares most columns
    nullable, so ``Projection.apply`` looks for nulls in the data instead.
    """
    names = _positions(offered)
    for field in stored:
        index = names.get(field.name.lower(), -1)
        if index < 0:
            return f"field {field.name!r} of type {field.type} is missing in the data"
        reason = _type_mismatch(field.type, offered.field(index).type, field.name)
        if reason:
            return reason
    known = _positions(stored)
    for field in offered:
        if field.name.lower() not in known:
            return (
                f"field {field.name!r} of type {field.type} is not a column of the stream; "
                "append with merge_schema (Spark option mergeSchema) to add it"
            )
    return None


def _positions(schema: pa.Schema) -> dict[str, int]:
    """Where each column is, by its name in lower case."""
    return {name.lower(): index for index, name in enumerate(schema.names)}


def _type_mismatch(stored: pa.DataType, offered: pa.DataType, path: str) -> str | None:
    if stored.equals(offered) or pat.is_null(offered):
        return None
    if pat.is_list(stored) and pat.is_list(offered):
        return _type_mismatch(stored.value_type, offered.value_type, f"{path}.element")
    if pat.is_map(stored) and pat.is_map(offered):
        return _type_mismatch(stored.key_type, offered.key_type, f"{path}.key") or _type_mismatch(
            stored.item_type, offered.item_type, f"{path}.value"
        )
    if pat.is_struct(stored) and pat.is_struct(offered):
        ours = [stored.field(index) for index in range(stored.num_fields)]
        theirs = [offered.field(index) for index in range(offered.num_fields)]
        if [field.name.lower() for field in ours] == [field.name.lower() for field in theirs]:
            for a, b in zip(ours, theirs, strict=True):
                reason = _type_mismatch(a.type, b.type, f"{path}.{a.name}")
                if reason:
                    return reason
            return None
    return f"field {path!r}: the stream has type {stored}, the data have type {offered}"


def merge_schema(stored: pa.Schema, offered: pa.Schema) -> pa.Schema:
    """The stored schema with the columns that only ``offered`` has added at its end, nullable.

    Returns ``stored`` itself if nothing is new. A column of type null is not added, because its
    real type is not known yet. Old columns never change (rule T8). Raises SchemaMismatchError if
    a column of both has different types.
    """
    fields, known = list(stored), _positions(stored)
    for field in offered:
        index = known.get(field.name.lower(), -1)
        if index < 0:
            if not pat.is_null(field.type):
                fields.append(field.with_nullable(True))
            continue
        reason = _type_mismatch(stored.field(index).type, field.type, field.name)
        if reason:
            raise SchemaMismatchError(f"{reason}; merge_schema only adds new columns")
    return stored if len(fields) == len(stored) else pa.schema(fields)


def check_covers(merged: pa.Schema, offered: pa.Schema) -> None:
    """Raises SchemaMismatchError if rows of ``offered`` cannot be rows of a schema that has been
    merged for them: a column of it that must not be null is missing, or one of theirs is."""
    theirs, ours = _positions(offered), _positions(merged)
    for field in merged:
        if not field.nullable and field.name.lower() not in theirs:
            raise SchemaMismatchError(
                f"field {field.name!r} of type {field.type} is missing in the data, and must not "
                "be null in the stream"
            )
    for field in offered:
        if field.name.lower() not in ours and not pat.is_null(field.type):
            raise SchemaMismatchError(
                f"field {field.name!r} of type {field.type} is in the data, but not among the "
                "columns to be merged"
            )


# -- casts -----------------------------------------------------------------------------------------


_Convert = Callable[[ArrowArray, ArrowField], ArrowArray]
"""Turns an array into one of a field's type."""


class Projection:
    """Casts batches of one schema to another by name; nullable columns they lack become null.

    Made once for a pair of schemas, because the plan is the same for every batch. Columns that the
    target does not name are left out. Raises SchemaMismatchError if a not-null column is missing.
    """

    def __init__(self, source: pa.Schema, target: pa.Schema) -> None:
        self.source = source
        self.target = target
        self._is_identity = source.equals(target, check_metadata=False)
        positions = _positions(source)
        self._columns = [
            _column_plan(source, positions.get(field.name.lower(), -1), field) for field in target
        ]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the target schema; columns are copied only where their type changes.

        Raises SchemaMismatchError that names the field if a value does not fit its new type, or
        is null in a not-null column.
        """
        if self._is_identity:
            return batch
        columns = []
        for field, (index, convert, checks_nulls) in zip(self.target, self._columns, strict=True):
            if index < 0:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(index)
            if checks_nulls:
                _refuse_nulls(column, field, field.name)
            columns.append(convert(column, field) if convert else column)
        return pa.RecordBatch.from_arrays(columns, schema=self.target)


def _column_plan(
    source: pa.Schema, index: int, field: ArrowField
) -> tuple[int, _Convert | None, bool]:
    """(index in the source or -1 if it has none, how to convert, whether to look for nulls)."""
    if index < 0:
        if not field.nullable:
            raise SchemaMismatchError(
                f"field {field.name!r} is not null in the schema asked for, "
                "but a stored schema version lacks it; declare it nullable"
            )
        return -1, None, False
    offered = source.field(index)
    convert: _Convert | None = _cast
    if offered.type.equals(field.type, check_metadata=False):
        convert = None
    elif _with_nulls(offered.type).equals(_with_nulls(field.type)):
        convert = _retyped
    return index, convert, _has_required(field) and not offered.equals(field)


def _with_nulls(type_: pa.DataType) -> pa.DataType:
    """The type with everything in it nullable, except the keys of maps, and names in lower case."""
    if pat.is_list(type_):
        return pa.list_(pa.field("element", _with_nulls(type_.value_type)))
    if pat.is_map(type_):
        return pa.map_(_with_nulls(type_.key_type), _with_nulls(type_.item_type))
    if pat.is_struct(type_):
        return pa.struct([pa.field(child.name.lower(), _with_nulls(child.type)) for child in type_])
    return type_


def _has_required(field: ArrowField) -> bool:
    """Whether a field, or one inside of it, must not be null."""
    if not field.nullable:
        return True
    type_ = field.type
    if pat.is_list(type_):
        return _has_required(type_.value_field)
    if pat.is_map(type_):
        return _has_required(type_.item_field) or any(
            _has_required(type_.key_type.field(i)) for i in range(type_.key_type.num_fields)
        )
    if pat.is_struct(type_):
        return any(_has_required(type_.field(i)) for i in range(type_.num_fields))
    return False


def _refuse_nulls(column: ArrowArray, field: ArrowField, path: str) -> None:
    """Look for nulls where the target forbids them; Arrow's own casts do not. Raises
    SchemaMismatchError that names the field."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if not field.nullable and column.null_count > 0:
        raise SchemaMismatchError(f"field {path!r} must not be null, but the data have a null")
    if pat.is_null(column.type):
        return
    type_ = field.type
    if pat.is_list(type_) and isinstance(column, _LIST_ARRAYS):
        if _has_required(type_.value_field):
            _refuse_nulls(column.flatten(), type_.value_field, f"{path}.element")
    elif pat.is_map(type_) and isinstance(column, pa.MapArray):
        entries = _map_entries(column)
        _refuse_nulls(entries.field(0), type_.key_field, f"{path}.key")
        _refuse_nulls(entries.field(1), type_.item_field, f"{path}.value")
    elif pat.is_struct(type_) and isinstance(column, pa.StructArray):
        present = column.drop_null() if column.null_count else column
        children = present.flatten()
        inside = {each.name.lower(): at for at, each in enumerate(column.type)}
        for index in range(type_.num_fields):
            child = type_.field(index)
            source_index = inside.get(child.name.lower(), -1)
            if source_index >= 0 and _has_required(child):
                _refuse_nulls(children[source_index], child, f"{path}.{child.name}")


def _map_entries(column: ArrowMap) -> pa.StructArray:
    """The (key, value) structs of the maps that are not null, without those outside of a slice."""
    if column.null_count:
        column = column.drop_null()
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    keys = column.keys.slice(first, last - first)
    items = column.items.slice(first, last - first)
    return pa.StructArray.from_arrays([keys, items], names=["key", "value"])


def _retyped(column: ArrowArray, field: ArrowField) -> ArrowArray:
    """The column under a type that differs only in what may be null. Arrow's cast refuses some of
    these: inside a null struct, a field that must not be null is null nevertheless."""
    return with_type(column, field.type)


def _as_named(column: ArrowArray, target: pa.DataType) -> ArrowArray:
    """The column with the names that the target has for fields of structs: Arrow's cast goes by
    their case."""
    renamed = _named_as(column.type, target)
    return column if renamed.equals(column.type) else with_type(column, renamed)


def _named_as(type_: pa.DataType, target: pa.DataType) -> pa.DataType:
    if pat.is_list(type_) and pat.is_list(target):
        element = type_.value_field
        return pa.list_(element.with_type(_named_as(element.type, target.value_type)))
    if pat.is_map(type_) and pat.is_map(target):
        key, item = type_.key_field, type_.item_field
        return map_type(
            key.with_type(_named_as(key.type, target.key_type)),
            item.with_type(_named_as(item.type, target.item_type)),
        )
    if pat.is_struct(type_) and pat.is_struct(target):
        wanted = {each.name.lower(): each for each in target}
        return pa.struct([_field_as(child, wanted.get(child.name.lower())) for child in type_])
    return type_


def _field_as(field: ArrowField, target: ArrowField | None) -> ArrowField:
    if target is None:
        return field
    return field.with_name(target.name).with_type(_named_as(field.type, target.type))


def _cast(column: ArrowArray, field: ArrowField) -> ArrowArray:
    try:
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        return _as_named(column, field.type).cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise SchemaMismatchError(
            f"field {field.name!r}: a value of type {column.type} does not fit {field.type}: "
            f"{error}"
        ) from error
