"""The planner of triggers: how much of what is new one micro-batch takes.

Pure functions of positions and of commits, which never change (rule T5). How a range becomes
partitions is in ``spark_ledger.stream.plan``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from connector.options import TriggerLimits
from spark_ledger.stream.model import Segment, SegmentRange, cut
from spark_ledger.types import Dlsn

_NO_LIMIT: Final = 1 << 62
"""More rows or bytes than any stream has."""


def trigger_end(segments: Iterable[Segment], start: Dlsn, limits: TriggerLimits) -> Dlsn:
    """Where the micro-batch of a trigger ends: before the first entry that would exceed a limit.

    At least one entry is taken, even if it exceeds a limit alone. ``segments`` begins with that of
    ``start``, if that exists; it is read no further than needed.
    """
    rows_left = _NO_LIMIT if limits.max_rows is None else limits.max_rows
    bytes_left = _NO_LIMIT if limits.max_bytes is None else limits.max_bytes
    position, taken = start, 0
    for segment in segments:
        entry, slot = (position.entry, position.slot) if segment.number == start.segment else (0, 0)
        if not (entry or slot) and segment.rows <= rows_left and segment.size_bytes <= bytes_left:
            rows, size_bytes, stop = segment.rows, segment.size_bytes, len(segment.entry_rows)
        else:
            rows, size_bytes, stop = _take_entries(
                segment, (entry, slot), rows_left, bytes_left, at_least_one=taken == 0
            )
        taken, rows_left, bytes_left = taken + rows, rows_left - rows, bytes_left - size_bytes
        if stop < len(segment.entry_rows):
            return Dlsn(segment.number, stop) if stop > entry else position
        position = Dlsn(segment.number + 1)
    return position


def _take_entries(
    segment: Segment,
    start: tuple[int, int],
    rows_left: int,
    bytes_left: int,
    *,
    at_least_one: bool,
) -> tuple[int, int, int]:
    """Rows and bytes of the entries from ``start`` that fit, and the first entry that does not."""
    entry, skipped_rows = start
    rows = size_bytes = 0
    while entry < len(segment.entry_rows):
        entry_rows = segment.entry_rows[entry] - skipped_rows
        entry_bytes = segment.size_bytes * entry_rows // segment.rows
        fits = rows + entry_rows <= rows_left and size_bytes + entry_bytes <= bytes_left
        if not fits and not (at_least_one and rows == 0):
            break
        rows, size_bytes, skipped_rows = rows + entry_rows, size_bytes + entry_bytes, 0
        entry += 1
    return rows, size_bytes, entry


def has_rows(segments: Iterable[Segment], start: Dlsn, wanted: int) -> bool:
    """Whether at least ``wanted`` rows follow ``start``; reads no further than needed."""
    found = 0
    for segment in segments:
        bounds = cut(segment, start, None)
        if bounds:
            found += SegmentRange(segment, bounds[0], bounds[1], 0, 0).rows
        if found >= wanted:
            return True
    return found >= wanted
