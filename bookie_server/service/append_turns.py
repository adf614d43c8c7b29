"""Shares the time of the service loop between the connections whose adds wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from typing import Final

from spark_ledger.limits.bookie import APPEND_TURN_S, RECEIVE_S_PER_BYTE

_CONNECTIONS_KNOWN: Final = 4_096
"""Of more, all are equal again."""


class AppendTurns:
    """Bounds how long all streams together keep the loop between two looks at what has arrived, and
    gives each connection the same share of that time.

    A thousand streams that each take a short message would keep the loop for a second. So once the
    time of a round is used up the others wait for the next one. Who has used least goes first
    (start-time fair queuing: Goyal, Vin and Cheng, SIGCOMM 1996): a client that sends an add now
    and then waits for none of those that flood the bookie, however many streams they have. Each
    turn begins at a virtual time, which is where the connection's last one ended, or now; virtual
    time is that of the turn which began last. So whoever waits goes next some time.

    Everything here belongs to the service thread.
    """

    def __init__(
        self, round_s: float = APPEND_TURN_S, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._round_s = round_s
        self._clock = clock
        self._used_s = 0.0
        self._usual_s = round_s  # of one turn
        self._round_ends = False
        self._virtual_s = 0.0
        self._ends: dict[str, float] = {}  # of connections, in virtual time
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap
        self._count = 0

    @asynccontextmanager
    async def turn(self, connection: str, received_bytes: int = 0) -> AsyncIterator[None]:
        """Begins once it is the connection's turn; the time that the body takes is counted, and
        what the loop took before it to receive so many bytes."""
        expected_s = self._usual_s
        starts = max(self._virtual_s, self._ends.get(connection, 0.0))
        self._ends[connection] = starts + expected_s  # its other streams wait behind this one
        took_s = 0.0
        try:
            await self._wait(starts)
            began = self._clock()
            try:
                yield
            finally:
                took_s = self._clock() - began + received_bytes * RECEIVE_S_PER_BYTE
                self._used(took_s)
        finally:
            if connection in self._ends:
                self._ends[connection] += took_s - expected_s
            if len(self._ends) > _CONNECTIONS_KNOWN:
                self._virtual_s = max(self._ends.values())
                self._ends.clear()

    async def _wait(self, starts: float) -> None:
        while self._waiting and self._waiting[0][2].done():
            heappop(self._waiting)  # its stream has ended
        # Whoever has used less than all others may begin in a round that is over: a round more.
        bound_s = self._round_s if starts > self._virtual_s else 2 * self._round_s
        is_next = not self._waiting or starts < self._waiting[0][0]
        if is_next and self._used_s < bound_s:
            self._virtual_s = max(self._virtual_s, starts)
            return
        turn = asyncio.get_running_loop().create_future()
        self._count += 1  # of those that are equal, who came first
        heappush(self._waiting, (starts, self._count, turn))
        self._end_round()
        await turn

    def _used(self, seconds: float) -> None:
        self._used_s += seconds
        self._usual_s += (seconds - self._usual_s) / 8
        if self._used_s >= self._round_s:  # less needs no end: the next turn may come at once
            self._end_round()

    def _end_round(self) -> None:
        """Begin a new round once the loop has looked at what has arrived."""
        if not self._round_ends:
            self._round_ends = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        """Let as many go on as there is time for, and one in any case."""
        self._round_ends = False
        self._used_s = 0.0
        left_s = self._round_s
        while self._waiting and left_s > 0:
            starts, _, turn = heappop(self._waiting)
            if not turn.done():  # else its stream has ended
                self._virtual_s = max(self._virtual_s, starts)
                turn.set_result(None)
                left_s -= self._usual_s
        if self._waiting:
            self._end_round()
