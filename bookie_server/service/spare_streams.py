"""Which append stream makes way for a new one when there are as many as may be.

A client of ours has one of them to a bookie, for all of its writers. Somebody who opens hundreds
and sends nothing would keep every new writer out for as long as he likes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, Protocol

from bookie_server.service.calls import HangsUp
from bookie_server.service.guard.hanging_up import Why
from spark_ledger.limits.bookie import BOOKIE_RECEIVE_S, BOOKIE_UNREAD_GRACE_S


class Stream(Protocol):
    """An append stream of the connection of ``peer``. Times are negative if it does not wait."""

    peer: str
    is_known: bool
    """Something of it was stored."""

    @property
    def ends(self) -> bool:
        """It was told to end."""

    @property
    def idle_s(self) -> float:
        """For how long it has waited for its client, with nothing of it under way."""

    @property
    def unread_s(self) -> float:
        """For how long its client has not read what it was answered."""

    def end_refused(self, message: str) -> None:
        """End; ``message`` is for its client, which is told that the bookie is busy."""


class SpareStreams:
    """Finds and ends them. Service thread only."""

    def __init__(
        self,
        streams: Collection[Stream],
        hang_up: HangsUp,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``streams`` are those that are open, always."""
        self._open = streams
        self._hang_up = hang_up
        self._clock = clock
        self._looks_again_at, self._in_vain = float("-inf"), 0

    def make_way(self, own: int) -> bool:
        """Have one stream end, for a connection that has ``own`` of them. False: there is none.

        It is one that has stored nothing, of the connection that has most, and of that one the
        stream that has been idle for longest. Its writers, if it has any, notice when they have
        something to send: they are told that the bookie is busy, and their client opens another
        (rule P11). A stream that has stored something stays, however idle it is.
        """
        now = self._clock()
        if now < self._looks_again_at and own >= self._in_vain:
            return False
        of_connection = Counter(stream.peer for stream in self._open if not stream.ends)
        spare = [
            (of_connection[stream.peer], stream.idle_s, id(stream), stream)
            for stream in self._open
            if _is_spare(stream, of_connection[stream.peer], own)
        ]
        if not spare:
            self._looks_again_at, self._in_vain = now + _LOOK_AGAIN_S, own
            return False
        *_rank, stream = max(spare)
        if stream.unread_s >= 0:  # its status would wait behind what its client does not read
            self._hang_up(stream.peer, Why.UNREAD)
        stream.end_refused(_MADE_WAY)
        return True


def _is_spare(stream: Stream, of_connection: int, own: int) -> bool:
    """Whether a stream of a connection that has so many may end for one that has ``own``."""
    if stream.is_known or stream.ends or stream.idle_s < 0:
        return False
    if 0 <= stream.unread_s < BOOKIE_UNREAD_GRACE_S:
        return False  # it is about to be read
    # The only one of a connection may be that of a writer whose first entry is on its way.
    is_one_of_many = of_connection >= own + 2
    return is_one_of_many or (not own and stream.idle_s >= BOOKIE_RECEIVE_S)


_LOOK_AGAIN_S: Final = 0.1
"""After a look at two thousand streams that found none: it takes a millisecond."""

_MADE_WAY: Final = (
    "there are as many append streams as may be, and this one has stored nothing: open a new one"
)
