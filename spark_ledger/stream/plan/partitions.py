"""Packs a range of a stream into partitions. Pure.

Everything here is a function of positions and of commits, which never change (rule T5), so a
repeated micro-batch gets exactly the partitions of the first attempt. It does not matter which
bookies are alive, nor where borders of fragments are: those of an open ledger may still move while
it is recovered (rule T20).

A partition costs about 50 ms of Spark's own time whatever it holds, so ranges are packed into few
partitions of about equal size. The rows of a partition are in stream order, and so are the
partitions. A read of thousands of segments is cut only before every hundredth commit
(``plan_spans``): the driver then reads none of those between, and the tasks look theirs up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from spark_ledger.limits.connector import (
    PARTITION_BYTES_MAX,
    PARTITION_BYTES_MIN,
    PARTITIONS_MAX,
    PARTITIONS_WANTED,
)
from spark_ledger.stream.model import CommitMark, SegmentRange
from spark_ledger.stream.plan.balance import FirstReads
from spark_ledger.types import Dlsn


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How a range becomes Spark partitions. ``max_bytes_per_partition`` None: chosen by size."""

    min_partitions: int = 1
    max_bytes_per_partition: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One partition: ranges in stream order, and which bookies to ask first.

    ``replica_hint`` is the number of the partition; readers turn by it where ``reads`` does not
    say whom to ask.
    """

    ranges: tuple[SegmentRange, ...]
    replica_hint: int
    reads: FirstReads = field(default_factory=FirstReads)

    @property
    def rows(self) -> int:
        """How many rows the partition has."""
        return sum(part.rows for part in self.ranges)

    @property
    def size_bytes(self) -> int:
        """About how many payload bytes are read for it: whole entries, also for a few rows."""
        return sum(sum(part.entry_bytes) for part in self.ranges)


def plan_partitions(ranges: Iterable[SegmentRange], limits: PlanLimits) -> list[Plan]:
    """Partitions for ranges that are in stream order."""
    packer = _Packer([_Piece(part, _size_bytes(part), _entries(part)) for part in ranges], limits)
    return packer.plans()


class _Piece(NamedTuple):
    """A range with its weight."""

    range: SegmentRange
    size_bytes: int
    entries: int


def _size_bytes(part: SegmentRange) -> int:
    """Payload bytes; for a whole segment, the usual case, without a sum over its entries."""
    if part.is_whole:
        return part.segment.size_bytes
    return sum(part.entry_bytes)


def _entries(part: SegmentRange) -> int:
    return part.end[0] - part.start[0] + (part.end[1] > 0)


def _split(part: SegmentRange, entry: int) -> tuple[SegmentRange, SegmentRange]:
    """The part before ``entry`` (counted from 0 in the segment) and the part from it on."""
    assert part.start < (entry, 0) < part.end, "a cut leaves two parts"
    return part._replace(end=(entry, 0)), part._replace(start=(entry, 0))


def partition_count(total_bytes: int, entries: int, limits: PlanLimits) -> int:
    """How many partitions a range of this size becomes; at least one, at most one per entry.

    Where sizes of entries differ it may take more, so that none exceeds
    ``max_bytes_per_partition``.
    """
    target = limits.max_bytes_per_partition
    if target is None:
        share = total_bytes // PARTITIONS_WANTED
        target = min(max(share, PARTITION_BYTES_MIN), PARTITION_BYTES_MAX)
    wanted = max(limits.min_partitions, -(-total_bytes // target))
    return max(1, min(wanted, entries, max(PARTITIONS_MAX, limits.min_partitions)))


class _Packer:
    """Lays pieces end to end, and cuts between entries so that the parts are about equal.

    Before each entry it is decided anew whether a partition ends: if the entry would take it over
    the limit, if it lies nearer to its share of what is left without the entry than with it, or if
    the entries that are left are needed for the partitions that are still to come.
    """

    def __init__(self, pieces: Sequence[_Piece], limits: PlanLimits) -> None:
        self._pieces = pieces
        self._bytes_left = sum(piece.size_bytes for piece in pieces)
        self._entries_left = sum(piece.entries for piece in pieces)
        self._parts_left = partition_count(self._bytes_left, self._entries_left, limits)
        largest = limits.max_bytes_per_partition
        if largest is None or -(-self._bytes_left // largest) > PARTITIONS_MAX:
            largest = self._bytes_left  # partitions grow rather than become too many
        self._largest = largest
        self._size = 0
        """Bytes of the current partition; those and ``_bytes_left`` are all that is not closed."""
        self._entries = 0
        self._current: list[SegmentRange] = []
        self._plans: list[Plan] = []

    def plans(self) -> list[Plan]:
        """The partitions. To be called once."""
        for piece in self._pieces:
            if self._holds_whole(piece):
                self._take(piece.range, piece.size_bytes, piece.entries)
            else:
                self._take_by_entries(piece.range)
        self._close()
        return self._plans

    def _holds_whole(self, piece: _Piece) -> bool:
        """Whether no cut falls into a piece or before it, found without looking at its entries."""
        size = self._size + piece.size_bytes
        is_small = size <= self._largest and size * self._parts_left <= self._bytes_left
        return is_small and self._entries_left - piece.entries >= self._parts_left - 1

    def _take_by_entries(self, part: SegmentRange) -> None:
        for entry, size_bytes in enumerate(part.entry_bytes, start=part.start[0]):
            if self._is_cut_before(size_bytes):
                if (entry, 0) > part.start:
                    before, part = _split(part, entry)
                    self._current.append(before)
                self._close()
            self._size += size_bytes
            self._entries += 1
            self._entries_left -= 1
        self._current.append(part)

    def _is_cut_before(self, size_bytes: int) -> bool:
        if self._entries == 0:
            return False
        if self._size + size_bytes > self._largest:
            return True
        if self._parts_left == 1:
            return False
        if self._entries_left < self._parts_left:
            return True
        return (2 * self._size + size_bytes) * self._parts_left > 2 * self._bytes_left

    def _take(self, part: SegmentRange, size_bytes: int, entries: int) -> None:
        self._current.append(part)
        self._size += size_bytes
        self._entries += entries
        self._entries_left -= entries

    def _close(self) -> None:
        if self._current:
            self._plans.append(Plan(tuple(self._current), len(self._plans)))
        self._bytes_left -= self._size
        assert self._bytes_left >= 0, "parts add up to the whole"
        self._parts_left = max(1, self._parts_left - 1)
        self._current, self._size, self._entries = [], 0, 0


class Span(NamedTuple):
    """One partition of a long read: the rows from ``start`` to ``end`` (exclusive), all in these
    commits, and which replica to ask first: by ``reads``, if that says anything."""

    commits: range
    start: Dlsn
    end: Dlsn
    replica_hint: int
    reads: FirstReads = FirstReads()


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
