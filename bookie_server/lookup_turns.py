"""Shares the look-ups that run at a time between the connections whose requests wait for them."""

from __future__ import annotations

import asyncio
from collections import deque


class LookupTurns:
    """Lets ``at_once`` look-ups run; the others wait, one queue for each connection, and the
    connections take turns.

    So a client that asks for thousands of ledgers that do not exist keeps one that asks for its own
    waiting for no more than a round. At most ``waiting_max`` wait. Of more, one that has less than
    its share takes the place of the newest of the one that has most. Everything here belongs to the
    loop of the metadata store.
    """

    def __init__(self, at_once: int, waiting_max: int) -> None:
        self._free = at_once
        self._waiting_max = waiting_max
        self._waiting: dict[str, deque[asyncio.Future[bool]]] = {}
        """By connection, the next one first; none is empty."""
        self._count = 0

    def take(self, who: str) -> asyncio.Future[bool] | None:
        """A turn: true once it has come, false if it has to make way. It ends with ``leave``. None:
        there are too many."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._free:
            self._free -= 1
            turn.set_result(True)
            return turn
        if not self._has_room(who):
            return None
        self._waiting.setdefault(who, deque()).append(turn)
        self._count += 1
        return turn

    def leave(self, who: str, turn: asyncio.Future[bool]) -> None:
        """A turn is over, or its look-up was given up before it came."""
        if turn.done() and not turn.cancelled():
            if turn.result():
                self._next()
        elif turn in (queue := self._waiting.get(who, deque())):
            queue.remove(turn)
            self._count -= 1
            if not queue:
                del self._waiting[who]

    def _has_room(self, who: str) -> bool:
        if self._count < self._waiting_max:
            return True
        own = len(self._waiting.get(who, ()))
        others = len(self._waiting.keys() - {who})
        if (own + 1) * (others + 1) > self._waiting_max:
            return False
        most = max(self._waiting.values(), key=len)
        assert len(most) > own + 1, "another one has more than its share"
        newest = most.pop()
        self._count -= 1
        if not newest.done():  # else it was given up a moment ago
            newest.set_result(False)
        return True

    def _next(self) -> None:
        """Give the turn to the next connection, which then waits behind all others."""
        while self._waiting:
            who = next(iter(self._waiting))
            queue = self._waiting.pop(who)
            turn = queue.popleft()
            self._count -= 1
            if queue:
                self._waiting[who] = queue
            if not turn.done():  # else it was given up a moment ago
                turn.set_result(True)
                return
        self._free += 1
