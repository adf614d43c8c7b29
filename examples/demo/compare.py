"""Compares what was read back with what was written, row by row and in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet


@dataclass(frozen=True, slots=True)
class Comparison:
    """All zero, and ``rows`` as expected: every row is there exactly once, unchanged, in order."""

    rows: int
    lost: int
    doubled: int
    reordered: int
    changed: int

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.doubled or self.reordered or self.changed)


def read_in_stream_order(directory: Path) -> pa.Table:
    """The rows of Parquet files that a reader left, in the order of their stream positions."""
    table = pyarrow.parquet.ParquetDataset(directory).read()
    position = table["_ledger"].combine_chunks()
    for name in ("segment", "entry", "slot"):
        table = table.append_column(f"_{name}", pc.struct_field(position, name))
    return table.sort_by(
        [("_segment", "ascending"), ("_entry", "ascending"), ("_slot", "ascending")]
    )


def compare(expected: pa.Table, found: pa.Table) -> Comparison:
    """Compare all columns of all rows. ``expected`` is ordered by its column row_number."""
    numbers = found["row_number"].to_numpy()
    wanted = set(expected["row_number"].to_pylist())
    distinct = set(numbers.tolist())
    lost = len(wanted - distinct)
    doubled = len(numbers) - len(distinct)
    reordered = int((numbers[1:] < numbers[:-1]).sum()) if len(numbers) > 1 else 0
    changed = 0
    if not lost and not doubled:
        in_order = found.sort_by("row_number")
        for field in expected.schema:
            left = expected[field.name].combine_chunks()
            right = in_order[field.name].cast(field.type).combine_chunks()
            if not left.equals(right):
                pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
                changed += sum(one != other for one, other in pairs)
    return Comparison(found.num_rows, lost, doubled, reordered, changed)
