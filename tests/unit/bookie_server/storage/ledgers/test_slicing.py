"""Cutting entries out of runs agrees with doing it one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie_server.storage.ledgers.slicing import holds, slice_run, take_range
from spark_ledger.runs import EntryRun, run_error
from spark_ledger.types import EntryId, LedgerId
from tests.unit.bookie_server.storage.support import make_run


@st.composite
def runs(draw: st.DrawFn) -> EntryRun:
    if draw(st.booleans()):
        first, count = draw(st.integers(0, 20)), draw(st.integers(1, 12))
        ids, stored_ids = list(range(first, first + count)), None
    else:
        ids = sorted(draw(st.sets(st.integers(0, 40), min_size=1, max_size=12)))
        stored_ids = ids
    frames = [bytes([entry_id]) * draw(st.integers(1, 5)) for entry_id in ids]
    sizes = [len(frame) for frame in frames]
    return EntryRun(LedgerId(1), EntryId(ids[0]), stored_ids, sizes, b"".join(frames))


def one_by_one(
    run: EntryRun, first: int, last: int, stride: int, max_bytes: int
) -> list[tuple[int, bytes]]:
    frames = {entry_id: bytes(frame) for entry_id, frame in run.split()}
    chosen: list[tuple[int, bytes]] = []
    total = 0
    for entry_id in map(EntryId, range(first, last + 1, stride)):
        if entry_id not in frames:
            break
        total += len(frames[entry_id])
        if chosen and total > max_bytes:
            break
        chosen.append((entry_id, frames[entry_id]))
    return chosen


@given(runs(), st.data(), st.integers(1, 5), st.integers(1, 40))
def test_slices(run: EntryRun, data: st.DataObject, stride: int, max_bytes: int) -> None:
    first = data.draw(st.sampled_from(list(run.ids())))
    last = data.draw(st.integers(first, first + 30))
    part = slice_run(run, EntryId(first), EntryId(last), stride=stride, max_bytes=max_bytes)
    assert run_error(part) is None
    found = [(entry_id, bytes(frame)) for entry_id, frame in part.split()]
    assert found == one_by_one(run, first, last, stride, max_bytes)


@given(runs(), st.integers(0, 45))
def test_holds(run: EntryRun, entry_id: int) -> None:
    assert holds(run, EntryId(entry_id)) == (entry_id in set(run.ids()))


@given(runs(), st.data())
def test_take_range_is_what_a_list_slice_says(run: EntryRun, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, run.count - 1))
    stop = data.draw(st.integers(start + 1, run.count))
    part = take_range(run, start, stop)
    assert run_error(part) is None
    entries = [(entry_id, bytes(frame)) for entry_id, frame in run.split()]
    assert [(e, bytes(f)) for e, f in part.split()] == entries[start:stop]


def test_a_whole_run_is_passed_on_without_a_copy() -> None:
    run = EntryRun(LedgerId(1), EntryId(5), None, [1, 2], b"abb")
    assert slice_run(run, EntryId(5), EntryId(99), stride=1, max_bytes=3) is run
    assert take_range(run, 0, 2) is run


def test_a_slice_in_the_middle_ends_with_its_last_entry() -> None:
    """Its bytes are counted from where it begins."""
    run = make_run(7, range(10), 10)
    for max_bytes in (20, 30, 100):
        part = slice_run(run, EntryId(5), EntryId(6), stride=1, max_bytes=max_bytes)
        assert list(part.ids()) == [5, 6] and part.frames == run.frames[50:70]
