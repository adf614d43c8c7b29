"""Rows from lines of JSON: the inverse of what ``ledger streams read --json`` prints. Pure."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import msgspec

from spark_ledger.cli.show.variants import is_variant

if TYPE_CHECKING:
    import pyarrow

_FLOATS: Final = {16: "<e", 32: "<f", 64: "<d"}
"""Formats of the struct module by bits of a number: with <, what is too large is an error."""


def parse_row(line: bytes, schema: pyarrow.Schema) -> dict[str, object]:
    """The values of one line, which is a JSON object; columns that it lacks are null.

    Raises ValueError with half a sentence that names the column.
    """
    try:
        given = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"no JSON object: {error}") from None
    return _struct(given, list(schema), "")


def to_batch(rows: Sequence[dict[str, object]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """A batch of the rows. Raises ValueError if a number does not fit the type of its column."""
    import pyarrow as pa

    columns = []
    for field in schema:
        try:
            columns.append(pa.array([row[field.name] for row in rows], field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise ValueError(f"column {field.name!r}: {error}") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _struct(
    given: dict[str, object],
    fields: Sequence[pyarrow.Field[pyarrow.DataType]],
    where: str,
) -> dict[str, object]:
    names = [field.name for field in fields]
    for name in given:
        if name not in names:
            raise ValueError(f"unknown column {where + name!r}; there are {', '.join(names)}")
    values = {}
    for field in fields:
        path, value = where + field.name, given.get(field.name)
        if value is None and not field.nullable:
            raise ValueError(f"column {path!r} is missing, and may not be null")
        values[field.name] = _value(value, field.type, path)
    return values


def _value(value: object, type_: pyarrow.DataType, path: str) -> object:
    """A value of JSON as Arrow takes it for a type."""
    from pyarrow import types

    if value is None:
        return None
    if is_variant(type_):
        raise ValueError(f"column {path!r} is a variant, which cannot be given as JSON")
    if types.is_struct(type_) and isinstance(value, dict):
        return _struct(value, list(type_), f"{path}.")
    if types.is_list(type_) and isinstance(value, list):
        return [_value(item, type_.value_type, path) for item in value]
    if types.is_map(type_) and isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else map(_pair, value)
        return [
            (_value(key, type_.key_type, path), _value(item, type_.item_type, path))
            for key, item in pairs
        ]
    try:
        found = _scalar(value, type_)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"column {path!r}: {error}") from None
    if found is None:
        raise ValueError(f"column {path!r} is {type_}, which {_shown(value)} is not")
    return found


def _pair(value: object) -> tuple[object, object]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{_shown(value)} is no pair of a key and its value")
    return value[0], value[1]


def _scalar(value: object, type_: pyarrow.DataType) -> object:
    """None if the value is none of the type."""
    from pyarrow import types

    match value:
        case bool():
            return value if types.is_boolean(type_) else None
        case int() | float() if types.is_floating(type_):
            return _number(value, type_)
        case int() if types.is_integer(type_):
            return value
        case str() if types.is_string(type_):
            return value
        case str() if types.is_date(type_):
            return date.fromisoformat(value)
        case str() if types.is_timestamp(type_):
            return _time(value, has_zone=type_.tz is not None)
        case "NaN" | "Infinity" | "-Infinity" if types.is_floating(type_):
            return float(value)
        case str() | int() | float() if types.is_decimal(type_):
            return Decimal(str(value))
        case {"payload_base64": str(text)} if types.is_binary(type_):
            return base64.b64decode(text, validate=True)
        case str(text) | {"payload": str(text)} if types.is_binary(type_):
            return text.encode()
    return None


def _number(value: float, type_: pyarrow.DataType) -> float:
    """A number that is not infinite in its column, which rounds it. Arrow would make it so."""
    number = float(value)
    try:
        struct.pack(_FLOATS[type_.bit_width], number)
    except OverflowError:
        raise ValueError(f"{_shown(value)} is beyond the range of {type_}") from None
    return number


def _time(text: str, *, has_zone: bool) -> datetime:
    """A time of ISO 8601; one without a zone is UTC, where the column has zones."""
    when = datetime.fromisoformat(text)
    if has_zone:
        return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    if when.tzinfo is not None:
        raise ValueError(f"{text} has a zone, and the column has none")
    return when


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{text[:39]}…"
