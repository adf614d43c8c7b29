"""Schemas: Spark's StructType to the Arrow schema that a stream stores, and back. Pure.

The Arrow types are those Spark itself uses. Some Spark types share one Arrow type (``interval hour
to second`` and ``interval day to second``; strings with a collation), so the exact Spark type is
kept in the metadata of the Arrow field and used again as long as it still fits.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import (
    from_arrow_metadata,
    from_arrow_type,
    to_arrow_metadata,
    to_arrow_type,
)

from connector.marks import without_marks
from connector.type_walk import rebuilt
from connector.widening import WIDER, fits, widens
from spark_ledger.errors import NoSuchStreamError, SchemaMismatchError
from spark_ledger.stream.format.arrow_types import ArrowField
from spark_ledger.stream.format.metadata_column import LEDGER_COLUMN
from spark_ledger.stream.format.schema import canonical_schema

TYPE_KEY: Final = b"spark.type"
"""Arrow field metadata: the Spark type as JSON, where the Arrow type alone does not tell it."""

METADATA_TYPE: Final = spark.StructType(
    [
        spark.StructField("segment", spark.LongType(), nullable=False),
        spark.StructField("entry", spark.LongType(), nullable=False),
        spark.StructField("slot", spark.LongType(), nullable=False),
        spark.StructField("ledger_id", spark.LongType(), nullable=False),
        spark.StructField("commit", spark.LongType(), nullable=False),
        spark.StructField("commit_time", spark.TimestampType(), nullable=False),
    ]
)

METADATA_TYPE_OF_SEVERAL: Final = spark.StructType(
    [spark.StructField("stream", spark.StringType(), nullable=False), *METADATA_TYPE.fields]
)
"""Where several streams are read, the column says which one a row is of."""

LEDGER_SCHEMA: Final = spark.StructType(
    [
        spark.StructField("ledger_id", spark.LongType(), nullable=False),
        spark.StructField("entry_id", spark.LongType(), nullable=False),
        spark.StructField("payload", spark.BinaryType(), nullable=False),
    ]
)
"""The columns of a raw ledger."""

_CONVERTED: Final[deque[tuple[spark.StructType, pa.Schema]]] = deque(maxlen=16)
"""Schemas that were converted last, as copies, because ``StructType.add`` changes the original.
Each micro-batch asks for that of its query, which takes 0.05 ms a column, in a process that serves
all queries of a driver."""


def arrow_schema_of(schema: spark.StructType) -> pa.Schema:
    """The Arrow schema in which a stream stores rows of a Spark schema, all of it nullable.

    Whether a column of a DataFrame may hold nulls is what Spark's optimizer knows of this plan (a
    literal is never null), not what the user wants of the stream. Delta does the same.

    Raises SchemaMismatchError naming the column if its type cannot be stored.
    """
    known = next((stored for given, stored in tuple(_CONVERTED) if given == schema), None)
    if known is None:
        stored = without_marks(_text_columns(schema).toNullable())
        known = canonical_schema(pa.schema([_arrow_field(field) for field in stored.fields]))
        _CONVERTED.appendleft((spark.StructType(list(schema.fields)), known))
    return known


def _text_columns(schema: spark.StructType) -> spark.StructType:
    """The schema with ``string`` for ``char(n)`` and ``varchar(n)`` everywhere: what Spark writes
    is padded and checked by then."""

    def text(leaf: spark.DataType) -> spark.DataType:
        is_bounded = isinstance(leaf, spark.CharType | spark.VarcharType)
        return spark.StringType() if is_bounded else leaf

    return rebuilt(schema, leaf=text)


def _arrow_field(field: spark.StructField) -> ArrowField:
    arrow_type = _arrow_type(field)
    metadata = dict(to_arrow_metadata(field.metadata) or {})
    if from_arrow_type(arrow_type) != field.dataType:
        metadata[TYPE_KEY] = field.dataType.json().encode()
    return pa.field(field.name, arrow_type, field.nullable, metadata or None)


def _arrow_type(field: spark.StructField) -> pa.DataType:
    try:
        return to_arrow_type(field.dataType, timezone="UTC")
    except PySparkException as error:
        hint = "cast it to int (months)" if "YearMonth" in repr(field.dataType) else "cast it first"
        if "char(" in field.dataType.simpleString():
            hint = "declare it as string, and use rpad() where the padding of char(n) is wanted"
        raise SchemaMismatchError(
            f"column {field.name!r} has the type {field.dataType.simpleString()}, which Spark does "
            f"not hand to Python data sources: {hint}"
        ) from error
    except ValueError as error:  # Arrow has no maps whose keys are of type null
        raise SchemaMismatchError(
            f"column {field.name!r} has the type {field.dataType.simpleString()}, which cannot be "
            "stored: cast it, such as an empty map() to map<string,string>"
        ) from error


def spark_type_name(type_: pa.DataType) -> str:
    """What Spark's users call a type."""
    return from_arrow_type(type_).simpleString()


