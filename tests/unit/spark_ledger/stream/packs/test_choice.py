"""Which commits make a pack, by number, size and kind; and which indexes fit a pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_ledger.errors import CorruptionError
from spark_ledger.stream.format.metadata_column import PositionedBatch
from spark_ledger.stream.model import Commit, Segment, SegmentRange
from spark_ledger.stream.packs import format as packs_format
from spark_ledger.stream.packs import model
from spark_ledger.stream.packs.format import decode_index, encode_index
from spark_ledger.stream.packs.model import Choice, Chooser, Pack, PackIndex, Packs
from spark_ledger.stream.packs.places import cut_out, places
from spark_ledger.types import Dlsn, EntryId, LedgerId
from tests.unit.spark_ledger.stream.world import loose

ONE = (1,)
"""A segment of one entry with one row."""


def commits(*segments: Sequence[Sequence[int]] | None) -> list[Commit]:
    """Commits of small segments, given by the rows of their entries; None: one of large entries."""
    made: list[Commit] = []
    first = 0
    for number, each in enumerate(segments):
        parts: list[Segment] = [loose(*rows) for rows in ([[1_000_000]] if each is None else each)]
        placed = tuple(part.placed(first + n) for n, part in enumerate(parts))
        made.append(Commit(number, 0, first, placed, "s", number))
        first += len(placed)
    return made


def chosen(of: Sequence[Commit], *, entries_min: int = 1, size_bytes: int = 1 << 30) -> list[range]:
    """The lists, each as the numbers of its commits, which have no gap."""
    choice = Choice(1024, 1 << 30, entries_min)
    object.__setattr__(choice, "pack_bytes", size_bytes)
    chooser = Chooser(choice)
    lists = [chooser.add(commit) for commit in of] + [chooser.end()]
    found = [range(each[0].number, each[-1].number + 1) for each in lists if each is not None]
    assert [len(each) for each in found] == [len(each) for each in lists if each is not None]
    return found


def test_list_ends_before_it_has_too_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "PACK_SEGMENTS_MAX", 5)
    assert chosen(commits(*[[ONE, ONE]] * 6)) == [range(2), range(2, 4), range(4, 6)]
    assert chosen(commits([ONE] * 2, [ONE] * 3, [ONE])) == [range(2), range(2, 3)]


def test_commit_of_too_many_segments_is_in_no_list_and_ends_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, "PACK_SEGMENTS_MAX", 5)
    of = commits([ONE], [ONE] * 6, [ONE], [ONE] * 5)
    assert chosen(of) == [range(1), range(2, 3), range(3, 4)]


def test_list_ends_before_it_has_too_many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "PACK_COMMITS_MAX", 3)
    assert chosen(commits(*[[ONE]] * 7)) == [range(3), range(3, 6), range(6, 7)]


def test_list_ends_once_it_has_enough_bytes() -> None:
    assert chosen(commits(*[[ONE]] * 5), size_bytes=20) == [range(2), range(2, 4), range(4, 5)]
    assert chosen(commits(*[[ONE]] * 5), size_bytes=21) == [range(3), range(3, 5)]


@pytest.mark.parametrize(
    ("segments", "size_bytes", "is_small"),
    [
        ([ONE], 63, True),
        ([ONE], 64, False),  # a sixteenth of an entry
        ([(1, 1, 1)], 191, True),  # by the mean of its entries
        ([(1, 1, 1)], 192, False),
        ([ONE, (1, 1), ONE], 255, True),
        ([ONE, (1, 1), ONE], 256, False),
        ([], 0, True),
    ],
)
def test_commit_is_small_by_the_bytes_of_its_entries_as_stored(
    segments: Sequence[Sequence[int]], size_bytes: int, is_small: bool
) -> None:
    (commit,) = commits(segments)
    sized = [replace(part, size_bytes=1) for part in commit.segments]
    sized[-1:] = [replace(part, size_bytes=size_bytes - len(sized) + 1) for part in sized[-1:]]
    made = replace(commit, segments=tuple(sized))
    assert made.size_bytes == size_bytes
    assert Choice(1024, 1 << 30, 1).is_small(made) == is_small


def test_commits_without_rows_lie_within_a_list_and_large_ones_and_gaps_end_it() -> None:
    of = commits([ONE], [], [ONE], None, [ONE], [ONE], [ONE])
    assert chosen(of) == [range(3), range(4, 7)]
    assert chosen([*of[4:6], of[6]]) == [range(4, 7)]
    assert chosen([of[0], of[2], of[4]]) == [range(1), range(2, 3), range(4, 5)]


def test_list_is_worth_a_pack_by_its_entries_and_not_by_its_segments() -> None:
    of = commits([(1, 1, 1, 1)], None, [(1, 1, 1)], None, [ONE] * 2, [ONE] * 2, None, [ONE] * 3)
    assert chosen(of, entries_min=4) == [range(1), range(4, 6)]


PACK = Pack(0, 4, 10, 18, LedgerId(7), 2, 8, 100)
INDEX = PackIndex([5, 3], [0, 0], [1] * 8)


def decoded(index: PackIndex, *, stream_id: str = "s", first_segment: int = 10) -> PackIndex:
    return decode_index(encode_index(index, stream_id, first_segment), PACK, "s", "stream 's'")


@pytest.mark.parametrize(
    "index",
    [
        PackIndex([5, 3], [0, 0], [2] + [1] * 6),  # seven segments
        PackIndex([5, 3], [0, 0], [1] * 7 + [2]),  # nine rows of segments
        PackIndex([5, 2], [0, 0], [1] * 8),
        PackIndex([5, 4], [0, 0], [1] * 7 + [2]),
        PackIndex([8], [0], [1] * 8),
        PackIndex([5, 3], [0], [1] * 8),
        PackIndex([8, 0], [0, 0], [1] * 8),
        PackIndex([5, 3], [0, 0], [0, 2] + [1] * 6),
    ],
)
def test_index_that_does_not_fit_its_pack_is_refused(index: PackIndex) -> None:
    with pytest.raises(CorruptionError, match="ledger 7 does not fit the pack"):
        decoded(index)


def test_index_of_another_pack_or_stream_is_refused() -> None:
    assert decoded(INDEX).segment_starts[-1] == 8
    for other in ({"first_segment": 11}, {"stream_id": "t"}):
        with pytest.raises(CorruptionError, match="the index of another pack"):
            decoded(INDEX, **other)


def test_index_that_unpacks_to_more_than_a_reader_takes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packs_format, "_INDEX_BYTES_MAX", 60)
    with pytest.raises(CorruptionError, match="is damaged"):
        decoded(INDEX)


def test_entry_of_a_few_rows_in_a_pack_of_many_is_read() -> None:
    """Its share of the bytes, by rows, is less than one."""
    pack = Pack(0, 1, 0, 2, LedgerId(7), 2, 1001, 100)
    index = PackIndex([1, 1000], [0, 1], [1, 1000])
    parts = [
        SegmentRange(loose(rows).placed(n), (0, 0), (1, 0), 0, 0)
        for n, rows in enumerate((1, 1000))
    ]
    found = places(pack, index, parts, "stream 's'")
    assert [each.range.segment.entry_rows for each in found] == [(1,), (1000,)]


def test_entries_of_a_pack_between_those_wanted_are_not_read() -> None:
    pack = Pack(0, 1, 0, 4, LedgerId(7), 4, 4, 400)
    index = PackIndex([1] * 4, [0] * 4, [1] * 4)
    parts = [SegmentRange(loose().placed(n), (0, 0), (1, 0), 0, 0) for n in (0, 2, 3)]
    found = places(pack, index, parts, "stream 's'")
    assert [(each.range.first_entry, each.range.last_entry) for each in found] == [(0, 0), (2, 3)]


def test_ranges_are_cut_where_a_pack_begins_or_ends() -> None:
    first = PACK._replace(first_segment=0, end_segment=3)
    packs = Packs((first, PACK._replace(first=6, end=9, first_segment=5, end_segment=7)))
    parts = [SegmentRange(loose().placed(n), (0, 0), (1, 0), 0, 0) for n in range(1, 9)]
    found = [
        (pack and pack.first, [part.segment.number for part in section])
        for pack, section in packs.sections(parts)
    ]
    assert found == [(0, [1, 2]), (None, [3, 4]), (6, [5, 6]), (None, [7, 8])]


def test_part_of_the_only_entry_of_a_segment_is_found_in_its_pack() -> None:
    pack = Pack(0, 1, 0, 2, LedgerId(7), 1, 9, 100)
    index = PackIndex([9], [0], [4, 5])
    segment = loose(5).placed(1)
    for start, end, piece in (
        ((0, 0), (1, 0), (4, 5)),
        ((0, 2), (1, 0), (6, 3)),
        ((0, 0), (0, 2), (4, 2)),
        ((0, 1), (0, 2), (5, 1)),
    ):
        (found,) = places(pack, index, [SegmentRange(segment, start, end, 0, 0, 40)], "stream")
        (cut,) = found.pieces[found.range.first_entry]
        assert (cut.first, cut.rows, cut.slot, cut.row) == (*piece, start[1], 40 + start[1])


def test_entry_that_lies_in_two_entries_of_a_pack_keeps_its_slots_and_what_is_wanted() -> None:
    pack = Pack(0, 1, 0, 2, LedgerId(7), 2, 7, 100)
    index = PackIndex([3, 4], [0, 0], [2, 5])
    part = SegmentRange(loose(5, ledger_id=9).placed(1), (0, 0), (1, 0), 3, 1000, 42)
    (found,) = places(pack, index, [part], "stream")
    assert found.range.rows == 7
    numbers, wanted = pa.array(range(7)), pa.array([n % 2 == 0 for n in range(7)])
    cuts = []
    for entry, first, rows in ((0, 0, 3), (1, 3, 4)):
        whole = PositionedBatch(
            Dlsn(0, 0, 0),
            LedgerId(7),
            0,
            0,
            pa.record_batch({"n": numbers.slice(first, rows)}),
            matching=wanted.slice(first, rows),
        )
        cuts += [cut_out(whole, piece) for piece in found.pieces[EntryId(entry)]]
    assert [(each.position, each.row, each.ledger_id, each.commit) for each in cuts] == [
        (Dlsn(1, 0, 0), 42, 9, 3),
        (Dlsn(1, 0, 1), 43, 9, 3),
    ]
    assert [each.batch.column("n").to_pylist() for each in cuts] == [[2], [3, 4, 5, 6]]
    assert [each.wanted().column("n").to_pylist() for each in cuts] == [[2], [4, 6]]
