"""A busy bookie is not stopped by walks over its cache; old cycles are found all the same."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from bookie_server.garbage import Collector
from spark_ledger.limits.bookie import (
    BOOKIE_COLLECT_INTERVAL_S,
    BOOKIE_COLLECT_OBJECTS_MAX,
    BOOKIE_COLLECT_OVERDUE_S,
)


class Cycle:
    def __init__(self) -> None:
        self.me = self


class World:
    """A collector over a clock and a storage of any size."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held = 0
        self.collector = Collector(lambda: self.held, lambda: self.now)

    def tick_after(self, seconds: float) -> None:
        self.now += seconds
        self.collector.tick()


@contextmanager
def full_walks() -> Iterator[list[int]]:
    """Walks over all objects, as they happen."""
    walks: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            walks.append(1)

    gc.callbacks.append(note)
    try:
        yield walks
    finally:
        gc.callbacks.remove(note)


def test_many_objects_of_a_cache_start_no_full_walk() -> None:
    before = gc.get_threshold()
    world = World()
    world.collector.start()
    try:
        with full_walks() as walks:
            cache = [[[number]] for number in range(300_000)]
        assert len(cache) == 300_000 and not walks
        assert gc.get_threshold()[:2] == before[:2], "young garbage is found as before"
    finally:
        world.collector.stop()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_old_cycle_is_found_once_the_cache_is_small() -> None:
    world = World()
    world.collector.start()
    try:
        cycle = Cycle()
        found = weakref.ref(cycle)
        gc.collect(1)  # it is old now
        del cycle
        world.held = BOOKIE_COLLECT_OBJECTS_MAX + 1
        world.tick_after(BOOKIE_COLLECT_INTERVAL_S)
        assert found() is not None, "the cache is large"
        world.held = BOOKIE_COLLECT_OBJECTS_MAX
        world.tick_after(1)
        assert found() is None
    finally:
        world.collector.stop()


def test_full_walk_that_was_put_off_for_long_happens() -> None:
    world = World()
    world.collector.start()
    try:
        world.held = 10**9
        with full_walks() as walks:
            world.tick_after(BOOKIE_COLLECT_OVERDUE_S - 1)
            assert not walks
            world.tick_after(1)
            assert len(walks) == 1
            world.tick_after(BOOKIE_COLLECT_OVERDUE_S - 1)
            assert len(walks) == 1, "and then not for as long"
    finally:
        world.collector.stop()


def test_timer_ticks_until_it_is_stopped() -> None:
    async def main() -> None:
        world = World()
        loop = asyncio.get_running_loop()
        with world.collector.running(loop):
            timer = world.collector._timer
            assert timer is not None and not timer.cancelled()
            with full_walks() as walks:
                world.now += BOOKIE_COLLECT_INTERVAL_S
                world.collector._run(loop)
            assert len(walks) == 1
            timer.cancel()
        assert world.collector._timer is not None and world.collector._timer.cancelled()

    asyncio.run(main())
