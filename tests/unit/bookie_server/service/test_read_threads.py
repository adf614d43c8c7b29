"""A disk that answers no read keeps those waiting who need it, for a while, and nobody else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from bookie_server.service.read_threads import DiskIsBusyError, ReadThreads, RoomIsGoneError
from spark_ledger.limits.bookie import (
    BOOKIE_READ_QUICK_S,
    BOOKIE_READ_THREADS,
    BOOKIE_READS_LATE_MAX,
    BOOKIE_READS_LENT_MAX,
    READS_STALLED_S,
)
from spark_ledger.limits.client import READ_TIMEOUT_S


class Fixture:
    """Two directories, of which reads of the first hang until ``goes_on``."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.threads = ReadThreads(["/a", "/b"])
        self.begun = 0
        self.hung: list[asyncio.Task[str]] = []

    def hangs(self) -> str:
        self.begun += 1
        assert self.goes_on.wait(20)
        return "read"

    async def read(self, number: int, found: str | None = None, *, asks: bool = True) -> str:
        """A read that a disk answers at once, if it is not kept waiting."""
        in_memory = (lambda: found) if asks else None
        async with asyncio.timeout(5):
            return await self.threads.run(number, lambda: "disk", in_memory)

    async def hang(self, count: int = BOOKIE_READ_THREADS, number: int = 0) -> None:
        for _ in range(count):
            self.hung.append(asyncio.ensure_future(self.threads.run(number, self.hangs)))
        await settle()

    def look(self, after_s: float) -> None:
        """As the watch does, so long after now."""
        self.threads.look(asyncio.get_running_loop().time() + after_s)

    async def until_free(self) -> None:
        self.goes_on.set()
        await asyncio.gather(*self.hung, return_exceptions=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0.002)


