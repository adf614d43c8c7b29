"""ReadThreads: reads wait for the disk of their own ledger directory, and for no other.

A few reads run at once, as before there were several directories: more would only take the
interpreter from the service. One whose disk has not answered for a moment no longer counts as one
of them, so a disk that hangs keeps none but its own threads. Work goes to a thread only when one is
free for it: whoever leaves before leaves nothing behind.

A place is one of these threads. Who waits for one owns it from its turn on, and then its work does,
until that ends, whoever has left meanwhile. What is free is what no place has taken: nothing is
counted beside that.

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
from typing import TypeAlias, TypeVar, cast

from bookie_server.service.calls import Call, current_call
from spark_ledger.limits.bookie import (
    BOOKIE_READ_QUICK_S,
    BOOKIE_READ_THREADS,
    BOOKIE_READS_LATE_MAX,
    BOOKIE_READS_LENT_MAX,
    READS_STALLED_S,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)


class DiskIsBusyError(Exception):
    """A disk answers no read: come again later. Nothing is said of what it holds."""


class RoomIsGoneError(Exception):
    """Others have what the caller had reserved: reserve again, and come again. Nothing was read."""


class _Told(Enum):
    """What ends a wait for a place without one."""

    SLOW = auto()
    """The disk has not answered for a moment: what memory has need not wait."""
    BUSY = auto()
    """It stalls."""


class _Place:
    """A thread of a directory, for one piece of work."""

    __slots__ = ("answer", "began", "caller", "is_slow", "lane")

    def __init__(self, lane: _Lane, began: float) -> None:
        self.lane = lane
        self.began = began
        self.caller: Call | None = None
        self.answer: asyncio.Future[object] | None = None  # of the work, once that has begun
        self.is_slow = False  # it runs beside those that may run at once

    @property
    def is_awaited(self) -> bool:
        """It works, and its caller has not left, which gives back what it had reserved."""
        return self.answer is not None and not self.answer.done()


_Turn: TypeAlias = _Place | _Told


class _Lane:
    """The threads of one directory, and who waits for them, in order."""

    def __init__(self, name: str, threads: int, *, counts: bool = True) -> None:
        """``counts``: what runs here is among the reads that run at once over all directories."""
        self.name = name
        self.counts = counts
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="bookie-read")
        self.threads = threads
        self.places: dict[_Place, None] = {}  # that are taken, the oldest first
        self.waiting: dict[asyncio.Future[_Turn], bool] = {}  # whether it wants to hear of SLOW
        self.unmoved_s = 0.0  # for how long no thread had become free, at the last look
        self.stalled = ""  # why, while a read has not ended for so long

    @property
    def free(self) -> int:
        """Threads."""
        return self.threads - len(self.places)

    @property
    def busy(self) -> DiskIsBusyError:
        """For who is told to come later."""
        return DiskIsBusyError(f"{self.name} answers no read: ask later")

    def look(self, now: float, *, has_room: bool) -> None:
        """See how long all have been taken that may be, and tell when a read takes long, and no
        longer."""
        ages = [now - place.began for place in self.places]
        self.unmoved_s = 0.0 if has_room else ages[-1]
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
        self._memory = [_Lane(name, 1, counts=False) for name in names]
        self._at_once: set[_Place] = set()  # that count, over all directories
        self._turns = deque(self._all_lanes())
        self._is_closed = False
        self.lend: Callable[[Call], None] = lambda _caller: None
        """Told of who has reserved memory, and waits for a disk that is slow; perhaps twice."""
        self.take_back: Callable[[], bool] = lambda: True
        """Whether the caller, who has a thread now, has what it reserved, or has it again."""

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
        is not enough. Raises DiskIsBusyError while it stalls, or where too many others are slow:
        the work may run on then, and nobody hears of it; and RoomIsGoneError.
        """
        lane = self._of_all if number < 0 else self._lanes[number]
        turn = self._take(lane) or await self._turn(lane, hears_of_slow=True)
        if turn is _Told.SLOW:
            found = None if in_memory is None else await self._ask_memory(number, in_memory)
            if found is not None:
                return found
            turn = await self._turn_that_lends(lane)
        if not isinstance(turn, _Place):
            raise lane.busy
        return await self._start(turn, work)

    def look(self, now: float) -> None:
        """Look which disks are slow, and which stall (rule S15); at a cadence."""
        places = [place for lane in self._all_lanes() for place in lane.places]
        lent = sum(place.is_slow and place.is_awaited for place in places)
        for place in places:
            if place.is_slow or now - place.began < BOOKIE_READ_QUICK_S:
                continue
            place.is_slow = True
            self._at_once.discard(place)
            if not place.is_awaited:
                continue
            assert place.answer is not None and place.caller is not None, "they come together"
            if lent < BOOKIE_READS_LENT_MAX:
                lent += 1
                self.lend(place.caller)
            else:
                place.answer.set_exception(place.lane.busy)
        for lane in self._all_lanes():
            lane.look(now, has_room=self._has_room(lane))
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
        turn = await self._turn_that_lends(self._memory[number])
        return await self._start(turn, in_memory) if isinstance(turn, _Place) else None

    async def _turn_that_lends(self, lane: _Lane) -> _Turn:
        """Wait for a place. Meanwhile others have what was reserved: it is there again, or nothing
        may be read, and the place is the next one's."""
        turn: _Turn | None = self._take(lane)
        if turn is None:
            self.lend(current_call())
            turn = await self._turn(lane, hears_of_slow=False)
        if isinstance(turn, _Place) and not self.take_back():
            self._give_back(turn)
            raise RoomIsGoneError
        return turn

    async def _turn(self, lane: _Lane, *, hears_of_slow: bool) -> _Turn:
        """Wait for a place."""
        turn: asyncio.Future[_Turn] = asyncio.get_running_loop().create_future()
        lane.waiting[turn] = hears_of_slow
        self._tell(lane)
        try:
            return await turn
        except asyncio.CancelledError:
            lane.waiting.pop(turn, None)
            if not turn.cancelled() and isinstance(place := turn.result(), _Place):
                self._give_back(place)  # our turn had come
            raise

    def _tell(self, lane: _Lane) -> None:
        """Have those go who need not wait, or wait in vain."""
        is_slow = lane.unmoved_s >= BOOKIE_READ_QUICK_S
        is_busy = lane.unmoved_s >= READS_STALLED_S or self._is_closed
        for turn, hears_of_slow in list(lane.waiting.items()):
            if turn.done():  # its client has gone, and it takes itself out
                continue
            if is_slow and hears_of_slow:
                turn.set_result(_Told.SLOW)
            elif is_busy:
                turn.set_result(_Told.BUSY)
            else:
                continue
            del lane.waiting[turn]

    async def _start(self, place: _Place, work: Callable[[], T]) -> T:
        """The place is the work's from here on."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[object] = loop.create_future()
        place.caller, place.answer = current_call(), answer
        try:
            place.lane.pool.submit(self._run, work, loop, answer, place)
        except RuntimeError:  # no other thread is to be had
            self._give_back(place)
            raise
        return cast(T, await answer)

    def _run(
        self,
        work: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
        answer: asyncio.Future[object],
        place: _Place,
    ) -> None:
        """In a thread."""
        try:
            end = partial(answer.set_result, work())
        except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
            end = partial(answer.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._ended, place, answer, end)

    def _ended(
        self, place: _Place, answer: asyncio.Future[object], end: Callable[[], None]
    ) -> None:
        if not answer.done():  # else its client has gone
            end()
        self._give_back(place)

    @property
    def _free(self) -> int:
        """So many more reads may run at once."""
        return BOOKIE_READ_THREADS - len(self._at_once)

    def _has_room(self, lane: _Lane) -> bool:
        """Whether a lane has a place. Where many are late it has one in all: what late disks bring
        at once is bounded, whoever waits for it."""
        if not lane.counts or not lane.places:
            return bool(lane.free)
        taken = sum(len(each.places) for each in (*self._lanes, self._of_all))
        return bool(lane.free) and taken - len(self._at_once) < BOOKIE_READS_LATE_MAX

    def _take(self, lane: _Lane) -> _Place | None:
        """A place, if there is one."""
        if not self._has_room(lane) or (lane.counts and not self._free):
            return None
        place = _Place(lane, asyncio.get_running_loop().time())
        lane.places[place] = None
        if lane.counts:
            self._at_once.add(place)
        return place

    def _give_back(self, place: _Place) -> None:
        """It is the next one's."""
        del place.lane.places[place]
        self._at_once.discard(place)
        place.lane.unmoved_s = 0.0
        self._let_in()

    def _let_in(self) -> None:
        """Those who wait go on, one of each directory in turn."""
        passed = 0
        while passed < len(self._turns):
            lane = self._turns[0]
            self._turns.rotate(-1)
            passed = 0 if self._admit(lane) else passed + 1

    def _admit(self, lane: _Lane) -> bool:
        """Whether one of those who wait has a place now."""
        turn = next((each for each in lane.waiting if not each.done()), None)
        place = None if turn is None else self._take(lane)
        if turn is None or place is None:
            return False
        del lane.waiting[turn]
        turn.set_result(place)
        return True
