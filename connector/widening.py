"""Which types a stored column may be declared as (``.schema(...)``): those that lose nothing. Pure.

A wider type has a value for each value of the other, the same one in every session: so no change
of kind (a date is no moment until a time zone says so), and nothing that may be cut off.
Which types of Spark's a stored column takes, of those that are one type in Arrow.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import types as spark

_DIGITS: Final[dict[type[spark.DataType], int]] = {
    spark.ByteType: 3,
    spark.ShortType: 5,
    spark.IntegerType: 10,
    spark.LongType: 19,
}
"""Whole numbers, from narrow to wide, and the decimal digits of each."""

_EXACT_IN_FLOAT: Final = (spark.ByteType, spark.ShortType)
_EXACT_IN_DOUBLE: Final = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.FloatType)

WIDER: Final = (
    "int to bigint, int or float to double, a number to a larger decimal, date to timestamp_ntz, "
    "string to binary"
)
"""For messages."""


def widens(stored: spark.DataType, declared: spark.DataType) -> bool:
    """Whether every value of ``stored`` is one of ``declared``. What may be null does not count."""
    if isinstance(stored, spark.NullType):
        return True
    if isinstance(stored, spark.StringType):  # with a collation, or a length, it is the same text
        return isinstance(declared, spark.StringType | spark.BinaryType)
    if isinstance(stored, spark.ArrayType) and isinstance(declared, spark.ArrayType):
        return widens(stored.elementType, declared.elementType)
    if isinstance(stored, spark.MapType) and isinstance(declared, spark.MapType):
        same_key = stored.keyType.simpleString() == declared.keyType.simpleString()
        return same_key and widens(stored.valueType, declared.valueType)
    if isinstance(stored, spark.StructType) and isinstance(declared, spark.StructType):
        names = [[f.name.lower() for f in each.fields] for each in (stored, declared)]
        return names[0] == names[1] and all(
            widens(a.dataType, b.dataType)
            for a, b in zip(stored.fields, declared.fields, strict=True)
        )
    return _is_as_wide(stored, declared) or _is_wider(stored, declared)


def fits(offered: spark.DataType, column: spark.DataType) -> bool:
    """Whether a stored column of the one type takes all values of the other as they are.

    They are stored by Arrow's types, of which several of Spark's share one: text of any collation,
    a plain struct and a variant, intervals of any fields. What may be null does not count.
    """
    if isinstance(offered, spark.NullType):
        return True
    if isinstance(offered, spark.StringType):
        return isinstance(column, spark.StringType)
    if isinstance(offered, spark.UserDefinedType):  # a name for another type
        return fits(offered.sqlType(), column)
    if isinstance(column, spark.UserDefinedType):
        return fits(offered, column.sqlType())
    if isinstance(offered, spark.ArrayType) and isinstance(column, spark.ArrayType):
        return fits(offered.elementType, column.elementType)
    if isinstance(offered, spark.MapType) and isinstance(column, spark.MapType):
        return fits(offered.keyType, column.keyType) and fits(offered.valueType, column.valueType)
    if isinstance(offered, spark.StructType) and isinstance(column, spark.StructType):
        names = [[f.name.lower() for f in each.fields] for each in (offered, column)]
        return names[0] == names[1] and all(
            fits(a.dataType, b.dataType) for a, b in zip(offered.fields, column.fields, strict=True)
        )
    for kind in (spark.GeometryType, spark.GeographyType):
        if isinstance(offered, kind) and isinstance(column, kind):
            return column.srid in (kind.MIXED_SRID, offered.srid)
    return _is_as_wide(offered, column)


def _is_as_wide(narrow: spark.DataType, wide: spark.DataType) -> bool:
    """Whether the types are equal, or one shows and keeps all digits of the other."""
    if isinstance(narrow, spark.DayTimeIntervalType) and isinstance(
        wide, spark.DayTimeIntervalType
    ):
        return wide.endField >= narrow.endField  # the first field takes any number: 36 hours
    if isinstance(narrow, spark.TimeType) and isinstance(wide, spark.TimeType):
        return wide.precision >= narrow.precision
    return narrow == wide


def _is_wider(stored: spark.DataType, declared: spark.DataType) -> bool:
    if isinstance(declared, spark.DecimalType):
        if isinstance(stored, spark.DecimalType):
            digits, scale = stored.precision - stored.scale, stored.scale
        elif type(stored) in _DIGITS:
            digits, scale = _DIGITS[type(stored)], 0
        else:
            return False
        return declared.scale >= scale and declared.precision - declared.scale >= digits
    if type(declared) in _DIGITS:
        return type(stored) in _DIGITS and _DIGITS[type(stored)] <= _DIGITS[type(declared)]
    if isinstance(declared, spark.DoubleType):
        return isinstance(stored, _EXACT_IN_DOUBLE)
    if isinstance(declared, spark.FloatType):
        return isinstance(stored, _EXACT_IN_FLOAT)
    return isinstance(stored, spark.DateType) and isinstance(declared, spark.TimestampNTZType)