def on_loop(test: Callable[[Fixture], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            f = Fixture()
            try:
                async with asyncio.timeout(15):
                    await test(f)
            finally:
                async with asyncio.timeout(5):
                    await f.until_free()
                f.threads.close()
                await asyncio.to_thread(f.threads.wait)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def test_who_reads_is_told_before_its_patience_ends() -> None:
    assert BOOKIE_READ_QUICK_S < READS_STALLED_S < READ_TIMEOUT_S / 2


@on_loop
async def test_what_a_thread_returns_or_raises_is_handed_on(f: Fixture) -> None:
    def fails() -> str:
        raise OSError("no")

    assert await f.read(0) == "disk"
    with pytest.raises(OSError, match="no"):
        await f.threads.run(1, fails)
    assert await f.read(-1) == "disk"


@on_loop
async def test_disk_that_hangs_keeps_no_read_of_another_waiting(f: Fixture) -> None:
    await f.hang(2 * BOOKIE_READ_THREADS)
    assert f.begun == BOOKIE_READ_THREADS and f.threads.waiting == BOOKIE_READ_THREADS
    other = asyncio.ensure_future(f.read(1))
    listed = asyncio.ensure_future(f.read(-1))
    await settle()
    assert not other.done(), "a few run at once, over all directories"
    f.look(BOOKIE_READ_QUICK_S)
    assert await other == await listed == "disk"
    assert f.begun == BOOKIE_READ_THREADS, "no more of its own"


@on_loop
async def test_what_is_in_memory_does_not_wait_for_a_disk_that_is_slow(f: Fixture) -> None:
    await f.hang()
    known, unknown = [asyncio.ensure_future(f.read(0, found)) for found in ("memory", None)]
    await settle()
    assert not known.done(), "the disk may answer in a moment"
    f.look(BOOKIE_READ_QUICK_S)
    assert await known == "memory"
    assert await f.read(0, "memory") == "memory", "and not before the next look"
    assert not unknown.done() and f.threads.waiting == 1
    f.goes_on.set()
    assert await unknown == "disk"


@on_loop
async def test_disk_that_stalls_is_busy_for_reads_that_need_it(f: Fixture) -> None:
    await f.hang()
    waits = [asyncio.ensure_future(f.read(0, asks=asks)) for asks in (True, False)]
    await settle()
    f.look(READS_STALLED_S)
    for each in waits:
        with pytest.raises(DiskIsBusyError, match="/a"):
            await each
    with pytest.raises(DiskIsBusyError):
        await f.read(0)
    assert await f.read(0, "memory") == "memory"
    assert f.threads.waiting == 0
    await f.until_free()
    assert await f.read(0) == "disk", "also before the next look"


@on_loop
async def test_thread_that_is_free_is_used_while_others_hang(f: Fixture) -> None:
    await f.hang(BOOKIE_READ_THREADS - 1)
    f.look(READS_STALLED_S)
    assert await f.read(0) == "disk"


def test_stall_is_told_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    @on_loop
    async def run(f: Fixture) -> None:
        await f.hang(1)
        f.look(READS_STALLED_S - 0.5)
        assert f.threads.stalled == {} and not caplog.messages
        f.look(READS_STALLED_S)
        f.look(READS_STALLED_S + 1)
        assert list(f.threads.stalled) == ["/a"]
        await f.until_free()
        f.look(0)
        assert f.threads.stalled == {}

    run()
    said, ended = caplog.messages
    assert said.startswith("/a has not answered a read for 2.")
    assert ended == f"it goes on: {said}"


@on_loop
async def test_who_leaves_leaves_nothing_behind(f: Fixture) -> None:
    await f.hang()
    for _ in range(200):
        left = asyncio.ensure_future(f.read(0))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
    assert f.threads.waiting == 0
    assert f.threads._lanes[0].pool._work_queue.qsize() == 0
    for task in f.hung:
        task.cancel()
    f.goes_on.set()
    assert await f.read(0) == "disk"
    await settle()
    assert f.threads._free == f.threads._lanes[0].free == BOOKIE_READ_THREADS


@pytest.mark.parametrize("what", ["a thread ends", "a look", "another leaves"])
def test_who_has_left_and_does_not_know_it_yet_gets_no_place(what: str) -> None:
    """The connection of many calls ends: all are cancelled in one turn of the loop."""

    @on_loop
    async def run(f: Fixture) -> None:
        await f.hang()
        waits = [asyncio.ensure_future(f.read(0)) for _ in range(2 * BOOKIE_READ_THREADS)]
        await settle()
        stays = asyncio.ensure_future(f.read(0))
        await asyncio.sleep(0)
        for each in waits[1:]:
            each.cancel()
        if what == "a look":
            f.look(READS_STALLED_S)
        elif what == "another leaves":
            waits[0].cancel()
        else:
            f.goes_on.set()
            time.sleep(0.05)  # their ends are queued behind this turn
            for each in waits:
                each.cancel()
        if what == "a look":
            with pytest.raises(DiskIsBusyError):
                await stays
        f.goes_on.set()
        if what != "a look":
            assert await stays == "disk"
        assert await asyncio.gather(*f.hung) == ["read"] * BOOKIE_READ_THREADS
        assert f.threads._free == f.threads._lanes[0].free == BOOKIE_READ_THREADS
        assert await f.read(0) == await f.read(1) == "disk"

    run()


@on_loop
async def test_place_of_who_leaves_as_its_turn_comes_is_the_next_ones(f: Fixture) -> None:
    await f.hang(BOOKIE_READ_THREADS - 1)
    ends = threading.Event()
    last = asyncio.ensure_future(f.threads.run(0, lambda: ends.wait(20)))
    first, second = [asyncio.ensure_future(f.read(0)) for _ in range(2)]
    await settle()
    let_in = f.threads._let_in

    def leaves() -> None:
        let_in()
        first.cancel()

    f.threads._let_in = leaves  # type: ignore[method-assign]
    ends.set()
    assert await last
    assert await second == "disk"
    assert first.cancelled() and f.threads.waiting == 0
    assert f.threads._free == f.threads._lanes[0].free == 1


@on_loop
async def test_memory_that_waits_for_a_page_keeps_reads_waiting_no_longer_than_the_disk(
    f: Fixture,
) -> None:
    await f.hang()
    f.look(BOOKIE_READ_QUICK_S)
    stuck = asyncio.ensure_future(f.threads.run(0, lambda: "disk", f.hangs))
    await settle()
    waits = asyncio.ensure_future(f.read(0, "memory"))
    await settle()
    assert not waits.done()
    f.look(READS_STALLED_S)
    with pytest.raises(DiskIsBusyError):
        await waits
    f.goes_on.set()
    assert await stuck == "read"


@on_loop
async def test_directories_take_turns(f: Fixture) -> None:
    await f.hang(BOOKIE_READ_THREADS - 1)
    order: list[int] = []
    held = threading.Event()
    last = asyncio.ensure_future(f.threads.run(1, lambda: held.wait(20)))
    waits = [
        asyncio.ensure_future(f.threads.run(number, partial(order.append, number)))
        for number in (0, 0, 0, 1, 1, 1)
    ]
    await settle()
    assert not order
    held.set()
    await asyncio.gather(last, *waits)
    assert order in ([0, 1] * 3, [1, 0] * 3)


@on_loop
async def test_thread_that_cannot_be_had_keeps_no_place(f: Fixture) -> None:
    lane = f.threads._lanes[0]

    def refuses(*_given: object) -> None:
        raise RuntimeError("can't start new thread")

    submit, lane.pool.submit = lane.pool.submit, refuses  # type: ignore[assignment,method-assign]
    for _ in range(2 * BOOKIE_READ_THREADS):
        with pytest.raises(RuntimeError):
            await f.read(0)
    lane.pool.submit = submit  # type: ignore[method-assign]
    assert await f.read(0) == "disk"


@on_loop
async def test_reads_lend_their_memory_while_their_disk_is_slow(f: Fixture) -> None:
    lent: list[object] = []
    f.threads.lend = lent.append
    f.threads.take_back = lambda: asyncio.current_task() not in lent
    await f.hang()
    f.hung[0].cancel()
    waits = asyncio.ensure_future(f.read(0))
    await settle()
    f.look(BOOKIE_READ_QUICK_S / 2)
    assert not lent
    f.look(BOOKIE_READ_QUICK_S)
    f.look(BOOKIE_READ_QUICK_S)
    await settle()
    assert lent == [*f.hung[1:], waits], "who has gone has given it back already"
    f.goes_on.set()
    with pytest.raises(RoomIsGoneError):
        await waits
    await settle()
    assert f.threads._free == f.threads._lanes[0].free == BOOKIE_READ_THREADS


@on_loop
async def test_disk_that_goes_on_while_memory_is_asked_is_asked_at_once(f: Fixture) -> None:
    await f.hang()
    f.look(BOOKIE_READ_QUICK_S)

    def has_nothing() -> None:
        f.goes_on.set()
        while f.threads._lanes[0].free < BOOKIE_READ_THREADS:
            time.sleep(0.001)

    async with asyncio.timeout(5):
        assert await f.threads.run(0, lambda: "disk", has_nothing) == "disk"


@on_loop
async def test_no_more_reads_lend_than_what_comes_late_may_have(f: Fixture) -> None:
    """A storage network hangs, and brings all reads of all directories once it goes on."""
    f.threads = ReadThreads(["/a", "/b", "/c"])
    lent: list[object] = []
    f.threads.lend = lent.append
    for number in range(3):
        await f.hang(number=number)
        f.look(BOOKIE_READ_QUICK_S)
    assert f.begun == 3 * BOOKIE_READ_THREADS
    assert lent == f.hung[:BOOKIE_READS_LENT_MAX]
    for late in f.hung[BOOKIE_READS_LENT_MAX:]:
        with pytest.raises(DiskIsBusyError, match="/c"):
            await late
    assert f.threads._free == BOOKIE_READ_THREADS and f.threads._lanes[2].free == 0
    await f.until_free()
    assert await f.read(2) == "disk"
    await settle()
    assert [lane.free for lane in f.threads._lanes] == [BOOKIE_READ_THREADS] * 3
    f.goes_on.clear()
    await f.hang(number=2)
    f.look(BOOKIE_READ_QUICK_S)
    assert lent[BOOKIE_READS_LENT_MAX:] == f.hung[-BOOKIE_READ_THREADS:], "others have ended"


@on_loop
async def test_directory_has_one_thread_where_many_reads_are_late_also_if_nobody_waits(
    f: Fixture,
) -> None:
    """Twelve disks of one storage network hang: each thread has a buffer, and brings an entry."""
    f.threads = ReadThreads([f"/{number}" for number in range(12)])
    for number in range(11):
        await f.hang(number=number)
        for each in f.hung:
            each.cancel()
        f.look(BOOKIE_READ_QUICK_S)
        await settle()
    late = sum(len(lane.places) for lane in f.threads._lanes)
    assert late == BOOKIE_READS_LATE_MAX + 8 and f.threads.waiting == 0
    assert await asyncio.gather(*(f.read(11) for _ in range(3))) == ["disk"] * 3
    assert await f.read(-1) == "disk" and await f.read(10, "memory") == "memory"
    waits = asyncio.ensure_future(f.read(10))
    await settle()
    f.look(READS_STALLED_S)
    with pytest.raises(DiskIsBusyError, match="/10"):
        await waits
    f.goes_on.set()
    assert await f.read(10) == "disk"
    while any(lane.places for lane in f.threads._lanes):
        await settle()
    await asyncio.gather(*f.hung, return_exceptions=True)
    f.goes_on.clear()
    f.hung.clear()
    f.begun = 0
    await f.hang(number=2)
    assert f.begun == BOOKIE_READ_THREADS, "as ever"
