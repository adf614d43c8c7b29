"""Shares the look-ups that run at a time between the connections whose requests wait for them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from spark_ledger.limits.bookie import (
    FIRST_CONTACT_AT_FIRST_MAX,
    FIRST_CONTACT_FOUND_MAX,
    FIRST_CONTACT_MISS_S,
    FIRST_CONTACT_PACED_MAX,
)


class LookupTurns:
    """Lets ``at_once`` look-ups run; the others wait, one queue for each connection, and the
    connections take turns.

    So a client that asks for thousands of ledgers that do not exist keeps one that asks for its own
    waiting for no more than a round. At most ``waiting_max`` wait. Of more, one that has less than
    its share takes the place of the newest of the one that has most.

    A connection whose last look-up found nothing is paced: all of these together begin one every
    ``FIRST_CONTACT_MISS_S``, in turn, and take no place of others while they wait for that. Until
    the first of a connection has ended only a few of its look-ups run: whoever is ended for ledgers
    that do not exist connects again, and would have all places each time.

    Everything here belongs to the loop of the metadata store.
    """

    def __init__(self, at_once: int, waiting_max: int) -> None:
        self._free = at_once
        self._waiting_max = waiting_max
        self._waiting: dict[str, deque[asyncio.Future[bool]]] = {}
        """By connection, the next one first; none is empty. Each is ready or held back."""
        self._count = 0
        self._ready: dict[str, None] = {}
        """Connections that wait for nothing but a place, the next one first."""
        self._held_back: dict[str, asyncio.TimerHandle] = {}
        """Connections that wait for their time."""
        self._paced: dict[str, float] = {}
        """When a connection that found nothing may begin its next look-up, the earliest first."""
        self._found: dict[str, None] = {}
        """Connections whose last look-up found a ledger, the longest ago first."""
        self._running: Counter[str] = Counter()
        """Look-ups, by connection; none is 0."""
        self._last_time = 0.0
        """The latest time that was given to one of them."""

    def take(self, who: str) -> asyncio.Future[bool] | None:
        """A turn: true once it has come, false if it has to make way. It ends with ``leave``. None:
        there are too many."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._free and not self._tries(who) and not self._has_to_wait(who):
            self._begin(who, turn)
            return turn
        if not self._has_room(who):
            return None
        if who not in self._waiting:
            self._waiting[who] = deque()
            self._line_up(who)
        self._waiting[who].append(turn)
        self._count += 1
        return turn

    def leave(self, who: str, turn: asyncio.Future[bool], *, found: bool | None = None) -> None:
        """A turn is over, or its look-up was given up before it came. ``found``: whether the ledger
        is there, if that is known now."""
        if turn.done() and not turn.cancelled():
            if turn.result():
                self._free += 1
                self._running[who] -= 1
                if not self._running[who]:
                    del self._running[who]
                self._learn(who, found=found)
                self._go_on()
        elif turn in (queue := self._waiting.get(who, deque())):
            queue.remove(turn)
            self._count -= 1
            if not queue:
                self._forget(who)

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

    def _go_on(self) -> None:
        """Give free places to the connections that are ready. Each waits behind all others then."""
        while self._free and self._ready:
            who = next(iter(self._ready))
            queue = self._waiting[who]
            turn = queue.popleft()
            self._count -= 1
            if not turn.done():  # else it was given up a moment ago
                self._begin(who, turn)
            if queue:
                self._line_up(who)
            else:
                self._forget(who)

    def _begin(self, who: str, turn: asyncio.Future[bool]) -> None:
        self._free -= 1
        self._running[who] += 1
        turn.set_result(True)
        if who in self._paced:
            self._pace(who)

    def _learn(self, who: str, *, found: bool | None) -> None:
        """Pace a connection from its first look-up on that finds nothing, until one finds a ledger:
        an honest one asks for a deleted ledger now and then."""
        was_paced = who in self._paced
        if found is not None:
            self._found.pop(who, None)
        if found:
            self._paced.pop(who, None)
            self._found[who] = None
            if len(self._found) > FIRST_CONTACT_FOUND_MAX:
                del self._found[next(iter(self._found))]
        elif found is False and not was_paced:
            self._pace(who)
        is_lined_up = who in self._ready or who in self._held_back
        if who in self._waiting and (not is_lined_up or was_paced != (who in self._paced)):
            self._line_up(who)

    def _pace(self, who: str) -> None:
        """Give a connection the next time, behind those of all others."""
        now = asyncio.get_running_loop().time()
        # Who has found a ledger since left its time unused: nobody waits for those.
        behind_all = now + FIRST_CONTACT_MISS_S * len(self._paced)
        self._last_time = min(max(now, self._last_time), behind_all) + FIRST_CONTACT_MISS_S
        self._paced.pop(who, None)
        self._paced[who] = self._last_time
        if len(self._paced) > FIRST_CONTACT_PACED_MAX:
            del self._paced[next(iter(self._paced))]

    def _tries(self, who: str) -> bool:
        """Nothing is known of a connection yet, and enough of its look-ups run to learn it."""
        is_new = who not in self._found and who not in self._paced
        return is_new and self._running[who] >= FIRST_CONTACT_AT_FIRST_MAX

    def _has_to_wait(self, who: str) -> bool:
        return self._paced.get(who, 0.0) > asyncio.get_running_loop().time()

    def _line_up(self, who: str) -> None:
        """Have a connection wait behind all others that are ready, for its time, or until one of
        its first look-ups has ended."""
        self._step_out(who)
        if self._tries(who):
            return
        if self._has_to_wait(who):
            loop = asyncio.get_running_loop()
            self._held_back[who] = loop.call_at(self._paced[who], self._is_due, who)
        else:
            self._ready[who] = None

    def _is_due(self, who: str) -> None:
        del self._held_back[who]
        self._ready[who] = None
        self._go_on()

    def _step_out(self, who: str) -> None:
        self._ready.pop(who, None)
        timer = self._held_back.pop(who, None)
        if timer is not None:
            timer.cancel()

    def _forget(self, who: str) -> None:
        """Nothing of a connection waits any more."""
        del self._waiting[who]
        self._step_out(who)
