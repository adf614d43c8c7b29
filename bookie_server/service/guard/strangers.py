"""Decides which connections are not heard for a while: those that send much and store nothing.

Parts of messages that never become whole cost a client nothing: it is hung up on, connects and
sends again, and gRPC takes in a gigabyte per second of them while everybody else waits. So what
connections send that have stored nothing yet is counted, beyond the first part of each, and all
together have a rate. Above it the kernel drops what they send.

An honest client may have a large first entry, and many such clients may begin together. So a few
that are furthest go on while they make progress, for some seconds. A message that becomes complete
does not count any more. The others are heard again one by one, as the rate allows. A connection
that stops in the middle of a message is ended at last. A client that has stored something is never
among them, nor is one that sends little.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_ledger.limits.bookie import (
    BOOKIE_HELD_BYTES_MAX,
    BOOKIE_RECEIVE_S,
    BOOKIE_STALLED_MESSAGE_S,
    BOOKIE_STRANGER_BURST_BYTES,
    BOOKIE_STRANGER_BYTES_S,
    BOOKIE_STRANGERS_AT_ONCE,
    BOOKIE_UNHEARD_S,
)


@dataclass
class Orders:
    """What is to be done now."""

    mute: list[str] = field(default_factory=list)
    unmute: list[str] = field(default_factory=list)
    hang_up: list[str] = field(default_factory=list)


class _Stranger:
    """A connection with an unfinished message above the first part. ``may_go_on``: it has one of
    the places; ``is_going_on``: it sends, as far as is known; ``had_its_chance``: it stopped, or
    took too long. ``silence_s_max``: a TCP that was not heard tries again after twice the time at
    most."""

    __slots__ = (
        "byte_count", "changed_at", "had_its_chance", "heard_since", "is_going_on", "is_muted",
        "may_go_on", "muted_at", "silence_s_max",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.byte_count = BOOKIE_HELD_BYTES_MAX
        self.changed_at = self.heard_since = now
        self.is_muted = False
        self.muted_at = 0.0  # first
        self.may_go_on = False
        self.is_going_on = True
        self.had_its_chance = False
        self.silence_s_max = BOOKIE_STALLED_MESSAGE_S

    def has_stopped(self, now: float) -> bool:
        """It could send, and did not."""
        return not self.is_muted and now - self.changed_at >= self.silence_s_max

    def drips(self, now: float) -> bool:
        """It sends, and its message does not become whole: it has no place among those who go on,
        or four that send a byte now and then would keep all others out."""
        return not self.is_muted and now - self.heard_since >= BOOKIE_RECEIVE_S

    def is_due(self, now: float) -> bool:
        """It is not heard any more, however long it waits."""
        if not self.is_muted:
            return False
        waits_s = now - self.muted_at
        return waits_s >= (BOOKIE_UNHEARD_S if self.had_its_chance else BOOKIE_RECEIVE_S)


class Strangers:
    """The connections that have sent more than they may. Service thread only."""

    def __init__(self) -> None:
        self._seen: dict[str, _Stranger] = {}  # those that wait for longest come first
        self._left = float(BOOKIE_STRANGER_BURST_BYTES)
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def peers(self) -> set[str]:
        """To be looked at again."""
        return set(self._seen)

    @property
    def muted(self) -> set[str]:
        """Those that cannot send."""
        return {peer for peer, stranger in self._seen.items() if stranger.is_muted}

    def look(
        self, held: dict[str, int], offenders: set[str], welcome: set[str], now: float
    ) -> Orders:
        """What to do when so many bytes are held of each; ``offenders`` send what is no message of
        ours for certain, those who are ``welcome`` have stored something."""
        orders = Orders()
        was_open = self._left >= 0
        earned = (now - self._looked_at) * BOOKIE_STRANGER_BYTES_S
        self._left = min(self._left + earned, BOOKIE_STRANGER_BURST_BYTES)
        self._looked_at = now
        for peer in list(self._seen.keys() - held.keys()):
            self._forget(peer, orders, is_whole=peer in welcome)
        for peer, byte_count in held.items():
            self._count(peer, byte_count, orders, now)
        # A flood that arrived between two looks keeps nobody out for longer than itself.
        self._left = max(self._left, -BOOKIE_UNHEARD_S * BOOKIE_STRANGER_BYTES_S)
        self._left = min(self._left, BOOKIE_STRANGER_BURST_BYTES)
        if self._left < 0:
            self._give_places(was_open)
        for peer, stranger in list(self._seen.items()):
            if stranger.has_stopped(now) or stranger.drips(now):
                stranger.had_its_chance = True
                stranger.may_go_on = stranger.is_going_on = False
            is_one_too_many = self._left < 0 and not stranger.may_go_on
            if not stranger.is_muted and (is_one_too_many or peer in offenders):
                self._mute(peer, stranger, orders, now)
            stranger.had_its_chance |= peer in offenders
            if stranger.is_due(now):
                del self._seen[peer]
                orders.hang_up.append(peer)
        self._hear_again(orders, now)
        return orders

    def _count(self, peer: str, byte_count: int, orders: Orders, now: float) -> None:
        stranger = self._seen.get(peer)
        if byte_count <= BOOKIE_HELD_BYTES_MAX:
            if stranger is not None:
                self._forget(peer, orders, is_whole=True)
            return
        if stranger is None:
            stranger = self._seen[peer] = _Stranger(now)
        if byte_count > stranger.byte_count:
            self._left -= byte_count - stranger.byte_count
            stranger.byte_count, stranger.changed_at = byte_count, now
            stranger.is_going_on = not stranger.drips(now)
            stranger.silence_s_max = BOOKIE_STALLED_MESSAGE_S

    def _forget(self, peer: str, orders: Orders, *, is_whole: bool) -> None:
        stranger = self._seen.pop(peer)
        if is_whole:  # nothing was wasted
            self._left += stranger.byte_count - BOOKIE_HELD_BYTES_MAX
        if stranger.is_muted:
            orders.unmute.append(peer)

    def _give_places(self, was_open: bool) -> None:
        """To those that are furthest: if nobody could go on, nobody would become whole. While there
        is no room those that have places keep them, and nobody else gets one."""
        furthest = sorted(self._seen.values(), key=lambda stranger: -stranger.byte_count)
        left = BOOKIE_STRANGERS_AT_ONCE
        for stranger in furthest:
            can_have_one = stranger.is_going_on and (was_open or stranger.may_go_on)
            stranger.may_go_on = left > 0 and can_have_one
            left -= stranger.may_go_on

    def _mute(self, peer: str, stranger: _Stranger, orders: Orders, now: float) -> None:
        stranger.is_muted, stranger.may_go_on, stranger.is_going_on = True, False, False
        stranger.muted_at = stranger.muted_at or now
        orders.mute.append(peer)

    def _hear_again(self, orders: Orders, now: float) -> None:
        """Those that wait for longest, and behind all others the next time."""
        if self._left <= 0 or orders.mute:
            return
        going_on = sum(stranger.is_going_on for stranger in self._seen.values())
        for peer, stranger in list(self._seen.items()):
            if going_on >= BOOKIE_STRANGERS_AT_ONCE:
                return
            if stranger.is_muted and not stranger.had_its_chance:
                stranger.is_muted, stranger.may_go_on, stranger.is_going_on = False, True, False
                stranger.changed_at = stranger.heard_since = now
                stranger.silence_s_max = max(
                    BOOKIE_STALLED_MESSAGE_S, 2 * (now - stranger.muted_at)
                )
                self._seen[peer] = self._seen.pop(peer)
                orders.unmute.append(peer)
                going_on += 1
