"""A byte rate that several copies share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Throttle:
    """At most ``bytes_per_s`` on average, no more than a second's worth at once."""

    def __init__(self, bytes_per_s: float, clock: Callable[[], float] | None = None) -> None:
        self._rate = bytes_per_s
        self._clock = clock or asyncio.get_running_loop().time
        self._free_at = self._clock()

    async def take(self, count: int) -> None:
        """Wait until ``count`` bytes may pass. In the order of the calls."""
        now = self._clock()
        self._free_at = max(self._free_at, now - 1.0) + count / self._rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
