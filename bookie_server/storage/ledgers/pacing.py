"""How fast a thread goes through what is stored, and how it is told to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Pace = Callable[[int], None]
"""Waits until so many bytes more may be read or copied. Raises ``Stopped`` if nothing more may."""


class Stopped(Exception):
    """The thread was told to end."""


class Pacer:
    """Of one pass after the other; *whoever makes the pass*."""

    def __init__(self, stop: threading.Event) -> None:
        """``stop``: set by any thread, once."""
        self._stop = stop
        self.busy_until = 0.0

    def begin(self) -> None:
        """A pass begins: what was not used before it is not made up for."""
        self.busy_until = time.monotonic()

    def wait(self, byte_count: int, bytes_per_s: float) -> None:
        """Wait until so much more may be done. Raises Stopped."""
        now = time.monotonic()
        self.busy_until = max(now, self.busy_until) + byte_count / bytes_per_s
        if self._stop.wait(self.busy_until - now):
            raise Stopped
