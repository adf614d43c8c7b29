"""Positions, ranges and values of a stream, against naive row-by-row models."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.stream.model import (
    ENTRY_BYTES_MIN,
    SINK_ID_CHARS_MAX,
    Commit,
    Compression,
    Head,
    Segment,
    SegmentRange,
    StreamConfig,
    check_sink_id,
    check_stream_name,
    check_transaction_id,
    parse_compression,
    segment_error,
)
from spark_ledger.stream.ranges import cut, ranges_between
from spark_ledger.types import Dlsn, EntryId, LedgerId, Quorums
from tests.unit.spark_ledger.stream.world import loose


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


def test_cut_slot_behind_the_last_row_means_the_next_entry() -> None:
    assert cut(segment(0, (2, 2)), Dlsn(0, 0, 2), None) == ((1, 0), (2, 0))
    assert cut(segment(0, (2, 2)), Dlsn(0, 2, 0), None) is None


def test_a_segment_with_contradicting_fields_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="row counts"):
        Segment(0, LedgerId(1), EntryId(0), EntryId(1), 3, 10, 0, (3,))
    with pytest.raises(ValueError, match="add up"):
        Segment(0, LedgerId(1), EntryId(0), EntryId(0), 3, 10, 0, (2,))


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "ü", "x" * 201, "-a", None])
def test_bad_stream_names_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="stream name"):
        check_stream_name(name)


def test_ordinary_stream_names_are_accepted() -> None:
    for name in ("flights", "a", "2024.flights-v2_b", "x" * 200):
        assert check_stream_name(name) == name


def test_an_unknown_compression_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="none, lz4, zstd"):
        parse_compression("gzip")
    assert parse_compression("LZ4").value == "lz4"


GOOD = {
    "ledger_id": 0,
    "first_entry": 0,
    "last_entry": 1,
    "rows": 3,
    "size_bytes": 1,
    "schema_version": 0,
    "entry_rows": (1, 2),
}


def reason_for(**changes: Any) -> str | None:
    fields: dict[str, Any] = GOOD | changes
    ids = [fields.pop(name) for name in ("ledger_id", "first_entry", "last_entry")]
    return segment_error(*ids, **fields)


def test_smallest_segment_is_valid() -> None:
    assert reason_for() is None
    assert reason_for(last_entry=0, rows=1, entry_rows=(1,)) is None
    assert reason_for(first_entry=7, last_entry=8) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ledger_id": -1}, "ledger -1"),
        ({"first_entry": -1}, "entries -1..1"),
        ({"first_entry": 2}, "entries 2..1"),
        ({"last_entry": 2}, "2 row counts for entries 0..2"),
        ({"last_entry": 0}, "2 row counts for entries 0..0"),
        ({"entry_rows": (0, 3)}, "add up"),
        ({"entry_rows": (-1, 4)}, "add up"),
        ({"rows": 2}, "add up"),
        ({"rows": 4}, "add up"),
        ({"size_bytes": 0}, "0 bytes"),
        ({"schema_version": -1}, "schema version -1"),
    ],
)
def test_segment_error_names_the_contradiction(changes: dict[str, Any], reason: str) -> None:
    found = reason_for(**changes)
    assert found is not None
    assert reason in found


def config(**changes: Any) -> StreamConfig:
    return StreamConfig("s", "id", (pa.schema([("n", pa.int64())]),), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"entry_bytes": ENTRY_BYTES_MIN},
        {"entry_bytes": ENTRY_PAYLOAD_BYTES_MAX // 2},
        {"entry_bytes": 2048, "segment_roll_bytes": 2048},
        {"segment_roll_age_s": 0.001},
    ],
)
def test_configurations_at_their_bounds_are_fine(changes: dict[str, Any]) -> None:
    assert config(**changes).schema_version == 0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"entry_bytes": ENTRY_BYTES_MIN - 1}, "entry_bytes"),
        ({"entry_bytes": ENTRY_PAYLOAD_BYTES_MAX // 2 + 1}, "entry_bytes"),
        ({"entry_bytes": 2048, "segment_roll_bytes": 2047}, "segment_roll_bytes"),
        ({"segment_roll_age_s": 0.0}, "segment_roll_age_s"),
        ({"segment_roll_age_s": float("nan")}, "segment_roll_age_s"),
    ],
)
def test_configurations_beyond_their_bounds_are_refused(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        config(**changes)


def test_configuration_defaults() -> None:
    made = config()
    assert (made.quorums, made.created_ms, made.deleted) == (Quorums(3, 3, 2), 0, False)
    assert (made.entry_bytes, made.segment_roll_bytes) == (1 << 20, 1 << 30)
    assert (made.segment_roll_age_s, made.compression.value) == (600.0, "lz4")


def test_defaults_of_head_and_commit_are_zero() -> None:
    assert Head("id") == Head("id", 0, 0, 0, 0, 0, Dlsn(0, 0, 0), 0)
    least = Commit(0, 0, 0, (), "s", 1)
    assert least == Commit(0, 0, 0, (), "s", 1, "", 0, 0)
    assert least.applied
    assert parse_compression(Compression.ZSTD) is Compression.ZSTD
    assert cut(segment(1, (2,)), None, None) == ((0, 0), (1, 0))


def test_the_newest_schema_is_the_last() -> None:
    first, second = pa.schema([("n", pa.int64())]), pa.schema([("m", pa.int64())])
    both = StreamConfig("s", "id", (first, second))
    assert (both.schema, both.schema_version) == (second, 1)


def test_commit_totals_and_segment_numbers() -> None:
    commit = Commit(4, 9, 10, (segment(10, (2, 1)), segment(11, (4,))), "s", 1)
    assert (commit.rows, commit.size_bytes, commit.end_segment) == (7, 300, 12)
    assert [commit.segment(number).rows for number in (10, 11)] == [3, 4]
    for number in (9, 12):
        with pytest.raises(AssertionError):
            commit.segment(number)
    assert commit == replace(commit, applied=False), "who applied it is not what it is"
    assert segment(10, (2, 1)).entries == 2
    assert segment(10, (2, 1)).placed(12) == segment(12, (2, 1))


def test_the_end_of_a_head_is_the_start_of_its_next_segment() -> None:
    assert Head("id", next_segment=3).end == Dlsn(3, 0, 0)
    assert Head("id").end == Head("id").earliest


def test_range_knows_how_many_rows_come_before_its_segment() -> None:
    first = Commit(0, 9, 0, (segment(0, (2, 1)), segment(1, (4,))), "s", 1, rows_before=10)
    second = Commit(1, 9, 2, (segment(2, (5,)),), "s", 2, rows_before=17)
    ranges = ranges_between([first, second], Dlsn(0, 1), Dlsn(2, 0, 3))
    assert [part.segment_row for part in ranges] == [10, 13, 17]


def test_range_size_is_its_share_of_rows_rounded_up() -> None:
    part = replace(segment(0, (2, 3)), size_bytes=11)
    whole = SegmentRange(part, (0, 0), (2, 0), 0, 0)
    assert (whole.size_bytes, whole.rows) == (11, 5)
    assert SegmentRange(part, (0, 1), (1, 1), 0, 0).size_bytes == 5  # 2 of 5 rows, 4.4 bytes
    assert SegmentRange(part, (1, 0), (2, 0), 0, 0).size_bytes == 7  # 3 of 5 rows, 6.6 bytes


def test_sink_and_transaction_ids_at_their_bounds() -> None:
    assert check_sink_id("x" * SINK_ID_CHARS_MAX) == "x" * SINK_ID_CHARS_MAX
    for sink_id in ("", "x" * (SINK_ID_CHARS_MAX + 1), None, 5):
        with pytest.raises(ConfigurationError, match="sink id"):
            check_sink_id(sink_id)  # type: ignore[arg-type]
    for transaction_id in (-(2**63), 0, 2**63 - 1):
        assert check_transaction_id(transaction_id) == transaction_id
    for wrong in (-(2**63) - 1, 2**63, True, "1", 1.0, None):
        with pytest.raises(ConfigurationError, match="transaction id"):
            check_transaction_id(wrong)  # type: ignore[arg-type]


def test_range_from_any_row_to_any_other_has_the_entries_that_it_touches() -> None:
    counts = (3, 1, 5, 2)
    whole = replace(segment(0, counts), size_bytes=1000)
    ends = [1000 * sum(counts[:n]) // 11 for n in range(5)]
    sizes = [b - a for a, b in pairwise(ends)]
    rows = [(entry, slot) for entry, count in enumerate(counts) for slot in range(count)]
    for first, start in enumerate(rows):
        for behind, end in list(enumerate([*rows, (4, 0)]))[first + 1 :]:
            part = SegmentRange(whole, start, end, 0, 0)
            last = rows[behind - 1][0]
            assert (part.first_entry, part.last_entry) == (5 + start[0], 5 + last)
            assert part.rows == behind - first
            assert part.entry_bytes == sizes[start[0] : last + 1], (start, end)
            assert part.size_bytes == -(-1000 * (behind - first) // 11)
            assert part.is_whole == (behind - first == 11)


@pytest.mark.parametrize("lacks", [0, 1, 2, 3])
def test_segment_of_a_task_of_an_older_version_has_the_fields_that_came_since(lacks: int) -> None:
    """Its driver may have been upgraded before it."""
    sent = loose(2, ledger_id=7)
    state: Any = sent.__getstate__()
    got = Segment.__new__(Segment)
    got.__setstate__(state[: len(state) - lacks])
    assert got == sent and got.placed(3).number == 3
    assert (got.statistics, got.incarnation, got.written_in) == (None, b"", None)
    assert pickle.loads(pickle.dumps(sent)) == sent
