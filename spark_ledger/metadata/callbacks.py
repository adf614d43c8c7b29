"""Callbacks that a store owes its users: kept, scheduled on their loop, cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Subscription:
    """One registered callback; implements ``Watch``.

    ``notify`` may be called from any thread. Calls that come while one is already scheduled are
    folded into it: a watch means "read again", so one call after the last change is enough.
    """

    def __init__(
        self, callback: Callable[[], None], on_cancel: Callable[[Subscription], None]
    ) -> None:
        self._callback = callback
        self._on_cancel = on_cancel
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._cancelled = False

    def notify(self) -> None:
        """Have the callback run soon, on the loop of whoever registered it."""
        if self._scheduled or self._cancelled or self._loop.is_closed():
            return
        self._scheduled = True
        with contextlib.suppress(RuntimeError):  # the loop was closed since the line above
            self._loop.call_soon_threadsafe(self._run)

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._on_cancel(self)

    def _run(self) -> None:
        self._scheduled = False
        if not self._cancelled:
            self._callback()