def spark_schema_of(schema: pa.Schema, *, include_metadata: bool) -> spark.StructType:
    """The Spark schema of a stored Arrow schema, with the column ``_ledger`` if asked for."""
    fields = [_spark_field(field) for field in schema]
    if include_metadata:
        fields.append(spark.StructField(LEDGER_COLUMN, METADATA_TYPE, nullable=False))
    return spark.StructType(fields)


def widest_schema(
    schemas: Mapping[str, pa.Schema], *, include_metadata: bool, subject: str
) -> spark.StructType:
    """The Spark schema that rows of several streams fit: all columns, each in its widest type.

    A column that some stream lacks, or may have null in, is nullable, and so is what may be null
    inside of a type in some. Names match in any case.

    Raises NoSuchStreamError without a stream, SchemaMismatchError naming two streams and a column
    if one has a type of which neither is the wider.
    """
    if not schemas:
        raise NoSuchStreamError(
            f"there are no {subject}: create one, check the pattern and the metadata URI, or "
            "declare the columns (schema(...)) to begin before there is one"
        )
    widest: dict[str, tuple[spark.StructField, str]] = {}
    for name, schema in schemas.items():
        for field in spark_schema_of(schema, include_metadata=False).fields:
            has, owner = widest.get(field.name.lower(), (field, name))
            wider, nullable = has.dataType, has.nullable or field.nullable
            if not widens(field.dataType, has.dataType):
                if not widens(has.dataType, field.dataType):
                    raise SchemaMismatchError(
                        f"streams {owner!r} and {name!r} cannot be read together: column "
                        f"{field.name!r} is {has.dataType.simpleString()} in the one and "
                        f"{field.dataType.simpleString()} in the other, and neither type has the "
                        "values of both: read them apart, and cast it before union()"
                    )
                wider, owner = field.dataType, name
            for each in (has, field):
                wider = _with_nulls_of(each.dataType, wider)
            made = spark.StructField(has.name, wider, nullable, has.metadata)
            widest[field.name.lower()] = made, owner
    fields = []
    for key, (field, _) in widest.items():
        in_all = all(key in map(str.lower, schema.names) for schema in schemas.values())
        nullable = field.nullable or not in_all
        fields.append(spark.StructField(field.name, field.dataType, nullable, field.metadata))
    if include_metadata:
        fields.append(spark.StructField(LEDGER_COLUMN, METADATA_TYPE_OF_SEVERAL, nullable=False))
    return spark.StructType(fields)


def _with_nulls_of(narrow: spark.DataType, wide: spark.DataType) -> spark.DataType:
    """The type ``wide`` with nulls inside wherever one of the two has them. What is strict in both
    stays so: the state of a query has such types, and Spark goes on with no other one."""
    if isinstance(narrow, spark.ArrayType) and isinstance(wide, spark.ArrayType):
        element = _with_nulls_of(narrow.elementType, wide.elementType)
        return spark.ArrayType(element, narrow.containsNull or wide.containsNull)
    if isinstance(narrow, spark.MapType) and isinstance(wide, spark.MapType):
        key = _with_nulls_of(narrow.keyType, wide.keyType)
        value = _with_nulls_of(narrow.valueType, wide.valueType)
        return spark.MapType(key, value, narrow.valueContainsNull or wide.valueContainsNull)
    if isinstance(narrow, spark.StructType) and isinstance(wide, spark.StructType):
        return spark.StructType(
            [
                spark.StructField(
                    has.name,
                    _with_nulls_of(other.dataType, has.dataType),
                    has.nullable or other.nullable,
                    has.metadata,
                )
                for other, has in zip(narrow.fields, wide.fields, strict=True)
            ]
        )
    return wide


def _spark_field(field: ArrowField) -> spark.StructField:
    metadata = field.metadata or {}
    data_type = from_arrow_type(field.type)
    if TYPE_KEY in metadata:
        exact = spark._parse_datatype_json_value(json.loads(metadata[TYPE_KEY]))
        if to_arrow_type(exact, timezone="UTC").equals(field.type, check_metadata=False):
            data_type = exact
    noted = from_arrow_metadata(field.metadata)
    found = spark.StructType([spark.StructField(field.name, data_type, field.nullable, noted)])
    return without_marks(found).fields[0]  # streams have some that were made when they were stored


def read_schema(schema: spark.StructType) -> pa.Schema:
    """The Arrow schema that Spark wants of every batch of a read with this declared schema."""
    return pa.schema(
        [pa.field(field.name, _arrow_type(field), field.nullable) for field in schema.fields]
    )


