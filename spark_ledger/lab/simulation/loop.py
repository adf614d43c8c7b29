"""An asyncio event loop in virtual time, and the simulated processes whose callbacks it runs.

Nothing waits for real time, and nothing runs in a thread. Every callback belongs to the process in
whose context it was created: callbacks of a dead process never run, those of a paused one run
later. Each process has its own clock, which may be fast or slow.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any
from weakref import WeakKeyDictionary

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)

_TURNS_BETWEEN_LOOKS = 16
_QUIET_S = 0.2
_AWAITS_WHILE_CLOSED_MAX = 10
_WORLD = contextvars.Context()


class Process:
    """A simulated process: alive, paused or dead, with a monotonic and a wall clock."""

    def __init__(self, name: str, *, rate: float = 1.0, wall_offset_s: float = 0.0) -> None:
        self.name = name
        self.rate = rate
        self.wall_offset_s = wall_offset_s
        self.alive = True
        self.paused = False
        self.resumed_at = 0.0
        """Since when it runs without a pause; virtual seconds."""
        self.held: list[Handle] = []
        self.context = contextvars.Context()
        self.context.run(_PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name


def current_process() -> Process | None:
    """The process whose callback is running; None for the world itself."""
    return _PROCESS.get()


class Handle:
    """A waiting callback. What ``call_soon`` and ``call_at`` return."""

    __slots__ = ("args", "callback", "cancelled_", "context", "process", "when_")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context,
        process: Process | None,
        when: float,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.process = process
        self.when_ = when
        self.cancelled_ = False

    def cancel(self) -> None:
        """Drop the callback."""
        self.cancelled_ = True

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.cancelled_

    def when(self) -> float:
        """When the callback is due, on its process's clock."""
        return self.when_ if self.process is None else self.when_ * self.process.rate


