"""Background work on an asyncio loop: how a task is ended, how long an event is waited for, what
runs in a thread, and how fast it may go."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


# What a task returns is nobody's business here.
async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and return once they have ended. How they ended is not said."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until the event is set, or so long. The caller looks which of the two it was."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def in_thread(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Do what takes long in a thread. Once the main thread has ended, as in an exit handler, Python
    begins none: then it is done here, and the loop waits."""
    if threading.main_thread().is_alive():
        return await asyncio.to_thread(work, *args, **named)
    return work(*args, **named)


class Throttle:
    """At most ``bytes_per_s`` on average, no more than a second's worth at once."""

    def __init__(self, bytes_per_s: float, clock: Callable[[], float] | None = None) -> None:
        self._rate = bytes_per_s
        self._clock = clock or asyncio.get_running_loop().time
        self._free_at = self._clock()

    @property
    def wait_s(self) -> float:
        """How long the next one waits."""
        return max(0.0, self._free_at - self._clock())

    def reserve(self, count: int) -> float:
        """Take ``count`` bytes; how long to wait until they may pass. In the order of the calls."""
        now = self._clock()
        self._free_at = max(self._free_at, now - 1.0) + count / self._rate
        return max(0.0, self._free_at - now)

    async def take(self, count: int) -> None:
        """Wait until ``count`` bytes may pass."""
        wait_s = self.reserve(count)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
