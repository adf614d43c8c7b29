"""Arrow's generic types under one name each, and the calls that its type stubs get wrong."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import pyarrow as pa

ArrowSchema: TypeAlias = pa.Schema
"""For modules that import no library of their own."""

ArrowField: TypeAlias = "pa.Field[Any]"
"""A column of a schema. ``Any``: its type is data, read from the stream, and not known here."""

ArrowArray: TypeAlias = "pa.Array[Any]"
"""A column of a batch. ``Any``: as for ``ArrowField``."""

ArrowMap: TypeAlias = "pa.MapArray[Any, Any]"
"""A column of maps. ``Any``: as for ``ArrowField``."""

BatchOrTable: TypeAlias = pa.RecordBatch | pa.Table

Rows: TypeAlias = BatchOrTable | Iterable[BatchOrTable]
"""What an append takes: a batch, a table, or an iterable of them (a RecordBatchReader is one)."""

AsyncRows: TypeAlias = Rows | AsyncIterable[BatchOrTable]
"""What an append on a loop takes: also batches that arrive one after another."""


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of all. The stubs do not export ``pyarrow.concat_batches``."""
    return pa.lib.concat_batches(batches)


def map_type(key: ArrowField, value: ArrowField) -> pa.DataType:
    """The type of maps with these fields. The stubs of ``pyarrow.map_`` know only types."""
    return pa.map_(cast("pa.DataType", key), cast("pa.DataType", value))


class _ArrayWithType:
    """The buffers of an array under another type of the same layout."""

    def __init__(self, array: ArrowArray, type_: pa.DataType) -> None:
        self._array = array
        self._type = type_

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._type.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]


def with_type(array: ArrowArray, type_: pa.DataType) -> ArrowArray:
    """The array under a type of the same layout, without a copy and without Arrow's checks."""
    # The stubs do not know that pyarrow.array takes whatever has __arrow_c_array__.
    return pa.array(cast("list[object]", _ArrayWithType(array, type_)))
