"""The planner: packs a range of a stream into partitions, and decides what a trigger takes.

Everything here is a pure function of positions and of commits, which never change (rule T5), so a
repeated micro-batch gets exactly the partitions of the first attempt. It does not matter which
bookies are alive. Nor do fragment borders: those of an open ledger may still move while it is
recovered, and the client cuts its reads there anyway. Each partition has another ``replica_hint``,
by which the client chooses the replica that it asks first; this spreads the load.

A partition costs about 50 ms of Spark's own time whatever it holds, so ranges are packed into few
partitions of about equal size. The rows of a partition are in stream order, and so are the
partitions. A read of thousands of segments is cut only before every hundredth commit
(``plan_spans``): the driver then reads none of those between, and the tasks look theirs up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from connector.options import PlanLimits, TriggerLimits
from spark_ledger.limits.connector import (
    PARTITION_BYTES_MAX,
    PARTITION_BYTES_MIN,
    PARTITIONS_MAX,
    PARTITIONS_WANTED,
)
from spark_ledger.stream.model import CommitMark, Segment, SegmentRange, cut
from spark_ledger.types import Dlsn


@dataclass(frozen=True, slots=True)
class Plan:
    """One partition: ranges in stream order, and which replica to ask first.

    Partitions that are read at the same time differ in it, so they load different bookies.
    """

    ranges: tuple[SegmentRange, ...]
    replica_hint: int


def plan_partitions(ranges: Iterable[SegmentRange], limits: PlanLimits) -> list[Plan]:
    """Partitions for ranges that are in stream order."""
    return _pack([_Piece(part, _size_bytes(part), _entries(part)) for part in ranges], limits)


class _Piece(NamedTuple):
    """A range with its weight."""

    range: SegmentRange
    size_bytes: int
    entries: int


def _size_bytes(part: SegmentRange) -> int:
    """Payload bytes; for a whole segment, the usual case, without a sum over its entries."""
    if part.start == (0, 0) and part.end == (len(part.segment.entry_rows), 0):
        return part.segment.size_bytes
    return part.size_bytes


def _entries(part: SegmentRange) -> int:
    return part.end[0] - part.start[0] + (part.end[1] > 0)


def _split(part: SegmentRange, entry: int) -> tuple[SegmentRange, SegmentRange]:
    """The part before ``entry`` (counted from 0 in the segment) and the part from it on."""
    assert part.start < (entry, 0) < part.end, "a cut leaves two parts"
    return part._replace(end=(entry, 0)), part._replace(start=(entry, 0))


def partition_count(total_bytes: int, entries: int, limits: PlanLimits) -> int:
    """How many partitions a range of this size becomes; at least one, at most one per entry."""
    target = limits.max_bytes_per_partition
    if target is None:
        share = total_bytes // PARTITIONS_WANTED
        target = min(max(share, PARTITION_BYTES_MIN), PARTITION_BYTES_MAX)
    wanted = max(limits.min_partitions, -(-total_bytes // target))
    return max(1, min(wanted, entries, max(PARTITIONS_MAX, limits.min_partitions)))


def _pack(pieces: Sequence[_Piece], limits: PlanLimits) -> list[Plan]:
    """Lay the pieces end to end and cut at equal distances in bytes, at the next entry border."""
    total = sum(piece.size_bytes for piece in pieces)
    count = partition_count(total, sum(piece.entries for piece in pieces), limits)
    plans: list[Plan] = []
    current: list[SegmentRange] = []

    def close_partition() -> None:
        if current:
            plans.append(Plan(tuple(current), replica_hint=len(plans)))
            current.clear()

    begin, boundary = 0, 1
    next_cut = total * boundary // count
    for piece in pieces:
        end = begin + piece.size_bytes
        remaining: SegmentRange | None = piece.range
        origin = piece.range.start[0]
        while boundary < count and next_cut <= end:
            entry = origin + -(-(next_cut - begin) * piece.entries // piece.size_bytes)
            if remaining is not None and (entry, 0) >= remaining.end:
                current.append(remaining)
                remaining = None
            elif remaining is not None and (entry, 0) > remaining.start:
                before, remaining = _split(remaining, entry)
                current.append(before)
            close_partition()
            boundary += 1
            next_cut = total * boundary // count
        if remaining is not None:
            current.append(remaining)
        begin = end
    close_partition()
    return plans


class Span(NamedTuple):
    """One partition of a long read: the rows from ``start`` to ``end`` (exclusive), all in these
    commits, and which replica to ask first."""

    commits: range
    start: Dlsn
    end: Dlsn
    replica_hint: int


def plan_spans(
    bounds: tuple[CommitMark, CommitMark],
    marks: Sequence[CommitMark],
    positions: tuple[Dlsn, Dlsn],
    limits: PlanLimits,
) -> list[Span] | None:
    """Partitions for the rows between two positions, cut only where a mark is.

    ``bounds`` are the first commit and the one behind the last, ``marks`` are between. None if
    there are too few marks for as many partitions as the limits ask for, or as small ones.
    """
    first, behind = bounds
    total = behind.bytes_before - first.bytes_before
    count = partition_count(total, len(marks) + 2, limits)
    if count > len(marks) + 1:
        return None
    cuts = [first]
    for boundary in range(1, count):
        wanted = first.bytes_before + total * boundary // count
        index = bisect_left(marks, wanted, key=lambda mark: mark.bytes_before)
        if index < len(marks) and marks[index].number > cuts[-1].number:
            cuts.append(marks[index])
    sizes = [b.bytes_before - a.bytes_before for a, b in pairwise([*cuts, behind])]
    largest = limits.max_bytes_per_partition
    if len(cuts) < limits.min_partitions or (largest is not None and max(sizes) > largest):
        return None
    edges = [positions[0], *(Dlsn(cut.first_segment) for cut in cuts[1:]), positions[1]]
    numbers = [*(cut.number for cut in cuts), behind.number]
    return [
        Span(range(low, high), start, end, replica_hint)
        for replica_hint, (low, high, start, end) in enumerate(
            zip(numbers, numbers[1:], edges, edges[1:], strict=False)
        )
    ]


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
