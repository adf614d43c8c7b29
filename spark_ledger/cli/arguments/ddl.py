"""Columns as text, ``"id bigint not null, price decimal(10,2)"``, made into an Arrow schema."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from spark_ledger.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow

_COLUMN: Final = re.compile(
    r"\s*(?P<name>\w+)\s+(?P<type>\w+)\s*"
    r"(?:\(\s*(?P<precision>\d{1,9})\s*(?:,\s*(?P<scale>\d{1,9})\s*)?\))?\s*"
    r"(?P<required>not\s+null)?\s*",
    re.IGNORECASE,
)
_COMMA: Final = re.compile(r",(?![^(]*\))")  # not the one inside decimal(10,2)

# Spark's names and Arrow's, to the Arrow function that makes the type.
_PLAIN_TYPES: Final = {
    "boolean": "bool_",
    "bool": "bool_",
    "byte": "int8",
    "tinyint": "int8",
    "int8": "int8",
    "short": "int16",
    "smallint": "int16",
    "int16": "int16",
    "int": "int32",
    "integer": "int32",
    "int32": "int32",
    "long": "int64",
    "bigint": "int64",
    "int64": "int64",
    "float": "float32",
    "real": "float32",
    "float32": "float32",
    "double": "float64",
    "float64": "float64",
    "string": "string",
    "binary": "binary",
    "date": "date32",
}
_VALID: Final = f"{', '.join([*_PLAIN_TYPES, 'decimal(p,s)', 'timestamp', 'timestamp_ntz'])}"


def parse_columns(text: str) -> pyarrow.Schema:
    """The schema. Raises ConfigurationError naming the column that cannot be understood."""
    import pyarrow

    fields = []
    for part in _COMMA.split(text):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise ConfigurationError(
                f"column {part.strip()!r}: write NAME TYPE, or NAME TYPE NOT NULL"
            )
        fields.append(
            pyarrow.field(match["name"], _data_type(match), nullable=match["required"] is None)
        )
    names = [field.name for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"columns named twice: {', '.join(twice)}")
    return pyarrow.schema(fields)


def _data_type(match: re.Match[str]) -> pyarrow.DataType:
    import pyarrow

    kind, precision, scale = match["type"].lower(), match["precision"], match["scale"]
    if kind == "decimal":
        p, s = int(precision or 10), int(scale or 0)
        if not 1 <= p <= 38 or s > p:
            raise ConfigurationError(
                f"column {match['name']!r}: decimal({p},{s}) needs 38 >= p >= s, p >= 1"
            )
        return pyarrow.decimal128(p, s)
    if precision is None:
        if kind == "timestamp":
            return pyarrow.timestamp("us", tz="UTC")
        if kind == "timestamp_ntz":
            return pyarrow.timestamp("us")
        if kind in _PLAIN_TYPES:
            made: pyarrow.DataType = getattr(pyarrow, _PLAIN_TYPES[kind])()
            return made
    raise ConfigurationError(
        f"column {match['name']!r}: unknown type {match['type']!r}; valid are {_VALID}"
    )
