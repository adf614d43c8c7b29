"""Which types a stored column may be declared as (``.schema(...)``): those that lose nothing. Pure.

A wider type has a value for each value of the other, the same one in every session: so no change
of kind (a date is no moment until a time zone says so), and nothing that may be cut off.
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
    if isinstance(stored, spark.DayTimeIntervalType | spark.TimeType):
        return type(stored) is type(declared)
    if stored == declared:
        return True
    return _is_wider(stored, declared)


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
