"""Which append stream makes way for a new one when there are as many as may be.

A client of ours has one of them to a bookie, for all of its writers. Somebody who opens hundreds
and sends nothing would keep every new writer out for as long as he likes.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heapreplace
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
        self._looks_again_at = float("-inf")
        self._found: deque[tuple[int, Stream]] = deque()
        """By the last look: who makes way in turn, and how many its connection will have then."""

    def make_way(self, own: int) -> bool:
        """Have one stream end, for a connection that has ``own`` of them. False: there is none.

        It is one that has stored nothing, of the connection that has most, and of that one the
        stream that has been idle for longest. Its writers, if it has any, notice when they have
        something to send: they are told that the bookie is busy, and their client opens another
        (rule P11). A stream that has stored something stays, however idle it is.
        """
        now = self._clock()
        if now >= self._looks_again_at:
            self._looks_again_at = now + _LOOK_AGAIN_S
            self._found = self._look()
        while self._found:
            of_connection, stream = self._found[0]
            is_one_of_many = of_connection >= own + 2
            # The only one of a connection may be that of a writer whose first entry is on its way.
            if not is_one_of_many and (own or stream.idle_s < BOOKIE_RECEIVE_S):
                return False  # nor for those behind it: they have fewer, or waited less
            self._found.popleft()
            if stream not in self._open or not _is_spare(stream, of_connection):
                continue
            if stream.unread_s >= 0:  # its status would wait behind what its client does not read
                self._hang_up(stream.peer, Why.UNREAD)
            stream.end_refused(_MADE_WAY)
            return True
        return False

    def _look(self) -> deque[tuple[int, Stream]]:
        """The first of those that make way in turn."""
        of_connection: Counter[str] = Counter()
        spare: dict[str, list[tuple[float, int, Stream]]] = {}
        known: set[str] = set()
        for stream in self._open:
            if stream.ends:
                continue
            of_connection[stream.peer] += 1
            if stream.is_known:
                known.add(stream.peer)
            elif (idle_s := stream.idle_s) >= 0 and not _is_about_to_be_read(stream):
                spare.setdefault(stream.peer, []).append((idle_s, id(stream), stream))
        for peer, streams in spare.items():
            least_s = _least_idle_s(of_connection[peer])
            spare[peer] = [each for each in streams if each[0] >= least_s]
        for peer in known & spare.keys():  # its connection, which would have to end, is of use
            spare[peer] = [each for each in spare[peer] if each[-1].unread_s < 0]
        order: list[tuple[int, float, str]] = []
        for peer, streams in spare.items():
            if streams:
                streams.sort()
                order.append((-of_connection[peer], -streams[-1][0], peer))
        heapify(order)
        found: deque[tuple[int, Stream]] = deque()
        while order and len(found) < _FOUND_MAX:
            count, _idle_s, peer = order[0]
            streams = spare[peer]
            found.append((-count, streams.pop()[-1]))
            if streams:
                heapreplace(order, (count + 1, -streams[-1][0], peer))
            else:
                heappop(order)
        return found


def _is_spare(stream: Stream, of_connection: int) -> bool:
    """Whether a stream may end for another, if its connection has more of them."""
    if stream.is_known or stream.ends or stream.idle_s < _least_idle_s(of_connection):
        return False
    return not _is_about_to_be_read(stream)


def _least_idle_s(of_connection: int) -> float:
    return _IDLE_S if of_connection <= _FEW else _IDLE_OF_MANY_S


def _is_about_to_be_read(stream: Stream) -> bool:
    return 0 <= stream.unread_s < BOOKIE_UNREAD_GRACE_S


_LOOK_AGAIN_S: Final = 0.25
"""Between two looks at two thousand streams: each takes five to ten milliseconds."""

_FOUND_MAX: Final = 128
"""So many make way after one look, at most: they are kept until the next one."""

_IDLE_S: Final = 1.0
"""A stream that has waited for less may be that of a client whose first entry is on its way."""

_FEW: Final = 4
"""A client of ours has one stream."""

_IDLE_OF_MANY_S: Final = 0.1
"""The same for a connection that has more. To send nothing again and again must not keep all
places: two thousand streams would need twenty thousand messages a second."""

_MADE_WAY: Final = (
    "there are as many append streams as may be, and this one has stored nothing: open a new one"
)
