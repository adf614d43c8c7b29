"""The ``_ledger`` column: the position of each row of a batch in the stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from spark_ledger.types import Dlsn, LedgerId

LEDGER_COLUMN: Final = "_ledger"

_kept: pa.Int64Array | None = None
"""The integers from 0 on, as many as were needed so far. Made on first use: with the first array
that Arrow makes from Python values it loads pandas, which takes longer than all of our imports."""

_KEPT_MIN: Final = 16_384
"""How many integers are made at first: more than most batches have rows."""

_KEPT_MAX: Final = 262_144
"""Beyond these, integers are added up from those that are kept."""


class PositionedBatch(NamedTuple):
    """Consecutive rows of one entry. ``position`` is that of the first."""

    position: Dlsn
    ledger_id: LedgerId
    commit: int
    commit_time_ms: int
    batch: pa.RecordBatch
    row: int = 0
    """How many rows of the stream come before the first of these."""
    matching: pa.BooleanArray | None = None
    """Which of them the reader wants; None: all. Positions count all of them."""

    def wanted(self, batch: pa.RecordBatch | None = None) -> pa.RecordBatch:
        """The rows that the reader wants, of this batch or of one made from it row by row."""
        whole = self.batch if batch is None else batch
        return whole if self.matching is None else whole.filter(self.matching)

    def in_parts(self, rows: int) -> Iterator[PositionedBatch]:
        """The same rows in their order, up to so many at once. Nothing is copied."""
        for first in range(0, self.batch.num_rows, rows):
            yield self._replace(
                position=self.position._replace(slot=self.position.slot + first),
                batch=self.batch.slice(first, rows),
                row=self.row + first,
                matching=None if self.matching is None else self.matching.slice(first, rows),
            )


def ledger_type(*, names_stream: bool = False) -> pa.StructType:
    """The Arrow type of the column: a struct, none of whose fields is ever null. With
    ``names_stream`` it says which of several streams a row is of."""
    return pa.struct(
        [
            *([pa.field("stream", pa.string(), nullable=False)] if names_stream else []),
            pa.field("segment", pa.int64(), nullable=False),
            pa.field("entry", pa.int64(), nullable=False),
            pa.field("slot", pa.int64(), nullable=False),
            pa.field("ledger_id", pa.int64(), nullable=False),
            pa.field("commit", pa.int64(), nullable=False),
            pa.field("commit_time", pa.timestamp("us", tz="UTC"), nullable=False),
        ]
    )


def ledger_array(positioned: PositionedBatch, stream: str | None = None) -> pa.StructArray:
    """The column's values for a batch; with the name of its stream where there are several."""
    rows, position = positioned.batch.num_rows, positioned.position
    type_ = ledger_type(names_stream=stream is not None)
    time_type = type_.field("commit_time").type
    time_us = pa.scalar(positioned.commit_time_ms * 1000, pa.int64()).cast(time_type)
    return pa.StructArray.from_arrays(
        [
            *([] if stream is None else [pa.repeat(pa.scalar(stream), rows)]),
            pa.repeat(pa.scalar(position.segment, pa.int64()), rows),
            pa.repeat(pa.scalar(position.entry, pa.int64()), rows),
            numbers(position.slot, position.slot + rows),
            pa.repeat(pa.scalar(positioned.ledger_id, pa.int64()), rows),
            pa.repeat(pa.scalar(positioned.commit, pa.int64()), rows),
            pa.repeat(time_us, rows),
        ],
        fields=list(type_),
    )


def numbers(first: int, end: int) -> pa.Int64Array:
    """The integers ``first`` .. ``end - 1``: a slice of one array that is kept, because to make it
    costs more than the rest of the column."""
    global _kept
    if first > 0 and end > _KEPT_MAX:
        import pyarrow.compute as pc

        return pc.add(numbers(0, end - first), pa.scalar(first, pa.int64()))
    if _kept is None or len(_kept) < end:
        known = 0 if _kept is None else len(_kept)
        _kept = pa.array(range(max(end, 2 * known, _KEPT_MIN)), pa.int64())
    return _kept.slice(first, end - first)
