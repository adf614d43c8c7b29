"""Looks at what clients have sent and not finished, and at who was idle for longest.

Work that arrives is bounded where it is counted. What gRPC takes in by itself is not: parts of
messages of which the rest never comes, and connections that nobody uses. This looks at both, at a
few connections at a time, so that a thousand clients do not make it expensive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from bookie_server.service.calls import CallLimits
from bookie_server.service.guard.beat import call_on_beat
from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.hanging_up import NOTHING_LEFT, HangUp, Why
from bookie_server.service.guard.log_bound import LogBound
from bookie_server.service.guard.sockets import Received, Sockets, open_file_count
from bookie_server.service.guard.strangers import Orders, Strangers
from spark_ledger.limits.bookie import (
    BOOKIE_CONNECTION_IDLE_S,
    BOOKIE_CONNECTION_LOOK_S,
    BOOKIE_CONNECTION_SOON_S,
    BOOKIE_CONNECTIONS_FREE_SHARE,
    BOOKIE_CONNECTIONS_LOOK_S,
    BOOKIE_CONNECTIONS_LOOKED_AT,
    BOOKIE_HELD_BYTES_MAX,
    BOOKIE_IDLE_S,
    BOOKIE_RECEIVE_S,
    BOOKIE_REQUEST_LATE_S,
    BOOKIE_STALLED_MESSAGE_S,
    BOOKIE_UNFINISHED_BYTES_MAX,
)

logger = logging.getLogger(__name__)
logger.addFilter(LogBound())  # a look that fails is repeated ten times a second


class Appending(Protocol):
    """An append stream."""

    peer: str
    is_known: bool
    """Something of it was stored."""

    @property
    def has_waited_s(self) -> float:
        """For how long it has waited for the rest of a message, or for the next one."""


class _Part:
    """A message that has not arrived as a whole."""

    __slots__ = ("byte_count", "changed_at", "held", "is_ended", "stream")

    def __init__(self, stream: Appending, now: float) -> None:
        self.stream = stream
        self.byte_count = -1  # received on the connection
        self.changed_at = now
        self.held = 0
        self.is_ended = False  # and gRPC has not noticed yet


class _Suspects(NamedTuple):
    """Connections that may hold what others need."""

    late: set[str]
    known: set[str]
    strangers: set[str]
    all: set[str]


def _kept_free(connections_max: int) -> int:
    return max(1, connections_max // BOOKIE_CONNECTIONS_FREE_SHARE)


class ClientWatch:
    """Hangs up on clients that hold what others need. Service thread only."""

    def __init__(
        self,
        sockets: Sockets,
        hang_up: HangUp,
        connections: Connections,
        limits: CallLimits,
        streams: Callable[[], Collection[Appending]],
        *,
        files: Callable[[], int] = open_file_count,
    ) -> None:
        """``streams`` are the append streams that are open."""
        self._sockets = sockets
        self._hang_up = hang_up
        self._connections = connections
        self._limits = limits
        self._streams = streams
        self._files = files
        self._parts: dict[str, _Part] = {}
        self._strangers = Strangers()
        self._next_streams: list[Appending] = []
        self._remembered_max = 1_024
        self._looked_at_all = float("-inf")
        self._port, self._connections_max = 0, 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_resting = False
        self._task: asyncio.Task[None] | None = None

    def start(self, port: int, connections_max: int) -> None:
        """Look from now on; clients connect to ``port``."""
        self._port, self._connections_max = port, connections_max
        self._sockets.port = port
        self._look_again()

    def stop(self) -> None:
        """Look no more."""
        self._is_resting = False
        for pending in (self._timer, self._task):
            if pending is not None:
                pending.cancel()

    def sign(self) -> None:
        """A call begins. In the quarter of a second of a rest forty clients have 300 MiB taken in,
        and those that are ended at one time come again at one time."""
        if self._is_resting:
            assert self._timer is not None, "a watch rests until a time"
            self._timer.cancel()
            self._look_in(BOOKIE_CONNECTION_LOOK_S)

    def _look_again(self) -> None:
        if self._strangers or self._limits.receiving_for(BOOKIE_REQUEST_LATE_S):
            delay_s = BOOKIE_CONNECTION_SOON_S
        elif (
            self._parts
            or self._limits.receiving_for(0.0)
            or self._connections.unmeasured
            or self._has_strangers()
        ):
            delay_s = BOOKIE_CONNECTION_LOOK_S
        else:
            delay_s = BOOKIE_CONNECTION_IDLE_S
        self._look_in(delay_s)

    def _look_in(self, delay_s: float) -> None:
        self._is_resting = delay_s >= BOOKIE_CONNECTION_IDLE_S
        self._timer = call_on_beat(delay_s, self._on_time)

    def _on_time(self) -> None:
        """Look, and look again; as a task only if there is something to do."""
        self._is_resting = False
        suspects = self._find()
        if suspects.all or self._may_be_full(self._connections_max):
            self._task = asyncio.get_running_loop().create_task(self._act(suspects))
        else:
            self._look_again()

    async def _act(self, suspects: _Suspects) -> None:
        try:
            await self._judge(suspects)
            await self.make_room(self._port, self._connections_max)
        except NOTHING_LEFT as error:  # of descriptors or threads: this is who makes room for them
            logger.warning("connections cannot be looked at: %s", error)
        self._look_again()

    async def look(self) -> None:
        """Hang up on those whose messages do not arrive, if they hold too much."""
        await self._judge(self._find())

    def _find(self) -> _Suspects:
        late = self._limits.receiving_for(BOOKIE_REQUEST_LATE_S)
        streams = self._look_for_parts(asyncio.get_running_loop().time())
        known = {stream.peer for stream in self._streams() if stream.is_known}
        strangers = {stream.peer for stream in streams if stream.has_waited_s >= 0.0} - known
        strangers |= self._strangers.peers - known
        unmeasured = self._connections.unmeasured
        everybody = late | strangers | unmeasured | self._parts.keys()
        return _Suspects(late, known, strangers, everybody)

    async def _judge(self, suspects: _Suspects) -> None:
        late, known, strangers, wanted = suspects
        if not wanted:
            return
        loop = asyncio.get_running_loop()
        granted = self._connections.granted(wanted)
        received = await loop.run_in_executor(None, self._sockets.received, wanted)
        held = self._connections.held(received, granted)
        appending = {stream.peer for stream in self._streams()}
        # Appends wait for their turn, and are held meanwhile.
        long = {peer for peer in late - appending if held.get(peer, 0) > BOOKIE_HELD_BYTES_MAX}
        looked_at = {peer: held[peer] for peer in (strangers | long) & held.keys()}
        orders = self._strangers.look(looked_at, long, known, loop.time())
        await loop.run_in_executor(None, self._mute, orders)
        for peer in orders.hang_up:
            self._hang_up(peer, Why.LONG if peer in long else Why.UNFINISHED)
        self._weigh(received, held, loop.time())

    def _has_strangers(self) -> bool:
        return any(not stream.is_known for stream in self._streams())

    def _mute(self, orders: Orders) -> None:
        self._sockets.mute(orders.mute)
        self._sockets.unmute(orders.unmute)

    async def make_room(self, port: int, connections_max: int) -> None:
        """Hang up on the longest idle ones while there is hardly room for new ones."""
        loop = asyncio.get_running_loop()
        if not self._may_be_full(connections_max):
            return
        free = _kept_free(connections_max)
        self._looked_at_all = loop.time()
        peers = await loop.run_in_executor(None, self._sockets.of_port, port)
        self._connections.keep(peers)
        self._remembered_max = max(1_024, 2 * len(self._connections))
        too_many = len(peers) - (connections_max - free)
        if too_many > 0:
            for peer in self._connections.longest_idle(peers, too_many, BOOKIE_IDLE_S):
                self._hang_up(peer, Why.IDLE)

    def _may_be_full(self, connections_max: int) -> bool:
        """Whether all connections should be looked at."""
        if asyncio.get_running_loop().time() - self._looked_at_all < BOOKIE_CONNECTIONS_LOOK_S:
            return False
        try:
            is_crowded = self._files() > connections_max - _kept_free(connections_max)
        except OSError:  # without a free descriptor Linux before 6.2 cannot be asked
            is_crowded = True
        return is_crowded or len(self._connections) > self._remembered_max

    def _look_for_parts(self, now: float) -> list[Appending]:
        """Take in a few more streams that may have a part, and forget those that got the rest or
        have ended: what they left is gRPC's no more. Returns those that were looked at now."""
        streams = self._streams()
        for peer, part in list(self._parts.items()):
            is_whole = part.stream.has_waited_s < now - part.changed_at  # it came meanwhile
            if is_whole or part.stream not in streams:
                del self._parts[peer]
        if not self._next_streams:
            self._next_streams = list(streams)
        several = [s for s in self._next_streams[-BOOKIE_CONNECTIONS_LOOKED_AT:] if s in streams]
        del self._next_streams[-BOOKIE_CONNECTIONS_LOOKED_AT:]
        for stream in several:
            if stream.peer not in self._parts and stream.has_waited_s >= BOOKIE_STALLED_MESSAGE_S:
                self._parts[stream.peer] = _Part(stream, now)
        return several

    def _weigh(self, received: dict[str, Received], held: dict[str, int], now: float) -> None:
        """Hang up on those that send no more, until the parts of all others together are few."""
        for peer, part in list(self._parts.items()):
            part.held = held.get(peer, 0)
            if part.held <= BOOKIE_HELD_BYTES_MAX:
                del self._parts[peer]
            elif part.byte_count != received[peer].byte_count:
                part.byte_count, part.changed_at = received[peer].byte_count, now
        muted = self._strangers.muted  # they have not stopped: they cannot send
        kept = [
            (peer, part)
            for peer, part in self._parts.items()
            if not part.is_ended and peer not in muted
        ]
        total = sum(part.held for _peer, part in kept)
        for peer, part in sorted(kept, key=lambda item: -item[1].held):
            if total <= BOOKIE_UNFINISHED_BYTES_MAX:
                return
            stalled = now - part.changed_at >= BOOKIE_STALLED_MESSAGE_S
            if stalled or part.stream.has_waited_s >= BOOKIE_RECEIVE_S:
                self._hang_up(peer, Why.UNFINISHED)
                total -= part.held
                part.is_ended = True
