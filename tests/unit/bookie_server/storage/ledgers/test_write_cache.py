"""The write cache finds every run in either generation, whatever order they came in."""

from __future__ import annotations

import tracemalloc
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_server.storage.blocks import encode_run
from bookie_server.storage.journal.waiting import RunPlace
from bookie_server.storage.ledgers import write_cache
from bookie_server.storage.ledgers.slicing import holds
from bookie_server.storage.ledgers.write_cache import CachedRun, LedgerRuns, WriteCache
from spark_ledger.runs import EntryRun
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import expected, make_run


def cached(ledger_id: int, ids: list[int]) -> CachedRun:
    run = make_run(ledger_id, ids)
    return CachedRun(run, NO_ENTRY, encode_run(run, NO_ENTRY))


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sets(st.integers(0, 20), min_size=1)), max_size=12),
    st.integers(0, 12),
)
def test_every_entry_is_found(adds: list[tuple[int, set[int]]], freeze_after: int) -> None:
    cache = WriteCache()
    stored: dict[int, set[int]] = {0: set(), 1: set()}
    for number, (ledger_id, ids) in enumerate(adds):
        cache.add(cached(ledger_id, sorted(ids)))
        stored[ledger_id] |= ids
        if number == freeze_after:
            cache.freeze()
    for ledger_id in (0, 1):
        for entry_id in map(EntryId, range(22)):
            found = cache.find(LedgerId(ledger_id), entry_id)
            assert (found is not None) == (entry_id in stored[ledger_id])
            if found is not None:
                frames = {e: bytes(f) for e, f in found.split()}
                assert frames[entry_id] == expected(ledger_id, [entry_id])[entry_id]
        listed = {e for run in cache.runs_of(LedgerId(ledger_id)) for e in run.ids()}
        assert listed == stored[ledger_id]
        for first, last in combinations(map(EntryId, range(22)), 2):
            if not cache.may_hold(LedgerId(ledger_id), first, last):
                assert not stored[ledger_id].intersection(range(first, last + 1))
    assert not cache.may_hold(LedgerId(0), EntryId(21), EntryId(99)), "it is behind them all"


def test_frozen_generation_is_found_until_it_is_dropped() -> None:
    cache = WriteCache()
    cache.add(cached(1, [0, 1]))
    size = cache.active_bytes
    assert size == cache.byte_count > cached(1, [0, 1]).block.length
    frozen = cache.freeze()
    assert (cache.active_bytes, cache.byte_count, frozen.run_count) == (0, size, 1)
    assert cache.frozen is frozen and cache.is_frozen
    assert cache.find(LedgerId(1), EntryId(1)) is not None
    cache.add(cached(1, [2]))
    with pytest.raises(AssertionError, match="dropped first"):
        cache.freeze()
    cache.drop_frozen()
    assert cache.find(LedgerId(1), EntryId(1)) is None
    assert cache.find(LedgerId(1), EntryId(2)) is not None


@pytest.mark.parametrize("ledgers", [1, 20, 2000])
@pytest.mark.parametrize(("entries", "size"), [(1, 100), (1, 5000), (50, 300)])
def test_memory_is_counted_as_it_is(ledgers: int, entries: int, size: int) -> None:
    """Within a third, so that a write cache is bounded by what is configured for it."""
    runs = 2000 if entries == 1 else 200
    cache = WriteCache()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(runs):
        ledger_id = LedgerId(1000 + number % ledgers)
        first = 1000 + number // ledgers * entries
        frames = bytes(size * entries)
        sizes = [size + 1000 - 1000 for _ in range(entries)]
        run = EntryRun(ledger_id, EntryId(first), None, sizes, frames)
        cache.add(CachedRun(run, EntryId(first - 1), encode_run(run, EntryId(first - 1))))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.75 < cache.active_bytes / taken < 1.5, f"{cache.active_bytes} counted, {taken} taken"


