"""Decides which connections are not heard for a while: those that send much and store nothing.

Parts of messages that never become whole cost a client nothing: it is hung up on, connects and
sends again, and gRPC takes in a gigabyte per second of them while everybody else waits. So what
connections send that have stored nothing yet is counted, beyond the first part of each, and all
together have a rate. Above it the kernel drops what they send. One after the other is heard again
as the rate allows; who has not become whole by then is ended at last. A client that has stored
something is never among them, nor is one that sends little.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_ledger.limits.bookie import (
    BOOKIE_HELD_BYTES_MAX,
    BOOKIE_STRANGER_BURST_BYTES,
    BOOKIE_STRANGER_BYTES_S,
    BOOKIE_UNHEARD_S,
)


@dataclass
class Orders:
    """What is to be done now."""

    mute: list[str] = field(default_factory=list)
    unmute: list[str] = field(default_factory=list)
    hang_up: list[str] = field(default_factory=list)


class _Stranger:
    __slots__ = ("byte_count", "is_muted", "muted_at")

    def __init__(self) -> None:
        self.byte_count = BOOKIE_HELD_BYTES_MAX
        self.is_muted = False
        self.muted_at = 0.0  # first


class Strangers:
    """The connections that have sent more than they may. Service thread only."""

    def __init__(self) -> None:
        self._known: dict[str, _Stranger] = {}  # those that were muted first come first
        self._left = float(BOOKIE_STRANGER_BURST_BYTES)
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def peers(self) -> set[str]:
        """To be looked at again."""
        return set(self._known)

    @property
    def muted(self) -> set[str]:
        """Those that cannot send."""
        return {peer for peer, stranger in self._known.items() if stranger.is_muted}

    def look(self, held: dict[str, int], offenders: set[str], now: float) -> Orders:
        """What to do when so many bytes are held of each; ``offenders`` send what is no message of
        ours for certain."""
        orders = Orders()
        earned = (now - self._looked_at) * BOOKIE_STRANGER_BYTES_S
        self._left = min(BOOKIE_STRANGER_BURST_BYTES, self._left + earned)
        self._looked_at = now
        for peer in list(self._known.keys() - held.keys()):
            self._forget(peer, orders)  # it is gone, or no stranger any more
        for peer, byte_count in held.items():
            self._count(peer, byte_count, orders)
        # A flood that arrived between two looks keeps nobody out for longer than itself.
        self._left = max(self._left, -BOOKIE_UNHEARD_S * BOOKIE_STRANGER_BYTES_S)
        for peer, stranger in list(self._known.items()):
            if not stranger.is_muted and (self._left < 0 or peer in offenders):
                stranger.is_muted = True
                stranger.muted_at = stranger.muted_at or now
                orders.mute.append(peer)
            elif stranger.is_muted and now - stranger.muted_at >= BOOKIE_UNHEARD_S:
                del self._known[peer]
                orders.hang_up.append(peer)
        self._hear_one_again(offenders, orders)
        return orders

    def _count(self, peer: str, byte_count: int, orders: Orders) -> None:
        stranger = self._known.get(peer)
        if byte_count <= BOOKIE_HELD_BYTES_MAX:
            if stranger is not None:
                self._forget(peer, orders)
            return
        if stranger is None:
            stranger = self._known[peer] = _Stranger()
        self._left -= max(0, byte_count - stranger.byte_count)
        stranger.byte_count = byte_count

    def _forget(self, peer: str, orders: Orders) -> None:
        if self._known.pop(peer).is_muted:
            orders.unmute.append(peer)

    def _hear_one_again(self, offenders: set[str], orders: Orders) -> None:
        """The one that waits for longest, and behind all others the next time."""
        if self._left <= 0 or orders.mute:
            return
        for peer, stranger in self._known.items():
            if stranger.is_muted and peer not in offenders:
                stranger.is_muted = False
                self._known[peer] = self._known.pop(peer)
                orders.unmute.append(peer)
                return