def check_declared_of_several(
    declared: spark.StructType,
    schemas: Mapping[str, pa.Schema],
    *,
    include_metadata: bool,
    subject: str,
    joins: bool = False,
) -> None:
    """As ``check_declared`` for several streams, of which some may lack a column, which is null in
    their rows. ``joins``: the streams come to others, which may have what they lack.

    Raises SchemaMismatchError naming the stream and the column.
    """
    known: set[str] = set()
    for name, stored in schemas.items():
        names = set(map(str.lower, stored.names))
        known |= names
        own = [
            field
            for field in declared.fields
            if field.name.lower() in names or (field.name == LEDGER_COLUMN and include_metadata)
        ]
        check_declared(
            spark.StructType(own),
            stored,
            include_metadata=include_metadata,
            subject=f"stream {name!r}",
            metadata_type=METADATA_TYPE_OF_SEVERAL,
        )
    for field in declared.fields:
        is_metadata = field.name == LEDGER_COLUMN and include_metadata
        if schemas and not joins and not is_metadata and field.name.lower() not in known:
            raise SchemaMismatchError(
                f"none of the {subject} has a column {field.name!r}, which the declared schema "
                f"names; their columns are {', '.join(sorted(known))}"
            )


def check_declared(
    declared: spark.StructType,
    stored: pa.Schema,
    *,
    include_metadata: bool,
    subject: str,
    metadata_type: spark.StructType = METADATA_TYPE,
) -> None:
    """Refuse a schema that a user declared (``.schema(...)``) if the stream cannot deliver it.

    Fewer columns, in any order, and wider types are fine (``widening``). Names match in any case.

    Raises SchemaMismatchError naming the column if it cannot be delivered.
    """
    known = {field.name.lower(): _spark_field(field).dataType for field in stored}
    for field in declared.fields:
        if field.name == LEDGER_COLUMN and include_metadata:
            given = spark.StructType([spark.StructField("", field.dataType)])
            if given.toNullable().fields[0].dataType != metadata_type.toNullable():
                raise SchemaMismatchError(
                    f"{subject}: the declared type of {LEDGER_COLUMN!r} must be "
                    f"{metadata_type.simpleString()}"
                )
            continue
        has = known.get(field.name.lower())
        if has is None:
            columns = ", ".join(stored.names)
            raise SchemaMismatchError(
                f"{subject} has no column {field.name!r}, which the declared schema names; "
                f"its columns are {columns}"
            )
        _arrow_type(field)  # raises if Spark does not hand it to Python data sources
        if not widens(has, field.dataType):
            kept, wanted = has.simpleString(), field.dataType.simpleString()
            raise SchemaMismatchError(
                f"{subject}: column {field.name!r} is stored as {kept}, which cannot be declared "
                f"as {wanted} without a loss or a guess: declare {kept}, and cast it after load(). "
                f"A declared schema may widen {WIDER}"
            )


def why_refused(stored: spark.StructType, offered: spark.StructType, *, merge: bool) -> str | None:
    """Why a stream of one schema does not take a DataFrame of the other, in Spark's types; None if
    these do not say. With ``merge`` columns may be missing on either side."""
    ours = {field.name.lower(): field for field in stored.fields}
    theirs = {field.name.lower(): field for field in _text_columns(offered).fields}
    for name, field in ours.items():
        other = theirs.get(name)
        if other is None:
            if not merge or not field.nullable:
                return (
                    f"column {field.name!r} of type {field.dataType.simpleString()} is missing in "
                    "the DataFrame" + ("" if field.nullable else ", and must not be null")
                )
        elif not fits(other.dataType, field.dataType):
            advice = "; mergeSchema only adds columns" if merge else ""
            return _two_types(field, other) + advice
    for name, field in theirs.items():
        if name not in ours and not merge:
            return (
                f"column {field.name!r} of type {field.dataType.simpleString()} is not in the "
                "stream; set the option mergeSchema=true to add it"
            )
    return None


def why_kept_out(stored: pa.Schema, offered: pa.Schema) -> str | None:
    """Why a stream does not take a DataFrame (as ``arrow_schema_of`` has it) whose types are the
    same in Arrow, which are those that the store compares; None if it takes it.

    A geometry of one coordinate system would be read as one of another, or not at all, and an
    interval of hours as one of days.
    """
    theirs = {field.name.lower(): field for field in offered}
    for ours in stored:
        other = theirs.get(ours.name.lower())
        if other is not None and not _is_one_type(ours, other):
            has, given = _field_of_values(ours), _field_of_values(other)
            if not fits(given.dataType, has.dataType):
                return _two_types(has, given) + ", or write it to a column of its own"
    return None


def _field_of_values(field: ArrowField) -> spark.StructField:
    try:
        return _spark_field(field)
    except (ImportError, PySparkException):  # a class of users that is not here names this type
        return spark.StructField(field.name, from_arrow_type(field.type), field.nullable)


def _is_one_type(one: ArrowField, other: ArrowField) -> bool:
    """Whether they are certainly the same type of Spark's. It spares each micro-batch the rest."""
    exact, its_exact = ((each.metadata or {}).get(TYPE_KEY) for each in (one, other))
    return exact == its_exact and one.type.equals(other.type, check_metadata=True)


def _two_types(ours: spark.StructField, theirs: spark.StructField) -> str:
    one, two = ours.dataType.simpleString(), theirs.dataType.simpleString()
    return f"column {ours.name!r}: the stream has type {one}, the DataFrame has type {two}; cast it"
