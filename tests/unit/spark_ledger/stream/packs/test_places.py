"""Every part of every segment is found in its pack: which rows, under which positions."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

import pytest

from spark_ledger.stream.model import Segment, SegmentRange
from spark_ledger.stream.packs.model import Pack, PackIndex
from spark_ledger.stream.packs.places import places
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.world import loose

FORMER = [(3, 1, 2), (4,), (1, 2, 5, 1), (2, 2), (6,)]
"""The rows of the entries of segments 20 and following."""

FIRST = 20
ROWS_BEFORE = 1000
"""Of the stream, before the first of them."""

TOTAL = sum(map(sum, FORMER))


def segments() -> list[Segment]:
    return [loose(*rows).placed(FIRST + n) for n, rows in enumerate(FORMER)]


def rows_of(segment: Segment) -> list[tuple[int, int, int]]:
    """All rows of a segment as positions."""
    return [
        (segment.number, entry, slot)
        for entry, count in enumerate(segment.entry_rows)
        for slot in range(count)
    ]


EVERY = [row for each in segments() for row in rows_of(each)]
"""All rows of the pack, in order."""

BEGINS = dict(zip(range(FIRST, FIRST + 5), accumulate(map(sum, FORMER), initial=0), strict=False))


def between(first: int, end: int) -> list[SegmentRange]:
    """The ranges of rows ``first`` .. ``end - 1`` of the pack, as plans have them: an end behind
    the last row of an entry is the next entry."""
    parts = []
    for segment in segments():
        begin = BEGINS[segment.number]
        low, high = max(first, begin), min(end, begin + segment.rows)
        if low >= high:
            continue
        _, entry, slot = EVERY[high - 1]
        is_last = slot + 1 == segment.entry_rows[entry]
        stop = (entry + 1, 0) if is_last else (entry, slot + 1)
        start = EVERY[low][1:]
        parts.append(SegmentRange(segment, start, stop, 7, 70, ROWS_BEFORE + begin))
    return parts


@pytest.mark.parametrize(
    "entry_rows",
    [(TOTAL,), (1,) * TOTAL, (10, 10, TOTAL - 20), (1, TOTAL - 1), (TOTAL - 1, 1), (5,) * 5 + (4,)],
)
def test_rows_of_each_range_are_found_once_in_order_and_with_their_positions(
    entry_rows: tuple[int, ...],
) -> None:
    draw = random.Random(1)
    index = PackIndex(entry_rows, [0] * len(entry_rows), [sum(rows) for rows in FORMER])
    pack = Pack(0, 5, FIRST, FIRST + 5, LedgerId(9), len(entry_rows), TOTAL, 100 * TOTAL)
    index.check(pack, "stream 's'")
    spans = [(low, high) for low in range(TOTAL) for high in range(low + 1, TOTAL + 1)]
    for first, end in draw.sample(spans, 150):
        found: list[tuple[int, int, int]] = []
        for packed in places(pack, index, between(first, end), "stream 's'"):
            segment = packed.range.segment
            assert segment.ledger_id == 9 and packed.range.is_whole
            assert segment.entry_rows == entry_rows[segment.first_entry : segment.last_entry + 1]
            assert segment.size_bytes == 100 * segment.rows
            for entry in range(segment.first_entry, segment.last_entry + 1):
                starts_at = index.entry_starts[entry]
                for piece in packed.pieces.pop(entry):  # type: ignore[call-overload]
                    assert 0 <= piece.first < piece.first + piece.rows <= entry_rows[entry]
                    place = (piece.range.segment.number, piece.entry, piece.slot)
                    rows = EVERY[starts_at + piece.first :][: piece.rows]
                    assert rows[0] == place and {row[:2] for row in rows} == {place[:2]}
                    assert piece.row == ROWS_BEFORE + starts_at + piece.first
                    found += rows
            assert not packed.pieces, "of these entries only"
        assert found == EVERY[first:end], (first, end)


def test_range_of_two_parts_of_a_segment_has_no_row_between_them() -> None:
    """As two partitions of a plan that share an entry of the pack."""
    index = PackIndex([12, TOTAL - 12], [0, 0], [sum(rows) for rows in FORMER])
    pack = Pack(0, 5, FIRST, FIRST + 5, LedgerId(9), 2, TOTAL, TOTAL)
    parts = [*between(1, 4), *between(8, 14)]
    (packed,) = places(pack, index, parts, "stream 's'")
    pieces = [piece for entry in sorted(packed.pieces) for piece in packed.pieces[entry]]
    for one, other in pairwise(pieces):
        assert (one.range.segment.number, one.entry, one.slot) < (
            other.range.segment.number,
            other.entry,
            other.slot,
        )
    assert sum(piece.rows for piece in pieces) == 9
    assert packed.range.segment.number == FIRST
