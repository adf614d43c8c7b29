"""The planner of triggers: how much of what is new one micro-batch takes.

Pure functions of positions and of commits, which never change (rule T5). How a range becomes
partitions is in ``spark_ledger.stream.plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from connector.options import TriggerLimits
from spark_ledger.stream.model import Segment, SegmentRange
from spark_ledger.stream.ranges import cut
from spark_ledger.types import Dlsn

_NO_LIMIT: Final = 1 << 62
"""More rows or bytes than any stream has."""


def trigger_end(segments: Iterable[Segment], start: Dlsn, limits: TriggerLimits) -> Dlsn:
    """Where the micro-batch of a trigger ends: before the first entry that would exceed a limit.

    At least one entry is taken, even if it exceeds a limit alone. ``segments`` begins with that of
    ``start``, if that exists; it is read no further than needed.
    """
    return _take(segments, start, limits, at_least_one=True).end


class _Taken(NamedTuple):
    """How far a take came, and what it took."""

    end: Dlsn
    rows: int = 0
    size_bytes: int = 0


def _take(
    segments: Iterable[Segment], start: Dlsn, limits: TriggerLimits, *, at_least_one: bool
) -> _Taken:
    rows_left = rows_max = _NO_LIMIT if limits.max_rows is None else limits.max_rows
    bytes_left = bytes_max = _NO_LIMIT if limits.max_bytes is None else limits.max_bytes
    position, taken = start, 0
    for segment in segments:
        entry, slot = (position.entry, position.slot) if segment.number == start.segment else (0, 0)
        if not (entry or slot) and segment.rows <= rows_left and segment.size_bytes <= bytes_left:
            rows, size_bytes, stop = segment.rows, segment.size_bytes, len(segment.entry_rows)
        else:
            rows, size_bytes, stop = _take_entries(
                segment,
                (entry, slot),
                rows_left,
                bytes_left,
                at_least_one=at_least_one and taken == 0,
            )
        taken, rows_left, bytes_left = taken + rows, rows_left - rows, bytes_left - size_bytes
        if stop < len(segment.entry_rows):
            if stop > entry:
                position = Dlsn(segment.number, stop)
            break
        position = Dlsn(segment.number + 1)
    return _Taken(position, rows_max - rows_left, bytes_max - bytes_left)


class Backlog(NamedTuple):
    """What is new in one of several streams: from ``start`` to ``end``. ``segments`` gives those
    from a position on, and is read no further than needed."""

    start: Dlsn
    end: Dlsn
    segments: Callable[[Dlsn], Iterable[Segment]]


def shared_ends(backlogs: Sequence[Backlog], limits: TriggerLimits) -> list[Dlsn]:
    """Where each of several streams ends in a micro-batch whose limits they share.

    Each gets an equal part; what one does not need goes to the others. What is left after that, as
    entries are not cut, goes to the first that has an entry of this size. All together keep the
    limits, but for the first entry of all, which is taken whatever its size. So who is first now
    should be last the next time: a stream whose entries are larger than its part is served too.
    """
    ends = [each.start for each in backlogs]
    waiting = [n for n, each in enumerate(backlogs) if each.start < each.end]
    rows_left, bytes_left, taken = limits.max_rows, limits.max_bytes, False
    equal_parts = True
    while waiting:
        moved = False
        for turn, number in enumerate(list(waiting)):
            if taken and ((rows_left is not None and rows_left <= 0) or bytes_left == 0):
                return ends
            parts = len(waiting) - turn if equal_parts else 1
            part = replace(
                limits,
                max_rows=None if rows_left is None else rows_left // parts,
                max_bytes=None if bytes_left is None else bytes_left // parts,
            )
            backlog, start = backlogs[number], ends[number]
            took = _take(backlog.segments(start), start, part, at_least_one=not taken)
            end = min(took.end, backlog.end)
            if end > start:
                moved = taken = True
                ends[number] = end
                rows_left = None if rows_left is None else max(0, rows_left - took.rows)
                bytes_left = None if bytes_left is None else max(0, bytes_left - took.size_bytes)
        if not moved and not equal_parts:
            return ends  # no next entry fits into all that is left
        # A round in which no stream moved: their entries are larger than an equal part of what is
        # left. So the next round offers all of it to each, first come, first served.
        equal_parts = moved
        waiting = [n for n in waiting if ends[n] < backlogs[n].end]
    return ends


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
    return rows_after(segments, start, wanted) >= wanted


def rows_after(segments: Iterable[Segment], start: Dlsn, wanted: int) -> int:
    """How many rows follow ``start``; reads no further than to find as many as are wanted."""
    found = 0
    for segment in segments:
        bounds = cut(segment, start, None)
        if bounds:
            found += SegmentRange(segment, bounds[0], bounds[1], 0, 0).rows
        if found >= wanted:
            break
    return found
