"""Questions for the end of a ledger that wait until it has moved on: readers at the tail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.bookie_api import BookieApi, LedgerEnd
from spark_ledger.limits.entries import LONG_POLL_S_MAX
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb


class _Poll:
    """One that waits. ``makes_way``: for another connection's, before its time."""

    __slots__ = ("changed", "connection", "makes_way")

    def __init__(self, connection: str) -> None:
        self.connection = connection
        self.changed = asyncio.Event()
        self.makes_way = False


class LongPolls:
    """All that wait, by connection. Service thread only."""

    def __init__(
        self,
        bookie: BookieApi,
        metrics: ServiceMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._looks_again_at, self._in_vain = float("-inf"), 0
        self._bookie = bookie
        self._metrics = metrics
        self._of_connection: dict[str, dict[_Poll, None]] = {}  # the oldest of each first
        self._is_draining = False

    def __len__(self) -> int:
        return sum(map(len, self._of_connection.values()))

    def drain(self) -> None:
        """Answer all now, and those that come."""
        self._is_draining = True
        for polls in self._of_connection.values():
            for poll in polls:
                poll.changed.set()

    def make_way(self, own: int) -> bool:
        """Have one poll end now, for a connection that has ``own`` of them: the oldest of the
        connection that has most, if it has more than that one would then have. Its client is told
        that the bookie is busy, and asks again later; were it to end for one that has as many,
        they would take turns without a pause. False: there is none."""
        now = self._clock()
        if now < self._looks_again_at and own >= self._in_vain:
            return False
        greedy = max(self._of_connection.values(), key=len, default={})
        if len(greedy) < own + 2:
            self._looks_again_at, self._in_vain = now + _LOOK_AGAIN_S, own
            return False
        poll = next(iter(greedy))
        self._forget(poll)
        poll.makes_way = True
        poll.changed.set()
        return True

    async def end_of_ledger(
        self, request: pb.ReadLastConfirmedRequest, connection: str
    ) -> LedgerEnd:
        """The end once its LAC is above ``wait_above`` or the ledger is fenced.

        A ledger that is not known here yet is waited for as well: its first entry may be on its
        way. When nothing happens within the time, the end as it is then.
        """
        poll = _Poll(connection)
        ledger_id, above = LedgerId(request.ledger_id), EntryId(request.wait_above)
        cancel = self._bookie.watch_last_confirmed(ledger_id, above, poll.changed.set)
        self._metrics.long_polls += 1
        self._of_connection.setdefault(connection, {})[poll] = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(request.wait_ms / 1000, LONG_POLL_S_MAX)):
                    while not (self._is_draining or poll.makes_way or self._has_moved(request)):
                        poll.changed.clear()
                        await poll.changed.wait()
        finally:
            self._metrics.long_polls -= 1
            self._forget(poll)
            cancel()
        if poll.makes_way and not self._has_moved(request):
            return LedgerEnd.without_end(BookieStatus.TOO_MANY_REQUESTS, _MADE_WAY)
        return self._end(request)

    def _forget(self, poll: _Poll) -> None:
        polls = self._of_connection.get(poll.connection, {})
        polls.pop(poll, None)
        if not polls:
            self._of_connection.pop(poll.connection, None)

    def _end(self, request: pb.ReadLastConfirmedRequest) -> LedgerEnd:
        return self._bookie.end_of_ledger(
            LedgerId(request.ledger_id), access_key=request.access_key
        )

    def _has_moved(self, request: pb.ReadLastConfirmedRequest) -> bool:
        end = self._end(request)
        if end.status is BookieStatus.NO_SUCH_LEDGER:
            return False
        return (
            end.status is not BookieStatus.OK
            or end.fenced
            or end.last_add_confirmed > request.wait_above
        )


_LOOK_AGAIN_S: Final = 0.1
"""After a look at four thousand connections that found none: 0.3 ms."""

_MADE_WAY: Final = "this tail request made way for another client's: ask again later"
