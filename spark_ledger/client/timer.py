"""One timer for everything in a client that waits for a time: who is due is called, nobody polls.

A client has thousands of writers, and each of them waits for something that rarely happens: a
bookie that stays silent. Were each to look at the clock fifty times a second, a client beside one
silent bookie would do little else. So each says when it wants to be called, and one timer of the
event loop stands for the earliest of them. Times are rounded up to slots: what is due together is
called in one turn of the loop.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable

from spark_ledger.limits import TIMER_SLOT_S


class Timer:
    """Calls back at given times of the event loop's clock. Belongs to the loop that made it.

    Every slot that somebody waits in is in ``_times`` once, and the loop's timer is set for the
    earliest of them or for one before it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots: dict[int, dict[Alarm, None]] = {}
        self._times: list[int] = []
        """The slots that are in use, as a heap."""
        self._handle: asyncio.TimerHandle | None = None

    def alarm(self, callback: Callable[[], None]) -> Alarm:
        """An alarm that is not set yet."""
        return Alarm(self, callback)

    def add(self, alarm: Alarm, slot: int) -> None:
        """Have the alarm called in this slot."""
        waiting = self._slots.get(slot)
        if waiting is None:
            waiting = self._slots[slot] = {}
            heapq.heappush(self._times, slot)
            self._set()
        waiting[alarm] = None

    def remove(self, alarm: Alarm, slot: int) -> None:
        """The alarm is not called any more in this slot. An empty slot passes by itself."""
        waiting = self._slots.get(slot)
        if waiting is not None:  # else its slot has just come, and it is about to ring
            waiting.pop(alarm, None)

    def _set(self) -> None:
        """Have the loop call back for the earliest slot."""
        at = self._times[0] * TIMER_SLOT_S
        if self._handle is not None:
            if self._handle.when() <= at:
                return
            self._handle.cancel()
        self._handle = self._loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._handle = None
        # Half a slot: the loop may be a rounding error early, and must not be called twice.
        passed = math.floor(self._loop.time() / TIMER_SLOT_S + 0.5)
        while self._times and self._times[0] <= passed:
            for alarm in self._slots.pop(heapq.heappop(self._times)):
                # Not from here: one that raises must not keep the others from being called, and
                # what comes over the network has its turn in between.
                self._loop.call_soon(alarm.ring)
        if self._times:
            self._set()


class Alarm:
    """One caller's place in a Timer. It stands in one slot at most, and rings once when set."""

    __slots__ = ("_callback", "_slot", "_timer", "was_due")

    def __init__(self, timer: Timer, callback: Callable[[], None]) -> None:
        self._timer = timer
        self._callback = callback
        self._slot: int | None = None
        self.was_due = 0.0
        """The time that it was last set for, when it rings."""

    def set_by(self, at: float) -> None:
        """Ring at ``at`` at the latest: an alarm that is set for an earlier time stays."""
        slot = math.ceil(at / TIMER_SLOT_S)
        if self._slot is not None:
            if self._slot <= slot:
                return
            self._timer.remove(self, self._slot)
        self._slot = slot
        self._timer.add(self, slot)

    def ring(self) -> None:
        """The time has come, unless the alarm was cancelled on the way."""
        if self._slot is not None:
            self.was_due = self._slot * TIMER_SLOT_S
            self._slot = None
            self._callback()

    def cancel(self) -> None:
        """Do not ring. Idempotent."""
        if self._slot is not None:
            self._timer.remove(self, self._slot)
            self._slot = None
