"""What each connection has begun, sent and finished, and how much of that gRPC has not handed out.

gRPC does not say how many bytes of unfinished messages it holds. The kernel says how many a
connection has received, and the service knows how many it was given: what is between them, less
what calls and frames need around them, is held.

What they need is not known, only that it is less than what is granted for it. So it is measured
again and again: a connection that held nothing at one look, for all that the kernel says, holds
what has come since, however much was granted to it before. And a name may be another connection's
by now, to which nothing was granted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from bookie_server.service.guard.sockets import Received
from spark_ledger.limits.bookie import BOOKIE_UNMEASURED_BYTES_MAX

_CALL_BYTES: Final = 2_048
"""Headers of one call, with those of its answer that come back: far more than ours have."""

_MESSAGE_BYTES: Final = 64
"""What surrounds one message: its prefix, the head of its frame, the window updates for its answer.
gRPC sends 40; in a connection's life that becomes more than what any holds."""

_FRAMING_SHARE: Final = 256
"""One byte in so many belongs to the frames of large messages: gRPC sends 9 for 16,384."""

_BYTES_PER_S: Final = 34
"""Of a connection that does nothing: a ping in half a second, which is more than may be."""


def _nothing() -> None: ...


class _Connection:
    """What is known of one."""

    __slots__ = (
        "granted", "granted_seen", "least", "looked_at", "running", "sockets", "unmeasured",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.looked_at = now  # or when it was first seen
        self.granted = 0  # bytes that were handed out, or that calls and frames may have taken
        self.granted_seen = 0  # of these at the last look
        self.least = 0  # received less granted, when that was least
        self.running = 0
        self.sockets: frozenset[int] | None = None  # None before the first look
        self.unmeasured = 0  # granted since the last look, beyond what was handed out

    def is_at(self, sockets: frozenset[int]) -> bool:
        """Whether it is the connection with these, as far as is known. One client may have two."""
        return self.sockets is None or bool(self.sockets & sockets)

    def begin_again(self) -> None:
        """Its name is another connection's, to which nothing was granted before the last look."""
        self.granted -= self.granted_seen
        self.least = 0


class Connections:
    """Counts by connection, under the names that gRPC gives them. Service thread only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, _Connection] = {}
        self._idle_since: dict[str, float] = {}  # those without a call, as far as they were seen
        self.calls = 0
        """Calls that have begun and not ended."""
        self.unmeasured: set[str] = set()
        """Those of which the kernel should be asked: much was granted to them since it was."""
        self.on_sign: Callable[[], None] = _nothing
        """Is called when a call begins, and when a message was received."""
        self.on_call: Callable[[], None] = _nothing
        """Is called when a call begins."""

    def __len__(self) -> int:
        """Connections that something is kept of."""
        return len(self._known)

    @contextmanager
    def call(self, peer: str) -> Iterator[None]:
        """One more call, from its begin to its end."""
        known = self._of(peer)
        known.running += 1
        self._grant(peer, known, 0, _CALL_BYTES)
        self.calls += 1
        self.on_sign()
        self.on_call()
        try:
            yield
        finally:
            self.calls -= 1
            known.running -= 1
            if not known.running:
                self._idle_since[peer] = self._clock()

    def given(self, peer: str, byte_count: int) -> None:
        """A message was received as a whole."""
        around = byte_count // _FRAMING_SHARE + _MESSAGE_BYTES
        self._grant(peer, self._of(peer), byte_count, around)
        self.on_sign()

    def granted(self, peers: Iterable[str]) -> dict[str, int]:
        """What ``held`` wants to know: what was granted to each before the kernel was asked."""
        return {peer: self._known[peer].granted for peer in peers if peer in self._known}

    def held(self, received: Mapping[str, Received], granted: Mapping[str, int]) -> dict[str, int]:
        """Bytes that gRPC holds for each connection, at least.

        ``granted`` is from before the kernel was asked for ``received``. What has been handed out
        since then may have been received since then, too."""
        for peer in granted.keys() - received.keys():  # it is gone, or cannot be looked at now
            self._measured(peer)
        return {
            peer: self._held(peer, found, granted.get(peer)) for peer, found in received.items()
        }

    def _held(self, peer: str, found: Received, before: int | None) -> int:
        known, now = self._known.get(peer), self._clock()
        if known is None:
            return found.byte_count
        pings = int((now - known.looked_at) * _BYTES_PER_S)
        known.looked_at, known.granted = now, known.granted + pings
        if not known.is_at(found.sockets):
            known.begin_again()
        elif before is not None:
            # What was held then was not less than nothing.
            known.least = min(known.least, found.byte_count - before - pings)
        known.sockets, known.granted_seen = found.sockets, known.granted
        self._measured(peer)
        return found.byte_count - known.granted - known.least

    def _measured(self, peer: str) -> None:
        self.unmeasured.discard(peer)
        if known := self._known.get(peer):
            known.unmeasured = 0

    def _of(self, peer: str) -> _Connection:
        known = self._known.get(peer)
        if known is None:
            known = self._known[peer] = _Connection(self._clock())
        return known

    def _grant(self, peer: str, known: _Connection, given: int, around: int) -> None:
        known.granted += given + around
        # Of one that was never looked at nobody knows either that it is the one that it was.
        known.unmeasured += around if known.sockets is not None else given + around
        if known.unmeasured > BOOKIE_UNMEASURED_BYTES_MAX:
            self.unmeasured.add(peer)

    def keep(self, peers: Collection[str]) -> None:
        """Forget all but these: the others are gone."""
        running = {peer for peer, known in self._known.items() if known.running}
        kept = running.union(peers)
        for counted in (self._known, self._idle_since):
            for peer in counted.keys() - kept:
                del counted[peer]
        self.unmeasured &= self._known.keys()

    def longest_idle(self, peers: Iterable[str], number: int, idle_s: float) -> list[str]:
        """Of these the ones without a call for longest, and for ``idle_s`` at least. One that never
        had a call counts from when it was first seen here."""
        now = self._clock()
        since = {
            peer: self._idle_since.setdefault(peer, now)
            for peer in peers
            if not (peer in self._known and self._known[peer].running)
        }
        idle = [peer for peer, at in since.items() if now - at >= idle_s]
        return sorted(idle, key=since.__getitem__)[:number]
