"""LoopWatch: ends a process of the cluster whose loop stands still, as nothing else would.

The metadata session is kept alive by a thread of its own. So a bookie whose loop waits for a lock
that nobody gives back stays registered as writable, and answers nobody: each of its writers waits
for it. A keeper stays elected, and nobody recovers, repairs or drops anything. Its end is what all
others can deal with, and what a supervisor repairs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from spark_ledger.limits.bookie import LOOP_BEAT_S, LOOP_STILL_S, LOOP_STILL_TOLD_S

logger = logging.getLogger(__name__)


def end_at_once() -> None:
    """As killed: whoever is watched loses nothing by that."""
    os._exit(1)


def _call_later(delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, callback)


class LoopWatch:
    """Counts the turns of the loop that starts it; a thread looks whether there are more.

    The thread counts only the time in which it was itself not late: a process that was stopped, or
    gets no processor, stands still as a whole, and its session ends by itself.
    """

    def __init__(
        self,
        *,
        beat_s: float = LOOP_BEAT_S,
        told_s: float = LOOP_STILL_TOLD_S,
        still_s: float = LOOP_STILL_S,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[], None] = end_at_once,
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle] = _call_later,
    ) -> None:
        assert 0 < beat_s < told_s < still_s, "the loop has had its turn, and what holds it is told"
        self._beat_s = beat_s
        self._told_s = told_s
        self._still_s = still_s
        self._clock = clock
        self._end = end
        self._call_later = call_later
        # Counted by the loop, read by the thread.
        self._turns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        # Of the thread.
        self._seen = -1
        self._looked_at = clock()
        self._is_told = False
        self.stands_still_s = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Watch the loop that runs, until the end."""
        self._turn()
        threading.Thread(target=self._run, name="loop-watch", daemon=True).start()
        try:
            yield
        finally:
            self._stopped.set()
            if self._timer is not None:
                self._timer.cancel()

    def _turn(self) -> None:
        self._turns += 1
        self._timer = self._call_later(self._beat_s, self._turn)

    def _run(self) -> None:
        while not self._stopped.wait(self._beat_s):
            self.look()

    def look(self) -> None:
        """Look once."""
        now, turns = self._clock(), self._turns
        waited_s, self._looked_at = now - self._looked_at, now
        if turns != self._seen:
            if self._is_told:
                _say(logging.WARNING, f"the loop goes on after {self.stands_still_s:.1f} s")
            self._seen, self._is_told, self.stands_still_s = turns, False, 0.0
            return
        if waited_s <= 2 * self._beat_s:
            self.stands_still_s += waited_s
        text = f"the loop of the service has stood still for {self.stands_still_s:.1f} s"
        if self.stands_still_s >= self._told_s and not self._is_told:
            self._is_told = True
            _say(logging.ERROR, f"{text}; what each thread does:\n{_threads()}")
        if self.stands_still_s >= self._still_s:
            _say(logging.CRITICAL, f"{text}: the process ends, and loses nothing")
            self._end()


def _threads() -> str:
    """Where each thread is. Not by ``faulthandler``: it writes while it holds the interpreter, and
    who reads the output may not."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(number, number)}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
        for number, frame in sys._current_frames().items()
    )


def _say(level: int, text: str) -> None:
    """Log it, in a thread that is waited for only for a moment: the loop may hold the lock of the
    log, or wait for who reads it."""
    thread = threading.Thread(target=logger.log, args=(level, "%s", text), daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread is to be had: it is not said
        thread.start()
        thread.join(1.0)
