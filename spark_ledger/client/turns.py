"""One pass for each turn of the event loop over the machines that something has come for.

Of a client with many ledgers each message of a bookie answers hundreds of them, and in one turn of
a busy loop messages of several bookies come. To run each machine for each answer would cost more
than the answers do: what a machine looks at behind its events is the same for one as for three.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    """Calls back at the end of the turn in which something came. Belongs to the loop that made it.

    Who is called looks at all that has come for it until then.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Callable[[], None]] = []

    def add(self, callback: Callable[[], None]) -> None:
        """Call back once, behind what this turn still does."""
        if not self._waiting:
            self._loop.call_soon(self._call_all)
        self._waiting.append(callback)

    def _call_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - its machine was told; others are called
                self._loop.call_exception_handler(
                    {"message": "a machine of this client has crashed", "exception": error}
                )
