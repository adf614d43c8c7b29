"""Ends connections whose clients cost a bookie more than they may.

A call cannot be ended from here: its handler may end, but its status waits behind an answer that
the client does not read, and gRPC keeps both. A connection can: its socket is shut down, and gRPC
frees at once whatever it holds for it. A client of ours connects again, and asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from enum import Enum
from typing import Final

from bookie_server.service.guard.log_bound import LogBound
from bookie_server.service.guard.sockets import Sockets

logger = logging.getLogger(__name__)
logger.addFilter(LogBound())  # any client can cause a line

NOTHING_LEFT: Final = (OSError, RuntimeError)
"""What the process cannot have now: a descriptor, or, as RuntimeError, another thread."""


_AGAIN_S: Final = 0.25
"""After an attempt for which the process had nothing left, all are tried again."""


class Why(Enum):
    """What a client did; the name stands in metrics (in small letters), the value in the log."""

    UNREAD = "did not read its answer"
    UNFINISHED = "sent a part of a message, and no more"
    LONG = "sent a request that is too long"
    SILENT = "began more calls than it sent requests for"
    IDLE = "was idle for longest when there was no room for new ones"


class HangUp:
    """Call it with a peer. Service thread only."""

    def __init__(self, sockets: Sockets, ended: Counter[str]) -> None:
        """``ended`` counts the connections by reason, for metrics."""
        self._sockets = sockets
        self._ended = ended
        self._due: dict[str, Why] = {}
        self._task: asyncio.Task[None] | None = None

    def __call__(self, peer: str, why: Why) -> None:
        """End the connection of a peer soon."""
        self._due.setdefault(peer, why)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        """In a thread: to find a socket among ten thousand takes some milliseconds."""
        loop = asyncio.get_running_loop()
        try:
            while self._due:
                due, self._due = self._due, {}
                try:
                    ended = await loop.run_in_executor(None, self._sockets.hang_up, list(due))
                except NOTHING_LEFT as error:  # not all who are to blame are found again
                    logger.warning("nobody can be hung up on now: %s", error)
                    self._due = {**self._due, **due}
                    await asyncio.sleep(_AGAIN_S)
                    continue
                for peer in ended:
                    self._ended[due[peer].name.lower()] += 1
                    logger.info("hung up on %s: it %s", peer, due[peer].value)
        finally:
            self._task = None
