"""Finds the rows that a reader wants: segments that cannot have any are skipped, and the rows of
the others are looked at one by one (rules T29 and T30). Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from spark_ledger.errors import ConfigurationError
from spark_ledger.stream.declared import plain, times_us
from spark_ledger.stream.format.arrow_types import ArrowArray
from spark_ledger.stream.model import Segment, StreamConfig
from spark_ledger.stream.statistics import key_hash
from spark_ledger.stream.where import KeyValue, Where


class RowFilter:
    """A condition on the rows of one stream. Raises ConfigurationError if the stream does not
    declare what the condition needs, or the key does not fit its columns; ``type_name`` is what a
    user calls their types."""

    def __init__(
        self,
        condition: Where,
        config: StreamConfig,
        type_name: Callable[[pa.DataType], str] = str,
    ) -> None:
        self._where = condition
        self._time = config.time_column
        self._key: list[tuple[str, ArrowArray]] = []
        if (condition.start_us, condition.end_us) != (None, None) and self._time is None:
            raise ConfigurationError(
                f"stream {config.name!r} declares no time column, so its rows have no event time: "
                "filter on a column after the read, or make a stream with one (timeColumn)"
            )
        if condition.key is not None:
            self._key = _key_values(condition.key, config, type_name)
        parts = [plain(value)[0].as_py() for _, value in self._key]
        self._hash = key_hash(parts) if parts else None
        self._number = parts[0] if len(parts) == 1 and isinstance(parts[0], int) else None

    def may_match(self, segment: Segment) -> bool:
        """False only if no row of the segment can be wanted (rule T29)."""
        known, wanted = segment.statistics, self._where
        if known is None:
            return True
        if known.times is not None:
            if wanted.start_us is not None and known.times[1] < wanted.start_us:
                return False
            if wanted.end_us is not None and known.times[0] >= wanted.end_us:
                return False
        if self._hash is None:
            return True
        if known.keys is not None and self._number is not None:
            low, high = known.keys
            if not low <= self._number <= high:
                return False
        return not known.key_filter or known.may_have_key(self._hash)

    def matching(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows of a batch, in the columns as they are stored, are wanted. None is null."""
        import pyarrow.compute as pc

        wanted = self._where
        tests: list[ArrowArray] = []
        if wanted.start_us is not None or wanted.end_us is not None:
            assert self._time is not None, "checked when it was made"
            times = times_us(batch.column(self._time))
            if wanted.start_us is not None:
                tests.append(pc.greater_equal(times, pa.scalar(wanted.start_us, pa.int64())))
            if wanted.end_us is not None:
                tests.append(pc.less(times, pa.scalar(wanted.end_us, pa.int64())))
        tests += [pc.equal(batch.column(name), value[0]) for name, value in self._key]
        found: Any = tests[0]
        for test in tests[1:]:
            found = pc.and_(found, test)
        rows: pa.BooleanArray = pc.fill_null(found, False)
        return rows


def _key_values(
    key: KeyValue | tuple[tuple[str, KeyValue], ...],
    config: StreamConfig,
    type_name: Callable[[pa.DataType], str],
) -> list[tuple[str, ArrowArray]]:
    """The value of each key column, as an array of one in the column's type."""
    columns = config.key_columns
    if not columns:
        raise ConfigurationError(
            f"stream {config.name!r} declares no key columns: filter on a column after the read, "
            "or make a stream with some (keyColumns)"
        )
    if not isinstance(key, tuple):
        key = ((columns[0], key),) if len(columns) == 1 else ()
    given = {name.lower(): value for name, value in key}
    if set(given) != {name.lower() for name in columns} or len(given) < len(key):
        raise ConfigurationError(
            f"stream {config.name!r}: a key names each of its key columns once, and nothing else: "
            f"{', '.join(columns)}"
        )
    schema, found = config.schemas[0], []
    for name in columns:
        type_, value = schema.field(name).type, given[name.lower()]
        made = _one(value, type_)
        if made is None:
            raise ConfigurationError(
                f"stream {config.name!r}: key column {name!r} is {type_name(type_)}, which "
                f"{value!r} is not; a key is not null"
            )
        found.append((name, made))
    return found


def _one(value: KeyValue, type_: pa.DataType) -> ArrowArray | None:
    """The value as an array of one; None if it is none of the type, or null."""
    if value is None:
        return None
    try:
        if isinstance(value, str) and pa.types.is_binary(type_):
            value = value.encode()
        if isinstance(value, str) and pa.types.is_timestamp(type_):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime) and value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        if isinstance(value, str) and not pa.types.is_string(type_):
            cast: ArrowArray = pa.array([value]).cast(type_)
            return cast
        return pa.array([value], type_)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
