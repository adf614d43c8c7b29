"""Positions, ranges and values of a stream, against naive row-by-row models."""

from __future__ import annotations

import random

import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.stream.model import (
    Commit,
    Segment,
    SegmentRange,
    check_stream_name,
    cut,
    parse_compression,
    position_after_rows,
    ranges_between,
)
from spark_ledger.types import Dlsn, EntryId, LedgerId


def segment(number: int, entry_rows: tuple[int, ...], first_entry: int = 5) -> Segment:
    return Segment(
        number=number,
        ledger_id=LedgerId(7),
        first_entry=EntryId(first_entry),
        last_entry=EntryId(first_entry + len(entry_rows) - 1),
        rows=sum(entry_rows),
        size_bytes=100 * len(entry_rows),
        schema_version=0,
        entry_rows=entry_rows,
    )


def rows_of(part: Segment) -> list[Dlsn]:
    return [
        Dlsn(part.number, entry, slot)
        for entry, count in enumerate(part.entry_rows)
        for slot in range(count)
    ]


def rows_in(place: SegmentRange) -> list[Dlsn]:
    start = Dlsn(place.segment.number, *place.start)
    end = Dlsn(place.segment.number, *place.end)
    return [row for row in rows_of(place.segment) if start <= row < end]


def test_ranges_between_cuts_exactly_the_rows_of_the_positions() -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for _ in range(300):
        segments = [
            segment(n, tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 4)))) for n in range(3)
        ]
        commit = Commit(4, 9, 0, tuple(segments), "s", 1)
        start, end = (
            Dlsn(rng.randint(0, 3), rng.randint(0, 5), rng.randint(0, 5)) for _ in range(2)
        )
        ranges = ranges_between([commit], start, end)
        found = [row for place in ranges for row in rows_in(place)]
        expected = [row for part in segments for row in rows_of(part) if start <= row < end]
        assert found == expected, f"seed {seed}"
        for place in ranges:
            touched = {row.entry for row in rows_in(place)}
            assert place.rows == len(rows_in(place)), f"seed {seed}"
            assert place.first_entry == 5 + min(touched), f"seed {seed}"
            assert place.last_entry == 5 + max(touched), f"seed {seed}"
            assert 1 <= place.size_bytes <= place.segment.size_bytes
            assert (place.commit, place.commit_time_ms) == (4, 9)


def test_a_slot_behind_the_last_row_means_the_next_entry() -> None:
    assert cut(segment(0, (2, 2)), Dlsn(0, 0, 2), None) == ((1, 0), (2, 0))
    assert cut(segment(0, (2, 2)), Dlsn(0, 2, 0), None) == ()


def test_position_after_rows_walks_over_entries() -> None:
    part = segment(3, (2, 3, 1))
    rows = [*rows_of(part), Dlsn(4, 0, 0)]
    for first in range(6):
        start = rows[first]
        for step in range(8):
            expected = rows[min(first + step, 6)]
            assert position_after_rows(part, (start.entry, start.slot), step) == expected


def test_a_segment_with_contradicting_fields_cannot_be_made() -> None:
    with pytest.raises(AssertionError, match="row counts"):
        Segment(0, LedgerId(1), EntryId(0), EntryId(1), 3, 10, 0, (3,))
    with pytest.raises(AssertionError, match="add up"):
        Segment(0, LedgerId(1), EntryId(0), EntryId(0), 3, 10, 0, (2,))


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "ü", "x" * 201, "-a", None])
def test_bad_stream_names_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="stream name"):
        check_stream_name(name)


def test_names_of_ordinary_streams_are_fine() -> None:
    for name in ("flights", "a", "2024.flights-v2_b", "x" * 200):
        assert check_stream_name(name) == name


def test_an_unknown_compression_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="none, lz4, zstd"):
        parse_compression("gzip")
    assert parse_compression("LZ4").value == "lz4"
