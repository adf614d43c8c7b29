"""Decides when append streams are read on: a bound for all, and a share for each connection.

What is not read stays with its client, so nobody waits behind more than the shares of others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from bookie_server.service.held_messages import HeldMessages
from bookie_server.service.refused_appenders import RefusedAppenders
from spark_ledger.bookie_api import BookieApi
from spark_ledger.limits.bookie import BOOKIE_APPEND_SHARED_BYTES

_SHORT_MEMORY_DIVISOR: Final = 8
"""Of the bound on bytes in flight: appends never stop for lack of memory, they get slower."""

_EXPECTED_FOR_S: Final = 0.05
"""A stream that may read on has read its next message by then, or its client has none."""


_Place: TypeAlias = "tuple[asyncio.Future[None], int]"
"""Who waits, and for how much."""


async def _turn_of(place: _Place, waiting: deque[_Place]) -> None:
    """Wait. A stream that ends leaves nothing: while a disk hangs nobody else takes it out."""
    try:
        await place[0]
    except asyncio.CancelledError:
        with suppress(ValueError):  # it was let go
            waiting.remove(place)
        raise


class AppendGate:
    """Holds back the reading of all streams while the bookie has too many bytes in flight.

    Streams wait in a row. Each that goes on is counted for a moment with what it is expected to
    read: a thousand that were let go together would each read a message before one is counted.
    """

    def __init__(self, bookie: BookieApi, bytes_max: int) -> None:
        # Everything here belongs to the service thread.
        self._bookie = bookie
        self._bytes_max = bytes_max
        self._memory_is_short = False
        self._bytes_expected = 0
        self._waiting: deque[_Place] = deque()
        self._check_is_due = False
        self.refused = RefusedAppenders()
        """Of all streams that go through this gate."""
        self.held = HeldMessages()
        """Of the same streams."""

    async def wait(self, expected_bytes: int) -> None:
        """Return once the bookie takes more; ``expected_bytes`` is what the next message has."""
        if self._waiting or self._is_closed():
            place = asyncio.get_running_loop().create_future(), expected_bytes
            self._waiting.append(place)
            await _turn_of(place, self._waiting)

    def memory_is_short(self, is_short: bool) -> None:
        """Take in less from now on, or as much as usual again."""
        self._memory_is_short = is_short
        self.completed()

    def completed(self) -> None:
        """Some bytes were answered: look again, once for all completions of a journal batch."""
        if self._waiting and not self._check_is_due:
            self._check_is_due = True
            asyncio.get_running_loop().call_soon(self._check)

    def _is_closed(self) -> bool:
        bytes_in_flight = self._bookie.append_bytes_in_flight
        bytes_max = self._bytes_max // (_SHORT_MEMORY_DIVISOR if self._memory_is_short else 1)
        return bytes_in_flight + self._bytes_expected > bytes_max

    def _check(self) -> None:
        self._check_is_due = False
        while self._waiting and not self._is_closed():
            turn, expected_bytes = self._waiting.popleft()
            if turn.done():
                continue  # its stream has ended
            turn.set_result(None)
            self._bytes_expected += expected_bytes
            loop = asyncio.get_running_loop()
            loop.call_later(_EXPECTED_FOR_S, self._arrived, expected_bytes)

    def _arrived(self, expected_bytes: int) -> None:
        self._bytes_expected -= expected_bytes
        self.completed()


class AppendShares:
    """Keeps what all connections together have in flight small enough for a new add to be quick.

    The journal takes adds in the order in which they were read. So a connection is read on only
    while its share has room for what it has in flight and its next message: the bound, divided by
    the connections that have something in flight. One that has nothing is read at once, so a client
    that waits for each of its entries meets at most the shares of those who flood. Of several
    streams of a connection each is let go in turn. A connection that is alone keeps nobody waiting,
    and is read for as long as it is below the bound.

    Everything here belongs to the service thread.
    """

    def __init__(self, bytes_max: int = BOOKIE_APPEND_SHARED_BYTES) -> None:
        self._bytes_max = bytes_max
        self._in_flight: dict[str, int] = {}  # no connection is in it with nothing
        self._waiting: dict[str, deque[_Place]] = {}
        self._barred: Counter[str] = Counter()
        self._check_is_due = False

    async def wait(self, connection: str, expected_cost: int) -> None:
        """Return once the connection may be read; its next message costs ``expected_cost``."""
        if connection in self._waiting or not self._has_room(connection, expected_cost):
            place = asyncio.get_running_loop().create_future(), expected_cost
            waiting = self._waiting.setdefault(connection, deque())
            waiting.append(place)
            try:
                await _turn_of(place, waiting)
            finally:
                if not waiting and self._waiting.get(connection) is waiting:
                    del self._waiting[connection]

    def bar(self, connection: str, seconds: float) -> None:
        """Read nothing more from it for so long: what it sends is a waste of time."""
        self._barred[connection] += 1
        asyncio.get_running_loop().call_later(seconds, self._unbar, connection)

    def _unbar(self, connection: str) -> None:
        self._barred[connection] -= 1
        if not self._barred[connection]:
            del self._barred[connection]
            self._look_again()

    def began(self, connection: str, cost: int) -> None:
        """Adds were read, or are about to be; ``cost`` is positive."""
        self._in_flight[connection] = self._in_flight.get(connection, 0) + cost

    def ended(self, connection: str, cost: int) -> None:
        """They were answered."""
        left = self._in_flight.pop(connection) - cost
        assert left >= 0, "an add is answered once"
        if left:
            self._in_flight[connection] = left
        self._look_again()

    def _look_again(self) -> None:
        if self._waiting and not self._check_is_due:  # once for a whole journal batch
            self._check_is_due = True
            asyncio.get_running_loop().call_soon(self._check)

    def _has_room(self, connection: str, expected_cost: int) -> bool:
        if connection in self._barred:
            return False
        own = self._in_flight.get(connection, 0)
        if not own or len(self._in_flight) == 1:
            return own < self._bytes_max
        return own + expected_cost <= self._bytes_max // len(self._in_flight)

    def _check(self) -> None:
        self._check_is_due = False
        loop = asyncio.get_running_loop()
        for connection, turns in list(self._waiting.items()):
            while turns and self._has_room(connection, turns[0][1]):
                turn, cost = turns.popleft()
                if turn.done():
                    continue  # its stream has ended
                turn.set_result(None)
                if turns and cost:  # those behind it must see what it will read
                    self.began(connection, cost)
                    loop.call_later(_EXPECTED_FOR_S, partial(self.ended, connection, cost))
            if not turns:
                del self._waiting[connection]
