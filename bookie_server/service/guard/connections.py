"""What each connection has begun, sent and finished, and how much of that gRPC has not handed out.

gRPC does not say how many bytes of unfinished messages it holds. The kernel says how many a
connection has received, and the service knows how many it was given: what is between them, less
what calls and frames need around them, is held.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

_CALL_BYTES: Final = 2_048
"""Headers of one call, with those of its answer that come back: far more than ours have."""

_MESSAGE_BYTES: Final = 64
"""What surrounds one message: its prefix, the head of its frame, the window updates for its answer.
gRPC sends 40; in a connection's life that becomes more than what any holds."""

_FRAMING_SHARE: Final = 256
"""One byte in so many belongs to the frames of large messages: gRPC sends 9 for 16,384."""


def _nothing() -> None: ...


class Connections:
    """Counts by connection, under the names that gRPC gives them. Service thread only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._given: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._idle_since: dict[str, float] = {}  # those without a call, as far as they were seen
        self.calls = 0
        """Calls that have begun and not ended."""
        self.on_sign: Callable[[], None] = _nothing
        """Is called when a call begins, and when a message was received."""
        self.on_call: Callable[[], None] = _nothing
        """Is called when a call begins."""

    def __len__(self) -> int:
        """Connections that something is kept of."""
        return len(self._calls)

    @contextmanager
    def call(self, peer: str) -> Iterator[None]:
        """One more call, from its begin to its end."""
        self._calls[peer] += 1
        self._running[peer] += 1
        self.calls += 1
        self.on_sign()
        self.on_call()
        try:
            yield
        finally:
            self.calls -= 1
            self._running[peer] -= 1
            if not self._running[peer]:
                del self._running[peer]
                self._idle_since[peer] = self._clock()

    def given(self, peer: str, byte_count: int) -> None:
        """A message was received as a whole."""
        self._given[peer] += byte_count
        self._messages[peer] += 1
        self.on_sign()

    def held(self, received: dict[str, int]) -> dict[str, int]:
        """Bytes that gRPC holds for each connection, at least."""
        for peer, byte_count in received.items():
            if byte_count < self._given[peer]:  # another one, from the same port
                self._given[peer] = self._messages[peer] = self._calls[peer] = 0
        return {
            peer: byte_count
            - self._given[peer]
            - self._given[peer] // _FRAMING_SHARE
            - self._messages[peer] * _MESSAGE_BYTES
            - self._calls[peer] * _CALL_BYTES
            for peer, byte_count in received.items()
        }

    def keep(self, peers: Collection[str]) -> None:
        """Forget all but these: the others are gone."""
        kept = set(peers).union(self._running)
        for counted in (self._given, self._messages, self._calls, self._idle_since):
            for peer in counted.keys() - kept:
                del counted[peer]

    def longest_idle(self, peers: Iterable[str], number: int, idle_s: float) -> list[str]:
        """Of these the ones without a call for longest, and for ``idle_s`` at least. One that never
        had a call counts from when it was first seen here."""
        now = self._clock()
        since = {
            peer: self._idle_since.setdefault(peer, now)
            for peer in peers
            if peer not in self._running
        }
        idle = [peer for peer, at in since.items() if now - at >= idle_s]
        return sorted(idle, key=since.__getitem__)[:number]
