"""The block cache keeps within its bytes and gives up what was not used for longest."""

from __future__ import annotations

from bookie_server.storage.index.base import BlockLocation
from bookie_server.storage.ledgers.block_cache import BlockCache
from tests.unit.bookie_server.storage.support import make_run


def place(number: int) -> BlockLocation:
    return BlockLocation(1, number, 10)


def test_least_recently_used_go_first() -> None:
    cache = BlockCache(100)
    runs = [make_run(1, [number], 40) for number in range(4)]
    cache.put(place(0), runs[0])
    cache.put(place(1), runs[1])
    assert cache.get(place(0)) is runs[0]
    cache.put(place(2), runs[2])
    assert cache.get(place(1)) is None
    assert cache.get(place(0)) is runs[0] and cache.get(place(2)) is runs[2]
    cache.drop(place(0))
    cache.drop(place(0))
    cache.put(place(3), runs[3])
    assert cache.get(place(2)) is runs[2], "the dropped one made room"
    cache.put(place(9), make_run(1, [9], 101))
    assert cache.get(place(9)) is None, "larger than the cache"
    assert cache.get(place(2)) is runs[2]


def test_blocks_of_two_logs_at_the_same_offset_are_distinct() -> None:
    """Every log has a block at its first place."""
    cache = BlockCache(1000)
    places = [BlockLocation(1, 4096, 10), BlockLocation(2, 4096, 10), BlockLocation(1, 8192, 10)]
    runs = [make_run(1, [number], 40) for number in range(3)]
    for location, run in zip(places, runs, strict=True):
        assert cache.get(location) is None
        cache.put(location, run)
    for location, run in zip(places, runs, strict=True):
        assert cache.get(location) is run
    cache.drop(places[0])
    assert [cache.get(location) for location in places] == [None, *runs[1:]]


def test_block_that_two_readers_put_counts_once() -> None:
    """Both have read it, as neither found it; counted twice it would push others out for ever."""
    cache, run = BlockCache(100), make_run(1, [0], 40)
    for _ in range(3):
        cache.put(place(0), run)
    assert cache.size_bytes == 40
    cache.put(place(1), make_run(1, [1], 40))
    assert cache.get(place(0)) is run and cache.size_bytes == 80
    cache.put(place(2), make_run(1, [2], 100))
    assert cache.size_bytes == 100 and cache.get(place(1)) is None, "as many go as have to"
    cache.drop(place(2))
    assert cache.size_bytes == 0
