"""Rows between two positions as ranges of segments. Pure: a function of commits alone (rule T5)."""

from __future__ import annotations

from collections.abc import Iterable

from spark_ledger.stream.model import Commit, RowInSegment, Segment, SegmentRange
from spark_ledger.types import Dlsn


def cut(
    segment: Segment, start: Dlsn | None, end: Dlsn | None
) -> tuple[RowInSegment, RowInSegment] | None:
    """The part of a segment from ``start`` to ``end`` (None: no bound), or None if it has no rows.

    A slot behind the last row of an entry means the first row of the next entry, so every DLSN
    is a position between two rows.
    """

    def row_at(position: Dlsn | None, otherwise: RowInSegment) -> RowInSegment:
        if position is None or position.segment != segment.number:
            return otherwise
        entry, slot = position.entry, position.slot
        if entry >= segment.entries:
            return (segment.entries, 0)
        return (entry, slot) if slot < segment.entry_rows[entry] else (entry + 1, 0)

    if start is not None and start.segment > segment.number:
        return None
    if end is not None and end.segment < segment.number:
        return None
    first, last = row_at(start, (0, 0)), row_at(end, (segment.entries, 0))
    return (first, last) if first < last else None


def ranges_between(commits: Iterable[Commit], start: Dlsn, end: Dlsn) -> list[SegmentRange]:
    """The rows from ``start`` (inclusive) to ``end`` (exclusive) as ranges of segments, in order.

    ``commits`` are in order and hold at least the segments between the two. The result depends on
    nothing else (rule T5): a repeated micro-batch gets the same ranges.
    """
    ranges: list[SegmentRange] = []
    for commit in commits:
        number, time_ms, row = commit.number, commit.time_ms, commit.rows_before
        for segment in commit.segments:
            if start.segment < segment.number < end.segment:  # nearly all; cut would cost more
                bounds: tuple[RowInSegment, RowInSegment] | None
                bounds = ((0, 0), (segment.entries, 0))
            else:
                bounds = cut(segment, start, end)
            if bounds is not None:
                ranges.append(SegmentRange(segment, bounds[0], bounds[1], number, time_ms, row))
            row += segment.rows
    return ranges


def size_between(first: Commit, last: Commit, start: Dlsn, end: Dlsn) -> tuple[int, int]:
    """Rows from ``start``, in one commit, to ``end``, in another or the same; and about how many
    payload bytes are read for them: whole entries. Those of the commits between are known."""
    parts = [
        *ranges_between([first], start, Dlsn(first.end_segment)),
        *ranges_between([last], Dlsn(last.first_segment), end),
    ]
    rows = last.rows_before - (first.rows_before + first.rows)
    size_bytes = last.bytes_before - (first.bytes_before + first.size_bytes)
    for part in parts:
        is_whole = part.is_whole  # nearly all; a sum over their entries takes long
        rows += part.segment.rows if is_whole else part.rows
        size_bytes += part.segment.size_bytes if is_whole else sum(part.entry_bytes)
    return rows, size_bytes
