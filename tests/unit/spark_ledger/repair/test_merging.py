"""Lanes of a copy reach its target in the order of their entries."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ledger.repair import merging
from spark_ledger.repair.merging import MergedLanes
from spark_ledger.runs import EntryRun, run_error
from spark_ledger.types import BookieId, EntryId, LedgerId

L, TARGET = LedgerId(7), BookieId("b9")


def run(*ids: int, size: int = 3) -> EntryRun:
    consecutive = ids[-1] - ids[0] == len(ids) - 1
    frames = b"".join(b"%03d" % (each % 1000) * (size // 3) for each in ids)
    sizes = [size // 3 * 3] * len(ids)
    return EntryRun(L, EntryId(ids[0]), None if consecutive else list(ids), sizes, frames)


async def merged(lanes: list[list[EntryRun]], stride: int) -> list[EntryRun]:
    sent: list[EntryRun] = []

    async def store(part: EntryRun) -> None:
        await asyncio.sleep(0)
        sent.append(part)

    merging = MergedLanes(TARGET, L, store, lanes=len(lanes), stride=stride)

    async def bring(runs: list[EntryRun], stored: list[int]) -> None:
        for each in runs:
            await merging.store(each)
            assert {e for part in sent for e in part.ids()} >= set(each.ids()), "it is stored"
        await merging.end()

    await asyncio.gather(*[bring(runs, []) for runs in lanes])
    return sent


@given(
    lanes=st.lists(st.lists(st.integers(1, 5), max_size=5), min_size=1, max_size=4),
    chunk=st.sampled_from([1, 10, 1000]),
)
def test_all_entries_come_once_and_ascending(lanes: list[list[int]], chunk: int) -> None:
    runs: list[list[EntryRun]] = []
    for residue, counts in enumerate(lanes):
        runs.append([])
        first = residue
        for count in counts:
            ids = range(first, first + count * len(lanes), len(lanes))
            runs[-1].append(run(*ids))
            first = ids[-1] + len(lanes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "READ_CHUNK_BYTES_TARGET", chunk)
        sent = asyncio.run(merged(runs, len(lanes)))
    wanted = dict(pair for lane in runs for each in lane for pair in each.split())
    assert [pair for part in sent for pair in part.split()] == sorted(wanted.items())
    assert not [error for part in sent if (error := run_error(part))]
    most = max([chunk, *(len(each.frames) for lane in runs for each in lane)])
    assert all(len(part.frames) <= most for part in sent), "none is larger than what came"


def test_lanes_of_an_entry_of_each_stripe_become_one_run() -> None:
    lanes = [[run(*range(lane, 100, 5))] for lane in (0, 1, 2)]
    (sent,) = asyncio.run(merged(lanes, 5))
    assert list(sent.ids()) == [e for e in range(100) if e % 5 < 3]


def test_lane_that_is_alone_is_passed_on_as_it_is() -> None:
    one = run(0, 5, 10)
    assert asyncio.run(merged([[one]], 5))[0] is one


@pytest.mark.parametrize("lanes", [2, 3])
def test_entries_that_came_alone_are_not_copied(lanes: int) -> None:
    """They are as large as a bookie sends at once, and each lane holds one."""
    runs = [[run(each), run(each + lanes)] for each in range(lanes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "READ_CHUNK_BYTES_TARGET", 1)
        sent = asyncio.run(merged(runs, lanes))
    came = {id(each.frames) for lane in runs for each in lane}
    assert len(sent) == 2 * lanes and {id(each.frames) for each in sent} == came


def test_no_lane_is_ahead_by_more_than_its_run() -> None:
    small = [run(2 * n) for n in range(10)]
    large = [run(*range(1, 20, 2))]
    sent = asyncio.run(merged([small, large], 2))
    assert [e for part in sent for e in part.ids()] == list(range(20))