def test_only_overlapping_or_interleaved_runs_are_kept_apart() -> None:
    runs = LedgerRuns()
    for ids in ([10, 11], [20, 21], [14, 15], [0], [22, 23], [12, 13], [16, 19]):
        runs.add(cached(1, ids))
    firsts = [one.run.first_entry for one in runs.ordered]
    assert (firsts, runs.overlapping) == ([0, 10, 12, 14, 16, 20, 22], [])
    for ids in ([11, 12], [17, 18], [23, 24], [9, 10], [0, 30]):
        runs.add(cached(1, ids))
    assert [one.run.first_entry for one in runs.ordered] == firsts
    assert [one.run.first_entry for one in runs.overlapping] == [0, 9, 11, 17, 23]


def test_entries_that_all_came_again_are_found_without_a_look_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that repeats itself, or attacks, must not cost the more the longer it goes on."""
    runs, looks = LedgerRuns(), 0
    runs.add(cached(1, [0, 2000]))
    for entry in range(1, 1000):
        runs.add(cached(1, [entry, entry + 1]))
    assert len(runs.overlapping) == 999

    def counted(run: EntryRun, entry_id: EntryId) -> bool:
        nonlocal looks
        looks += 1
        return holds(run, entry_id)

    monkeypatch.setattr(write_cache, "holds", counted)
    for entry in (1, 500, 1000):
        found = runs.find(EntryId(entry))
        assert found is not None and entry in found.ids()
    assert runs.find(EntryId(1001)) is None
    assert looks <= 4 * 3


def placed(ids: list[int]) -> CachedRun:
    return cached(1, ids)._replace(place=RunPlace(0))


def fill(cache: WriteCache, byte_count: int, first: int) -> int:
    """Add small runs until the cache has so much that is fresh; the next entry."""
    while cache.fresh_bytes < byte_count:
        cache.add(cached(1, [first]))
        first += 1
    return first


ONE = 20_000
"""Bytes of a generation."""


def test_cache_without_a_flush_is_full_with_two_generations() -> None:
    """Nobody freezes it while another directory, or a deletion, has the flush lock."""
    cache = WriteCache()
    entry = fill(cache, ONE, 0)
    assert not cache.is_full(ONE), "the flush that comes next freezes it"
    fill(cache, 2 * ONE, entry)
    assert cache.is_full(ONE)
    cache.freeze()
    assert cache.fresh_bytes == 0 and cache.is_full(ONE), "both generations are in the frozen one"
    cache.drop_frozen()
    assert not cache.is_full(ONE)


def test_cache_beside_a_frozen_generation_is_full_with_one_more() -> None:
    cache = WriteCache()
    entry = fill(cache, ONE // 2, 0)
    cache.freeze()
    entry = fill(cache, ONE - 1000, entry)
    assert not cache.is_full(ONE)
    fill(cache, ONE, entry)
    assert cache.is_full(ONE) and cache.byte_count < 2 * ONE


def test_what_a_freeze_had_to_leave_does_not_make_the_cache_full() -> None:
    """A flush makes no room of it: it would be made again and again, as the adds wait for one."""
    cache = WriteCache()
    for entry in range(60):
        cache.add(placed([entry]))
    left = cache.active_bytes
    assert left > 2 * ONE and cache.is_full(ONE)
    cache.freeze()
    assert cache.fresh_bytes == 0 and cache.active_bytes == left and not cache.is_full(ONE)
    cache.drop_frozen()
    assert not cache.is_full(ONE)
    fill(cache, 2 * ONE, 100)
    assert cache.is_full(ONE), "what is new counts"
    cache.forget(frozenset({LedgerId(1)}))
    assert cache.active_bytes == cache.fresh_bytes == 0, "what was left is gone, too"


def test_run_for_which_there_is_no_room_is_a_bug_and_is_not_kept() -> None:
    cache = WriteCache()
    room_bytes = cache.add(cached(1, [0]), 1)
    with pytest.raises(AssertionError, match="an add waits until there is room"):
        cache.add(cached(1, [1]), room_bytes)
    assert cache.run_count == 1
    assert cache.add(cached(1, [1]), room_bytes + 1) > room_bytes
