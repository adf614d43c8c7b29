"""One timer for everything in a client that waits for a time: who is due is called, nobody polls.

A client has thousands of writers, and each of them waits for something that rarely happens: a
bookie that stays silent. Were each to look at the clock fifty times a second, a client beside one
silent bookie would do little else. So each says when it wants to be called, and one timer of the
event loop stands for the earliest of them. Times are rounded up to steps: what is due together is
called in one turn of the loop.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable

from spark_ledger.limits.client import TIMER_STEP_S


class Timer:
    """Calls back at given times of the event loop's clock. Belongs to the loop that made it.

    Every step that somebody waits in is in ``_times`` once, and the loop's timer is set for the
    earliest of them or for one before it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps: dict[int, dict[Alarm, None]] = {}
        self._times: list[int] = []
        """The steps that are in use, as a heap."""
        self._handle: asyncio.TimerHandle | None = None
        self._is_closed = False

    def alarm(
        self, callback: Callable[[], None], closed: Callable[[], None] | None = None
    ) -> Alarm:
        """An alarm that is not set yet. ``closed`` is called instead if the timer is closed while
        it is set, or was before: whoever waits for time alone would wait for ever."""
        return Alarm(self, callback, closed)

    def add(self, alarm: Alarm, step: int) -> None:
        """Have the alarm called in this step."""
        if self._is_closed:
            self._loop.call_soon(alarm.end)
            return
        waiting = self._steps.get(step)
        if waiting is None:
            waiting = self._steps[step] = {}
            heapq.heappush(self._times, step)
            self._set()
        waiting[alarm] = None

    def remove(self, alarm: Alarm, step: int) -> None:
        """The alarm is not called any more in this step. An empty step passes by itself."""
        waiting = self._steps.get(step)
        if waiting is not None:  # else its step has just come, and it is about to ring
            waiting.pop(alarm, None)

    def close(self) -> None:
        """Ring no more: the connection is closed, and each alarm that is set is told. The loop,
        which is the application's, would keep all that waits here until the last of them is due.
        """
        self._is_closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        for waiting in self._steps.values():
            for alarm in waiting:
                self._loop.call_soon(alarm.end)
        self._steps, self._times = {}, []

    def _set(self) -> None:
        """Have the loop call back for the earliest step."""
        at = self._times[0] * TIMER_STEP_S
        if self._handle is not None:
            if self._handle.when() <= at:
                return
            self._handle.cancel()
        self._handle = self._loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._handle = None
        # Half a step: the loop may be a rounding error early, and must not be called twice.
        passed = math.floor(self._loop.time() / TIMER_STEP_S + 0.5)
        while self._times and self._times[0] <= passed:
            for alarm in self._steps.pop(heapq.heappop(self._times)):
                # Not from here: one that raises must not keep the others from being called, and
                # what comes over the network has its turn in between.
                self._loop.call_soon(alarm.ring)
        if self._times:
            self._set()


class Alarm:
    """One caller's place in a Timer. It stands in one step at most, and rings once when set."""

    __slots__ = ("_callback", "_closed", "_step", "_timer", "was_due")

    def __init__(
        self, timer: Timer, callback: Callable[[], None], closed: Callable[[], None] | None
    ) -> None:
        self._timer = timer
        self._callback = callback
        self._closed = closed
        self._step: int | None = None
        self.was_due = 0.0
        """The time that it was last set for, when it rings."""

    def set_by(self, at: float) -> None:
        """Ring at ``at`` at the latest: an alarm that is set for an earlier time stays."""
        step = math.ceil(at / TIMER_STEP_S)
        if self._step is not None:
            if self._step <= step:
                return
            self._timer.remove(self, self._step)
        self._step = step
        self._timer.add(self, step)

    @property
    def is_set(self) -> bool:
        """Whether it rings at some time."""
        return self._step is not None

    def is_set_by(self, at: float) -> bool:
        """Whether it rings at ``at`` at the latest, so that ``set_by`` would change nothing."""
        return self._step is not None and self._step <= math.ceil(at / TIMER_STEP_S)

    def ring(self) -> None:
        """The time has come, unless the alarm was cancelled on the way."""
        if self._step is not None:
            self.was_due = self._step * TIMER_STEP_S
            self._step = None
            self._callback()

    def end(self) -> None:
        """It will never ring, unless it was cancelled on the way: the timer is closed."""
        if self._step is not None:
            self._step = None
            if self._closed is not None:
                self._closed()

    def cancel(self) -> None:
        """Do not ring. Idempotent."""
        if self._step is not None:
            self._timer.remove(self, self._step)
            self._step = None
