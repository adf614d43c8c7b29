"""The key and the time column that a stream declares: which may be, and their values. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.stream import KEYS_FILTERED_MAX
from spark_ledger.stream.format.arrow_types import ArrowArray, ArrowField
from spark_ledger.stream.model import StreamConfig
from spark_ledger.stream.statistics import Bounds, EntryFacts, KeyPart, key_hash

MICROS_PER_DAY: Final = 24 * 3600 * 1_000_000

_DAYS_MAX: Final = (2**63 - 1) // MICROS_PER_DAY
"""How many days of microseconds 64 bits have, before 1970 and from then on."""


def declared_columns(
    schema: pa.Schema,
    key_columns: Sequence[str],
    time_column: str | None,
    type_name: Callable[[pa.DataType], str] = str,
) -> tuple[tuple[str, ...], str | None]:
    """The columns with the names that the schema has; names match in any case.

    ``type_name`` is what a user calls a type.

    Raises ConfigurationError if there is no such column, it is named twice, or its type cannot be
    a key or a time.
    """
    keys = tuple(_found(schema, name, "key column").name for name in key_columns)
    if len(set(keys)) < len(keys):
        raise ConfigurationError(f"key columns {', '.join(keys)}: one is named twice")
    for name in keys:
        type_ = schema.field(name).type
        if not (_is_whole(type_) or pat.is_string(type_) or pat.is_binary(type_)):
            raise ConfigurationError(
                f"key column {name!r} is {type_name(type_)}: a key is text, binary, boolean, a "
                "whole number, a date or a timestamp"
            )
    if time_column is None:
        return keys, None
    field = _found(schema, time_column, "time column")
    if not (pat.is_timestamp(field.type) or pat.is_date32(field.type)):
        raise ConfigurationError(
            f"time column {field.name!r} is {type_name(field.type)}: it must be a timestamp or a "
            "date"
        )
    return keys, field.name


def _found(schema: pa.Schema, name: str, what: str) -> ArrowField:
    same = [field for field in schema if field.name.lower() == name.lower()]
    exact = [field for field in same if field.name == name] or same
    if not exact:
        raise ConfigurationError(
            f"{what} {name!r}: the stream has no such column; it has {', '.join(schema.names)}"
        )
    return exact[0]


def _is_whole(type_: pa.DataType) -> bool:
    return (
        pat.is_integer(type_)
        or pat.is_boolean(type_)
        or pat.is_date32(type_)
        or pat.is_timestamp(type_)
    )


def plain(values: ArrowArray) -> ArrowArray:
    """The values of a key column as numbers or bytes. Text may be any bytes, as in Spark."""
    if pat.is_string(values.type):
        return values.cast(pa.binary())
    if pat.is_binary(values.type):
        return values
    if pat.is_date32(values.type) or pat.is_boolean(values.type):
        return values.cast(pa.int32()).cast(pa.int64())
    return values.cast(pa.int64())


def times_us(values: ArrowArray) -> ArrowArray:
    """The values of a time column in microseconds; of days, their beginning. Days that lie further
    off than these reach, by some 290,000 years, are the last or the first of them."""
    import pyarrow.compute as pc

    if pat.is_date32(values.type):
        days: ArrowArray = pc.min_element_wise(plain(values), _DAYS_MAX, skip_nulls=False)
        days = pc.max_element_wise(days, -_DAYS_MAX, skip_nulls=False)
        return pc.multiply(days, pa.scalar(MICROS_PER_DAY, pa.int64()))
    return plain(values)


class Describer:
    """Tells of batches what goes into the statistics of their segment (rule T28)."""

    def __init__(self, config: StreamConfig) -> None:
        self._keys = list(config.key_columns)
        self._time = config.time_column

    def __call__(self, batch: pa.RecordBatch) -> EntryFacts:
        times = None if self._time is None else _bounds(times_us(batch.column(self._time)))
        if not self._keys:
            return EntryFacts(times, None, frozenset())
        columns = [plain(batch.column(name)) for name in self._keys]
        is_ordered = len(columns) == 1 and not pat.is_binary(columns[0].type)
        keys = _bounds(columns[0]) if is_ordered else None
        return EntryFacts(times, keys, _hashes(columns))


def _bounds(values: ArrowArray) -> Bounds | None:
    import pyarrow.compute as pc

    found: Any = pc.min_max(values).as_py()
    return None if found["min"] is None else (found["min"], found["max"])


def _hashes(columns: list[ArrowArray]) -> frozenset[int] | None:
    """A hash for each key without null; None if there are too many."""
    import pyarrow.compute as pc

    # No group_by: it takes Arrow's threads, and this runs in forked workers of Spark.
    parts = [column.unique() for column in columns]
    sizes = [len(part) for part in parts]
    if max(sizes) > KEYS_FILTERED_MAX + 1 or math.prod(sizes) >= 2**62:  # one may be null
        return None
    numbers: ArrowArray = pa.repeat(pa.scalar(0, pa.int64()), len(columns[0]))
    for column, part in zip(columns, parts, strict=True):
        place = pc.index_in(column, value_set=part).cast(pa.int64())
        numbers = pc.add(pc.multiply(numbers, pa.scalar(len(part), pa.int64())), place)
        distinct = numbers.unique()
        if len(distinct) > len(parts) * (KEYS_FILTERED_MAX + 1):
            return None
    keys = []
    codes = [number or 0 for number in distinct.to_pylist()]
    for number in codes:
        key: list[KeyPart] = []
        for part in reversed(parts):
            number, nth = divmod(number, len(part))
            key.insert(0, part[nth].as_py())
        if None not in key:
            keys.append(key_hash(key))
    return frozenset(keys) if len(keys) <= KEYS_FILTERED_MAX else None