class Deadlock(AssertionError):
    """Somebody waits, but nothing is ready and no timer is set."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop. ``shuffle`` interleaves processes that are ready at the same time."""

    def __init__(self, rng: random.Random, *, shuffle: bool) -> None:
        self.now = 0.0
        """Virtual seconds since the start, on no process's clock."""
        self.callbacks = 0
        """How many callbacks have run."""
        self.on_error: Callable[[BaseException | None, str], None] = lambda error, text: None
        self._rng = rng
        self._shuffle = shuffle
        self._ready: list[Handle] = []
        self._timers: list[tuple[float, int, Handle]] = []
        self._number = 0
        self._closed = False
        self._buried: set[asyncio.Task[Any]] = set()
        self._processes: WeakKeyDictionary[asyncio.Task[Any], Process | None] = WeakKeyDictionary()

    # -- what asyncio asks for ---------------------------------------------------------------------

    def time(self) -> float:
        process = _PROCESS.get()
        return self.now if process is None else self.now * process.rate

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = Handle(callback, args, context, context.get(_PROCESS), self.now)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        """Call back after seconds of the process's clock."""
        if context is None:
            context = contextvars.copy_context()
        process = context.get(_PROCESS)
        if process is not None:
            delay /= process.rate
        self._number += 1
        when = self.now + delay if delay > 0.0 else self.now
        handle = Handle(callback, args, context, process, when)
        heappush(self._timers, (when, self._number, handle))
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._processes[task] = _PROCESS.get() if context is None else context.get(_PROCESS)
        return task

    def tasks_of(self, process: Process) -> list[asyncio.Task[Any]]:
        """What has not ended of what a process has begun."""
        return [task for task in asyncio.all_tasks(self) if self._processes[task] is process]

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run at once: there are no threads here."""
        future = self.create_future()
        future.set_result(func(*args))
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.on_error(context.get("exception"), str(context.get("message", "")))

    def bury(self, process: Process) -> None:
        """Kill a process. Its tasks are kept until the end: asyncio reports tasks that are
        collected while pending."""
        process.alive = False
        self._buried.update(task for task in asyncio.all_tasks(self) if not task.done())

    # -- driving -----------------------------------------------------------------------------------

    def later(
        self, delay_s: float, process: Process | None, callback: Callable[..., Any], *args: Any
    ) -> Handle:
        """Call back in a process after seconds of virtual time, on no process's clock."""
        return self.at(self.now + delay_s, process, callback, *args)

    def at(
        self, when: float, process: Process | None, callback: Callable[..., Any], *args: Any
    ) -> Handle:
        """Call back at a virtual time. Callbacks for the same time run in the order of these
        calls."""
        self._number += 1
        context = _WORLD if process is None else process.context
        handle = Handle(callback, args, context, process, when)
        heappush(self._timers, (when, self._number, handle))
        return handle

    def spawn(self, process: Process | None, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in a process."""
        context = contextvars.Context() if process is None else process.context.copy()
        return self.create_task(work, context=context)

    def run(self, is_done: Callable[[], bool], *, until_s: float, callbacks_max: int) -> bool:
        """Run until ``is_done``, a virtual time, or a number of callbacks. Returns whether it is
        done, which is checked every few turns.

        Raises Deadlock if nothing is left that could run.
        """
        asyncio._set_running_loop(self)
        timers = self._timers
        turns = 0
        try:
            while True:
                if not turns:
                    if is_done():
                        return True
                    turns = _TURNS_BETWEEN_LOOKS
                turns -= 1
                if self.now >= until_s or self.callbacks >= callbacks_max:
                    return False
                if not self._ready:
                    # Nothing happens for a while: a cheap moment to check.
                    if (not timers or timers[0][0] > self.now + _QUIET_S) and is_done():
                        return True
                    self._advance(until_s)
                self._run_ready()
        finally:
            asyncio._set_running_loop(None)

    def _advance(self, until_s: float) -> None:
        """Advance the time to the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled_:
            heappop(timers)
        if not timers:
            raise Deadlock("nothing is ready and no timer is set")
        when = timers[0][0]
        if when > until_s:
            when = until_s
        if when > self.now:
            self.now = when
        now, ready = self.now, self._ready
        while timers and timers[0][0] <= now:
            handle = heappop(timers)[2]
            if not handle.cancelled_:
                ready.append(handle)

    def _run_ready(self) -> None:
        batch = self._ready
        self._ready = []
        if self._shuffle and len(batch) > 1:
            batch = self._shuffled(batch)
        for handle in batch:
            if handle.cancelled_:
                continue
            process = handle.process
            if process is not None:
                if not process.alive:
                    continue
                if process.paused:
                    process.held.append(handle)
                    continue
            self.callbacks += 1
            try:
                handle.context.run(handle.callback, *handle.args)
            except Exception as error:  # noqa: BLE001 - the world must know of anything
                self.on_error(error, "in a callback")

    def _shuffled(self, batch: list[Handle]) -> list[Handle]:
        """Interleave processes at random; within one process, callbacks keep their order."""
        turns = [handle.process for handle in batch]
        if turns.count(turns[0]) == len(turns):
            return batch
        queues: dict[Process | None, deque[Handle]] = {}
        for handle in batch:
            queues.setdefault(handle.process, deque()).append(handle)
        self._rng.shuffle(turns)
        return [queues[turn].popleft() for turn in turns]

    def resume(self, process: Process) -> None:
        """Let a paused process go on, first with the callbacks it missed."""
        process.paused, process.resumed_at = False, self.now
        held, process.held = process.held, []
        self._ready.extend(held)

    def _end_coroutines(self) -> None:
        """End what still waits for a time that does not come, as in a ``finally``. Whoever collects
        such a coroutine later would run its rest without a loop, and report the error."""
        for task in asyncio.all_tasks(self):
            coroutine = task.get_coro()
            for _ in range(_AWAITS_WHILE_CLOSED_MAX):
                with suppress(Exception):  # it waits again, or fails at its end
                    coroutine.close()
                    break

    def close(self) -> None:
        """Cancel every task, let them end unrecorded, and drop what is left."""
        asyncio._set_running_loop(self)
        try:
            for _ in range(20):
                tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                for _ in range(20):
                    batch, self._ready = self._ready, []
                    for handle in batch:
                        if not handle.cancelled_:
                            with suppress(Exception):
                                handle.context.run(handle.callback, *handle.args)
                    if not self._ready:
                        break
            self._end_coroutines()
        finally:
            asyncio._set_running_loop(None)
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        self._buried.clear()
