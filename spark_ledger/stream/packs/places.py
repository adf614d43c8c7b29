"""Where the rows of ranges are in a pack: which entries, and which rows of them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from spark_ledger.errors import CorruptionError
from spark_ledger.stream.format.metadata_column import PositionedBatch
from spark_ledger.stream.model import Segment, SegmentRange
from spark_ledger.stream.packs.model import Pack, PackIndex
from spark_ledger.types import Dlsn, EntryId


class Piece(NamedTuple):
    """Consecutive rows of one former entry that are in one entry of a pack."""

    range: SegmentRange
    entry: int
    """The former entry, counted from the start of its segment: that of the rows' DLSNs."""
    slot: int
    first: int
    """The row in the pack's entry that the first of them is."""
    rows: int
    row: int
    """How many rows of the stream come before the first of them."""


class PackedRange(NamedTuple):
    """Entries of a pack in one schema version, as a range, and the rows wanted of each."""

    range: SegmentRange
    pieces: dict[EntryId, list[Piece]]


def places(
    pack: Pack, index: PackIndex, parts: Sequence[SegmentRange], where: str
) -> list[PackedRange]:
    """Where the rows of ranges are that lie in a pack. Raises CorruptionError if the commits and
    the pack's index contradict each other."""
    pieces: dict[EntryId, list[Piece]] = {}
    starts = index.entry_starts
    entry = 0
    for part, number, slot, row, count in _wanted(pack, index, parts, where):
        if not starts[entry] <= row < starts[entry + 1]:
            entry = bisect_right(starts, row) - 1
        begin, left, at = row, count, slot
        while left:
            taken = min(left, starts[entry + 1] - begin)
            nth = part.segment.number - pack.first_segment
            before = part.segment_row + begin - index.segment_starts[nth]
            piece = Piece(part, number, at, begin - starts[entry], taken, before)
            pieces.setdefault(EntryId(entry), []).append(piece)
            begin, left, at = begin + taken, left - taken, at + taken
            entry += left > 0
    return [_packed(pack, index, stretch, pieces) for stretch in _stretches(index, sorted(pieces))]


def _wanted(
    pack: Pack, index: PackIndex, parts: Sequence[SegmentRange], where: str
) -> Iterator[tuple[SegmentRange, int, int, int, int]]:
    """Each former entry of the ranges: the range, its number, the slot of its first row that is
    wanted, which row of the pack that is, and how many rows are wanted."""
    for part in parts:
        segment = part.segment
        nth = segment.number - pack.first_segment
        if index.segment_rows[nth] != segment.rows:
            raise CorruptionError(
                f"{where}: segment {segment.number} has {segment.rows} rows, but the pack in "
                f"ledger {pack.ledger_id} has {index.segment_rows[nth]} of it"
            )
        row = index.segment_starts[nth]
        if part.end == (1, 0) and part.start == (0, 0):  # nearly all
            yield part, 0, 0, row, segment.entry_rows[0]
            continue
        row += sum(segment.entry_rows[: part.start[0]])
        for number in range(part.start[0], part.end[0] + (part.end[1] > 0)):
            rows = segment.entry_rows[number]
            first = part.start[1] if number == part.start[0] else 0
            end = part.end[1] if number == part.end[0] else rows
            if first < end:
                yield part, number, first, row + first, end - first
            row += rows


def _stretches(index: PackIndex, entries: Sequence[EntryId]) -> Iterator[list[EntryId]]:
    """Entries in runs of one schema version without gaps, so that each is one range."""

    def key(numbered: tuple[int, EntryId]) -> tuple[int, int]:
        return index.versions[numbered[1]], numbered[1] - numbered[0]

    for _, run in groupby(enumerate(entries), key):
        yield [entry for _, entry in run]


def _packed(
    pack: Pack, index: PackIndex, entries: list[EntryId], pieces: dict[EntryId, list[Piece]]
) -> PackedRange:
    """The range has the number of the first segment that is wanted, which errors name."""
    first, last = entries[0], entries[-1]
    entry_rows = index.entry_rows[first : last + 1]
    rows = sum(entry_rows)
    segment = Segment(
        number=pieces[first][0].range.segment.number,
        ledger_id=pack.ledger_id,
        first_entry=first,
        last_entry=last,
        rows=rows,
        size_bytes=max(1, pack.size_bytes * rows // pack.rows),
        schema_version=index.versions[first],
        entry_rows=entry_rows,
    )
    whole = SegmentRange(segment, (0, 0), (len(entry_rows), 0), 0, 0)
    return PackedRange(whole, {entry: pieces[entry] for entry in entries})


def cut_out(whole: PositionedBatch, piece: Piece) -> PositionedBatch:
    """The rows of one former entry, as if they had been read from there: also with the ledger that
    their commit names, so that what is read is a function of commits alone (rule T5)."""
    part, matching = piece.range, whole.matching
    return PositionedBatch(
        Dlsn(part.segment.number, piece.entry, piece.slot),
        part.segment.ledger_id,
        part.commit,
        part.commit_time_ms,
        whole.batch.slice(piece.first, piece.rows),
        piece.row,
        None if matching is None else matching.slice(piece.first, piece.rows),
    )
