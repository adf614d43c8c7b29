"""Arrivals, clients that go, slow and hung reads, in any order: at rest all places and all room are
back, and nobody waits."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookie_server.service.answer_room import AnswerRoom
from bookie_server.service.grpc_service import BookieService
from bookie_server.service.guard.hanging_up import Why
from bookie_server.service.read_threads import DiskIsBusyError, ReadThreads
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import BOOKIE_READ_THREADS, BOOKIE_READS_LENT_MAX

SEEDS = (*range(30), None)
"""None: another one each time. Workers that share the tests have to call them by the same names."""
DIRECTORIES = 4


class Threads:
    """In place of a pool: work runs when the test says so, and its end is queued behind the turn of
    the loop that runs, as that of a thread is."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def submit(self, job: Any, *arguments: Any) -> None:
        self.jobs.append((job, arguments))

    def shutdown(self, **_how: bool) -> None:
        pass


class Schedule:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pool = Threads()
        self.reads = ReadThreads([f"/{number}" for number in range(DIRECTORIES)])
        for lane in self.reads._all_lanes():
            lane.pool = cast(Any, self.pool)
        self.room = AnswerRoom(64 * MIB, self._hang_up, grace_s=9e9, unread_s=9e9)
        self.room._expected = 8 * MIB
        self.reads.lend, self.reads.take_back = self.room.lend, self.room.take_back
        self.service = cast(BookieService, SimpleNamespace(reads=self.reads, _answers=self.room))
        self.calls: list[asyncio.Task[str]] = []
        self.ended: Counter[str] = Counter()
        self.errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, c: self.errors.append(c))

    def _hang_up(self, _connection: str, _why: Why) -> None:
        raise AssertionError("nobody leaves its answer unread for so long")

    async def call(self, number: int | None = None) -> str:
        number = self.rng.randrange(-1, DIRECTORIES) if number is None else number
        peer = str(self.rng.randrange(9))
        found = self.rng.choice((None, "memory"))
        in_memory = self.rng.choice((None, lambda: found)) if number >= 0 else None
        try:
            read = await BookieService._read(self.service, number, lambda: "disk", in_memory, peer)
        except DiskIsBusyError:
            return "busy"
        with self.room.hold(self.rng.choice((1, 4 * MIB, 16 * MIB)), peer):
            await asyncio.sleep(0)
        return read

    def end_work(self, chance: float = 1.0) -> None:
        """Of threads."""
        jobs, self.pool.jobs = self.pool.jobs, []
        for job, arguments in jobs:
            if self.rng.random() < chance:
                job(*arguments)
            else:
                self.pool.jobs.append((job, arguments))

    def look(self, after_s: float) -> None:
        self.reads.look(asyncio.get_running_loop().time() + after_s)
        self.check()

    def check(self) -> None:
        lanes = list(self.reads._all_lanes())
        assert all(0 <= lane.free <= lane.threads for lane in lanes)
        assert 0 <= self.reads._free <= BOOKIE_READ_THREADS
        assert self.room._reading >= 0
        slow = [each for lane in lanes for each in lane.places if each.is_slow and each.is_awaited]
        assert len(slow) <= BOOKIE_READS_LENT_MAX

    async def run(self) -> None:
        for _ in range(400):
            step = self.rng.random()
            if step < 0.35:
                burst = self.rng.choice((1, 1, 1, 20))
                self.calls += [asyncio.ensure_future(self.call()) for _ in range(burst)]
            elif step < 0.6:
                self.end_work(self.rng.random() ** 2)
            elif step < 0.7:
                self.look(self.rng.choice((0.0, 0.3, 0.3, 2.1)))
            # The clients of some go in the same turn, before whoever waits could hear of anything.
            if self.rng.random() < 0.3:
                for call in self.calls:
                    if self.rng.random() < 0.3:
                        call.cancel()
            for _ in range(self.rng.choice((0, 1, 1, 2, 8))):
                await asyncio.sleep(0)
            self.check()
            self.calls = [call for call in self.calls if not self._has_ended(call)]
        await self.rest()

    def _has_ended(self, call: asyncio.Task[str]) -> bool:
        if call.done():
            self.ended["left" if call.cancelled() else call.result()] += 1
        return call.done()

    async def rest(self) -> None:
        """All disks go on, and no client leaves any more."""
        for _ in range(5_000):
            if not self.calls and not self.pool.jobs:
                break
            self.end_work()
            await asyncio.sleep(0)
            self.calls = [call for call in self.calls if not self._has_ended(call)]
        await asyncio.sleep(0)
        assert not self.calls, "somebody waits for ever"
        assert not self.errors
        assert self.reads._free == BOOKIE_READ_THREADS and self.reads.waiting == 0
        assert all(lane.free == lane.threads for lane in self.reads._all_lanes())
        assert self.room._reading == self.room.bytes_held == 0
        assert not (self.room._lent or self.room._held or self.room.new_calls_wait)
        self.room.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_at_rest_all_places_and_all_room_are_back(seed: int | None) -> None:
    seed = time.time_ns() % 1_000_000 if seed is None else seed

    async def main() -> Counter[str]:
        schedule = Schedule(seed)
        await schedule.run()
        return schedule.ended

    print(f"seed {seed}")
    ended = asyncio.run(main())
    assert min(ended[how] for how in ("disk", "left")) > 20, ended


def test_disk_that_is_slow_and_goes_on_refuses_none_of_many_readers() -> None:
    """They lend their room while they wait, and the room is not enough for all of them."""

    async def main() -> Counter[str]:
        schedule = Schedule(0)
        gone = 0

        def take_back() -> bool:
            nonlocal gone
            is_there = schedule.room.take_back()
            gone += not is_there
            return is_there

        schedule.reads.take_back = take_back
        for _ in range(60):
            schedule.calls += [asyncio.ensure_future(schedule.call(0)) for _ in range(4)]
            await asyncio.sleep(0)
            schedule.look(0.3)
            for _ in range(8):
                await asyncio.sleep(0)
            schedule.end_work(0.5)
        await schedule.rest()
        assert gone > 10
        return schedule.ended

    assert asyncio.run(main()).keys() == {"disk", "memory"}
