"""Cutting wanted entries out of a run. Pure; a whole run is passed on without a copy."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId


def holds(run: EntryRun, entry_id: EntryId) -> bool:
    """Whether the run contains the entry."""
    ids = run.entry_ids
    if ids is None:
        return run.first_entry <= entry_id < run.first_entry + len(run.sizes)
    number = bisect_left(ids, entry_id)
    return number < len(ids) and ids[number] == entry_id


def slice_run(
    run: EntryRun, first: EntryId, last: EntryId, *, stride: int, max_bytes: int
) -> EntryRun:
    """Entries first, first + stride, ... of a run that holds ``first``.

    Stops behind ``last``, before the first of them the run does not hold, and before the frames
    exceed ``max_bytes``; one entry is returned whatever its size.
    """
    assert stride >= 1, f"stride {stride}"
    assert first <= last, f"entries {first} to {last}"
    assert holds(run, first), f"entry {first} is not in the run that was found for it"
    if run.entry_ids is None and stride == 1:
        return _consecutive(run, first, last, max_bytes)
    if run.entry_ids is None:
        start = first - run.first_entry
        stop = min(len(run.sizes), last - run.first_entry + 1)
        return _pick(run, range(start, stop, stride), range(first, last + 1, stride), max_bytes)
    ids = run.entry_ids
    numbers: list[int] = []
    number_of = {entry_id: number for number, entry_id in enumerate(ids)}
    for entry_id in range(first, min(last, ids[-1]) + 1, stride):
        number = number_of.get(entry_id)
        if number is None:
            break
        numbers.append(number)
    return _pick(run, numbers, range(first, last + 1, stride), max_bytes)


def take_range(run: EntryRun, start: int, stop: int) -> EntryRun:
    """The run's entries number ``start`` up to, not including, ``stop``, counted from 0."""
    assert 0 <= start < stop <= len(run.sizes), f"entries {start} to {stop} of {len(run.sizes)}"
    if start == 0 and stop == len(run.sizes):
        return run
    ids = None if run.entry_ids is None else run.entry_ids[start:stop]
    first = run.first_entry + start if ids is None else ids[0]
    sizes = run.sizes[start:stop]
    begin = sum(run.sizes[:start])  # and not all offsets: few entries of a large block are wanted
    return EntryRun(
        run.ledger_id,
        EntryId(first),
        _unless_consecutive(ids),
        sizes,
        run.frames[begin : begin + sum(sizes)],
    )


def part_of(run: EntryRun, first: EntryId, last: EntryId) -> EntryRun:
    """What a run holds of the entries ``first`` to ``last``, one of which it holds."""
    ids = run.ids()
    return take_range(run, bisect_left(ids, first), bisect_right(ids, last))


def _consecutive(run: EntryRun, first: EntryId, last: EntryId, max_bytes: int) -> EntryRun:
    start = first - run.first_entry
    stop = min(len(run.sizes), last - run.first_entry + 1)
    if start == 0 and stop == len(run.sizes) and len(run.frames) <= max_bytes:
        return run
    offsets = run.offsets()
    begin = offsets[start]
    if offsets[stop] - begin > max_bytes:
        stop = max(start + 1, bisect_right(offsets, begin + max_bytes) - 1)
    frames = run.frames[begin : offsets[stop]]
    return EntryRun(run.ledger_id, first, None, run.sizes[start:stop], frames)


def _pick(run: EntryRun, numbers: Sequence[int], ids: Sequence[int], max_bytes: int) -> EntryRun:
    """A run of ``ids``, which are the run's entries number ``numbers``, as many as fit."""
    offsets = run.offsets()
    sizes = [run.sizes[number] for number in numbers]
    count = max(1, bisect_right(list(accumulate(sizes)), max_bytes))
    numbers, sizes = numbers[:count], sizes[:count]
    view = memoryview(run.frames)
    frames = b"".join([view[offsets[number] : offsets[number + 1]] for number in numbers])
    chosen = ids[: len(sizes)]
    return EntryRun(
        run.ledger_id, EntryId(chosen[0]), _unless_consecutive(list(chosen)), sizes, frames
    )


def _unless_consecutive(ids: Sequence[int] | None) -> Sequence[int] | None:
    if ids is None or ids[-1] - ids[0] == len(ids) - 1:
        return None
    return ids
