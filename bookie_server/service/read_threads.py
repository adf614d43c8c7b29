"""ReadThreads: reads wait for the disk of their own ledger directory, and for no other.

A few reads run at once, as before there were several directories: more would only take the
interpreter from the service. One whose disk has not answered for a moment no longer counts as one
of them, so a disk that hangs keeps none but its own threads. Work goes to a thread only when one is
free for it: whoever leaves before leaves nothing behind.

Everything here belongs to the service thread, but ``ReadThreads._run``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from functools import partial
from typing import TypeVar

from bookie_server.service.calls import Call, current_call
from spark_ledger.limits.bookie import (
    BOOKIE_READ_QUICK_S,
    BOOKIE_READ_THREADS,
    READS_STALLED_S,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)


class DiskIsBusyError(Exception):
    """A disk answers no read: come again later. Nothing is said of what it holds."""


class _Turn(Enum):
    """What became of a wait for a thread."""

    COME = auto()
    SLOW = auto()
    """The disk has not answered for a moment: what memory has need not wait."""
    BUSY = auto()
    """It stalls."""


class _Work:
    """What runs in a thread. ``counts``: among those that run at once over all directories."""

    __slots__ = ("began", "caller", "counts", "is_left")

    def __init__(self, caller: Call, began: float, *, counts: bool) -> None:
        self.caller = caller
        self.began = began
        self.counts = counts
        self.is_left = False  # by who called, and has given back what it had reserved


class _Lane:
    """The threads of one directory, and who waits for them, in order."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="bookie-read")
        self.threads = self.free = threads
        self.running: dict[_Work, None] = {}  # the oldest first
        self.waiting: dict[asyncio.Future[_Turn], bool] = {}  # whether it wants to hear of SLOW
        self.unmoved_s = 0.0  # for how long no thread had become free, at the last look
        self.stalled = ""  # why, while a read has not ended for so long

    def look(self, now: float) -> None:
        """See how long all have been taken, and tell when a read takes long, and no longer."""
        ages = [now - work.began for work in self.running]
        self.unmoved_s = ages[-1] if len(ages) == self.threads else 0.0
        before, is_stalled = self.stalled, bool(ages) and ages[0] >= READS_STALLED_S
        if is_stalled and not before:
            self.stalled = f"{self.name} has not answered a read for {ages[0]:.1f} s"
            logger.warning("%s", self.stalled)
        elif before and not is_stalled:
            self.stalled = ""
            logger.warning("it goes on: %s", before)


class ReadThreads:
    """Threads for each directory, and one more for each that asks memory while its disk is slow."""

    def __init__(self, names: Sequence[str]) -> None:
        """``names`` of the directories; work of a number that is none of theirs is of them all."""
        self._lanes = [_Lane(name, BOOKIE_READ_THREADS) for name in names]
        self._of_all = _Lane(", ".join(names), BOOKIE_READ_THREADS)
        self._memory = [_Lane(name, 1) for name in names]
        self._free = BOOKIE_READ_THREADS  # of the reads that run at once, over all directories
        self._turns = deque((*self._lanes, self._of_all))
        self._is_closed = False
        self.lend: Callable[[Call], None] = lambda _caller: None
        """Told of who has reserved memory, and waits for a disk that is slow."""
        self.take_back: Callable[[], bool] = lambda: True
        """Whether there is memory for the caller again, who has a thread now."""

    @property
    def stalled(self) -> dict[str, str]:
        """The directories of which a read has not ended for long, and why it is said. Any thread
        may ask."""
        return {lane.name: lane.stalled for lane in self._lanes if lane.stalled}

    @property
    def waiting(self) -> int:
        """Reads and lists that wait for a thread. Any thread may ask."""
        return sum(len(lane.waiting) for lane in self._all_lanes())

    async def run(
        self, number: int, work: Callable[[], T], in_memory: Callable[[], T | None] | None = None
    ) -> T:
        """What ``work`` returns, or raises, in a thread of directory ``number`` (-1: of all).

        While that disk is slow ``in_memory`` is asked first, which needs none, and is None if that
        is not enough. Raises DiskIsBusyError while it stalls.
        """
        lane = self._of_all if number < 0 else self._lanes[number]
        if lane.free and self._free:
            return await self._start(lane, work, counts=True)
        turn = await self._turn(lane, hears_of_slow=True)
        is_slow = turn is _Turn.SLOW
        if is_slow:
            self.lend(current_call())
            found = None if in_memory is None else await self._ask_memory(number, in_memory)
            if found is not None:
                return found
            turn = await self._turn(lane, hears_of_slow=False)
        if turn is _Turn.COME and is_slow and not self.take_back():
            self._give_back(lane)
            turn = _Turn.BUSY
        if turn is _Turn.BUSY:
            raise DiskIsBusyError(f"{lane.name} answers no read: ask later")
        return await self._start(lane, work, counts=True, has_place=True)

    def look(self, now: float) -> None:
        """Look which disks are slow, and which stall (rule S15); at a cadence."""
        for lane in self._all_lanes():
            for work in lane.running:
                if work.counts and now - work.began >= BOOKIE_READ_QUICK_S:
                    work.counts = False
                    self._free += 1
                    if not work.is_left:
                        self.lend(work.caller)
            lane.look(now)
            self._tell(lane)
        self._let_in()

    def close(self) -> None:
        """Begin nothing any more."""
        self._is_closed = True
        for lane in self._all_lanes():
            self._tell(lane)
            lane.pool.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Return once all has ended that had begun. After ``close``; any thread."""
        for lane in self._all_lanes():
            lane.pool.shutdown()

    # -- inside ------------------------------------------------------------------------------------

    def _all_lanes(self) -> Iterator[_Lane]:
        yield from self._lanes
        yield self._of_all
        yield from self._memory

    async def _ask_memory(self, number: int, in_memory: Callable[[], T | None]) -> T | None:
        """In a thread too: it copies, and may wait for a page of the index."""
        lane = self._memory[number]
        if lane.free:
            return await self._start(lane, in_memory, counts=False)
        if await self._turn(lane, hears_of_slow=False) is _Turn.BUSY:
            return None
        return await self._start(lane, in_memory, counts=False, has_place=True)

    async def _turn(self, lane: _Lane, *, hears_of_slow: bool) -> _Turn:
        """Wait for a thread; COME: one is ours."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[_Turn] = loop.create_future()
        lane.waiting[turn] = hears_of_slow
        self._tell(lane)
        self._let_in()  # the disk may have gone on meanwhile
        try:
            return await turn
        except asyncio.CancelledError:
            lane.waiting.pop(turn, None)
            if turn.done() and not turn.cancelled() and turn.result() is _Turn.COME:
                self._give_back(lane)
            raise

    def _tell(self, lane: _Lane) -> None:
        """Have those go who need not wait, or wait in vain."""
        is_slow = lane.unmoved_s >= BOOKIE_READ_QUICK_S
        is_busy = lane.unmoved_s >= READS_STALLED_S or self._is_closed
        for turn, hears_of_slow in list(lane.waiting.items()):
            if is_slow and hears_of_slow:
                turn.set_result(_Turn.SLOW)
            elif is_busy:
                turn.set_result(_Turn.BUSY)
            else:
                continue
            del lane.waiting[turn]

    async def _start(
        self, lane: _Lane, work: Callable[[], T], *, counts: bool, has_place: bool = False
    ) -> T:
        if not has_place:
            self._take(lane, counts)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        place = _Work(current_call(), loop.time(), counts=counts)
        lane.running[place] = None
        try:
            lane.pool.submit(self._run, work, loop, answer, lane, place)
        except RuntimeError:  # no other thread is to be had
            self._leave(lane, place)
            raise
        try:
            return await answer
        except asyncio.CancelledError:
            place.is_left = True
            raise

    def _run(
        self,
        work: Callable[[], T],
        loop: asyncio.AbstractEventLoop,
        answer: asyncio.Future[T],
        lane: _Lane,
        place: _Work,
    ) -> None:
        """In a thread."""
        try:
            end = partial(answer.set_result, work())
        except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
            end = partial(answer.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._ended, lane, place, answer, end)

    def _ended(
        self, lane: _Lane, place: _Work, answer: asyncio.Future[T], end: Callable[[], None]
    ) -> None:
        self._leave(lane, place)
        if not answer.done():  # else its client has gone
            end()

    def _leave(self, lane: _Lane, place: _Work) -> None:
        if place in lane.running:
            del lane.running[place]
            lane.free += 1
            lane.unmoved_s = 0.0
            self._free += place.counts
            self._let_in()

    def _take(self, lane: _Lane, counts: bool) -> None:
        lane.free -= 1
        self._free -= counts

    def _give_back(self, lane: _Lane) -> None:
        """A place that was ours is not needed."""
        lane.free += 1
        self._free += lane not in self._memory
        self._let_in()

    def _let_in(self) -> None:
        """Those who wait go on, one of each directory in turn."""
        for lane in self._memory:
            while lane.free and lane.waiting:
                self._admit(lane, counts=False)
        passed = 0
        while self._free and passed < len(self._turns):
            lane = self._turns[0]
            self._turns.rotate(-1)
            passed += 1
            if lane.free and lane.waiting:
                self._admit(lane, counts=True)
                passed = 0

    def _admit(self, lane: _Lane, *, counts: bool) -> None:
        turn = next(iter(lane.waiting))
        del lane.waiting[turn]
        self._take(lane, counts)
        turn.set_result(_Turn.COME)
