"""Who is not heard for a while, who is heard again, and who is ended at last."""

from __future__ import annotations

import asyncio

import pytest

from bookie_server.service.guard import nonsense
from bookie_server.service.guard.nonsense import Nonsense
from bookie_server.service.guard.strangers import Orders, Strangers
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import (
    BOOKIE_NONSENSE_BYTES_S,
    BOOKIE_RECEIVE_S,
    BOOKIE_STALLED_MESSAGE_S,
    BOOKIE_STRANGER_BURST_BYTES,
    BOOKIE_STRANGER_BYTES_S,
    BOOKIE_STRANGERS_AT_ONCE,
    BOOKIE_UNHEARD_S,
)
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX

LATER_S = 100.0
"""So long after the start of the clock everything is allowed that ever is."""


def halves(number: int, mib: int) -> dict[str, int]:
    return {f"half {n}": mib * MIB for n in range(number)}


def test_strangers_that_send_little_are_always_heard() -> None:
    orders = Strangers().look(halves(1_000, 1), set(), set(), LATER_S)
    assert not (orders.mute or orders.unmute or orders.hang_up)


def test_largest_entry_as_the_first_of_a_client_is_heard() -> None:
    strangers = Strangers()
    assert not strangers.look({"new": ENTRY_PAYLOAD_BYTES_MAX}, set(), set(), LATER_S).mute
    assert not strangers.look({"new": 0}, set(), set(), LATER_S).mute
    assert not strangers.peers


def test_strangers_above_their_rate_are_not_heard_and_ended_in_the_end() -> None:
    """All but a few, which stop by themselves."""
    strangers = Strangers()
    held = halves(40, 15)
    assert len(strangers.look(held, set(), set(), LATER_S).mute) == 40 - BOOKIE_STRANGERS_AT_ONCE
    stopped_at = LATER_S + BOOKIE_STALLED_MESSAGE_S
    stopped = set(strangers.look(held, set(), set(), stopped_at).mute)
    assert len(stopped) == BOOKIE_STRANGERS_AT_ONCE and strangers.muted == held.keys()
    soon = strangers.look(held, set(), set(), stopped_at + 0.9 * BOOKIE_UNHEARD_S)
    assert not soon.hang_up, "whoever is ended connects and sends again"
    ended = strangers.look(held, set(), set(), stopped_at + BOOKIE_UNHEARD_S).hang_up
    assert set(ended) == stopped, "the others had no turn"
    late = strangers.look(
        {peer: held[peer] for peer in held.keys() - stopped}, set(), set(),
        LATER_S + BOOKIE_RECEIVE_S,
    )  # fmt: skip
    assert len(late.hang_up) >= 40 - 3 * BOOKIE_STRANGERS_AT_ONCE
    strangers.look({}, set(), set(), LATER_S + BOOKIE_RECEIVE_S)
    assert not strangers.peers, "those that are gone are forgotten"


def test_halves_are_taken_in_at_their_rate() -> None:
    """Forty clients, each of which connects again as soon as it is ended, and sends 15 MiB."""
    strangers = Strangers()
    world = Senders(strangers, wanted=15 * MIB, whole=False)
    for number in range(40):
        world.connect(f"client {number}")
    seconds = 20
    for _look in range(seconds * 40):
        for peer in world.look():
            world.connect(f"{peer}'")
    assert world.taken_in < 64 * MIB * seconds, "a gigabyte per second, were nobody held back"


def test_many_clients_that_begin_with_large_entries_all_come_through() -> None:
    strangers = Strangers()
    world = Senders(strangers, wanted=ENTRY_PAYLOAD_BYTES_MAX, whole=True)
    for number in range(40):
        world.connect(f"client {number}")
    for _look in range(4 * 40):
        assert not world.look(), "none is ended"
    assert not world.sent, "all were stored"


class Senders:
    """Clients that send as fast as gRPC reads, which takes in 25 MiB between two looks. Those that
    were not heard try again after as long a time."""

    def __init__(self, strangers: Strangers, *, wanted: int, whole: bool) -> None:
        self._strangers = strangers
        self._wanted = wanted
        self._whole = whole
        self._now = LATER_S
        self._muted_at: dict[str, float] = {}
        self._tries_at: dict[str, float] = {}
        self.sent: dict[str, int] = {}
        self.taken_in = 0

    def connect(self, peer: str) -> None:
        self.sent[peer] = 0

    def look(self) -> list[str]:
        """One more look; who was ended."""
        self._now += 0.025
        can_send = [
            peer
            for peer, byte_count in self.sent.items()
            if byte_count < self._wanted
            and peer not in self._muted_at
            and self._tries_at.get(peer, 0.0) <= self._now
        ]
        for peer in can_send:
            part = min(25 * MIB // len(can_send), self._wanted - self.sent[peer])
            self.sent[peer] += part
            self.taken_in += part
        stored = {peer for peer in self.sent if self._whole and self.sent[peer] == self._wanted}
        for peer in stored:
            del self.sent[peer]
        orders = self._strangers.look(dict(self.sent), set(), stored, self._now)
        for peer in orders.mute:
            self._muted_at[peer] = self._now
        for peer in orders.unmute:
            was_muted_s = self._now - self._muted_at.pop(peer)
            self._tries_at[peer] = self._now + max(0.2, was_muted_s)
        for peer in orders.hang_up:
            del self.sent[peer]
            self._muted_at.pop(peer, None)
        return orders.hang_up


def test_stranger_whose_message_became_whole_is_heard_at_once() -> None:
    strangers = Strangers()
    held = halves(40, 15)
    (some, other, *_rest) = strangers.look(held, set(), set(), LATER_S).mute
    orders = strangers.look(held | {some: 0}, set(), set(), LATER_S)
    assert orders.unmute == [some], "and what it sent was no waste"
    del held[other], held[some]
    assert strangers.look(held, set(), {other}, LATER_S).unmute == [other], "it was stored"


def test_stranger_that_is_heard_now_and_then_is_ended_after_all() -> None:
    """It waits since the first time: else it would hold its memory and its place for ever."""
    strangers = Strangers()
    early = halves(BOOKIE_STRANGERS_AT_ONCE, 15)
    assert strangers.look(early | {"late": 15 * MIB}, set(), set(), LATER_S).mute == ["late"]
    soon = LATER_S + 1
    assert strangers.look({"late": 15 * MIB}, set(), set(early), soon).unmute == ["late"]

    def beside_others(mib: int, now: float) -> Orders:
        others = {f"other {n}": mib * MIB for n in range(BOOKIE_STRANGERS_AT_ONCE)}
        return strangers.look(others | {"late": 16 * MIB}, set(), set(), now)

    assert beside_others(17, soon + 1).mute == ["late"]
    ends_at = LATER_S + BOOKIE_RECEIVE_S
    assert not beside_others(34, ends_at - 0.1).hang_up
    assert beside_others(51, ends_at).hang_up == ["late"]


def test_strangers_are_heard_again_as_their_rate_allows() -> None:
    strangers = Strangers()
    held = halves(BOOKIE_STRANGERS_AT_ONCE, 10) | {"first": 3 * MIB, "second": 2 * MIB}
    assert strangers.look(held, set(), set(), LATER_S).mute == ["first", "second"]
    above = BOOKIE_STRANGERS_AT_ONCE * 9 * MIB + 3 * MIB - BOOKIE_STRANGER_BURST_BYTES
    due = LATER_S + above / BOOKIE_STRANGER_BYTES_S
    strangers.look(held, set(), set(), due - 0.02)  # the others have stopped
    assert not strangers.look(held, set(), set(), due - 0.01).unmute
    assert strangers.muted == held.keys()
    assert strangers.look(held, set(), set(), due + 0.01).unmute == ["first", "second"]
    held["first"] = ENTRY_PAYLOAD_BYTES_MAX
    assert strangers.look(held, set(), set(), due + 0.02).mute == ["second"]
    for look in range(10):
        held["first"] += 10_000
        strangers.look(held, set(), set(), due + 0.1 + 0.1 * look)
        assert "first" not in strangers.muted, "it goes on as long as it comes further"


def test_offender_is_not_heard_whatever_the_rate_and_never_again() -> None:
    strangers = Strangers()
    held = {"long": 2 * MIB}
    assert strangers.look(held, {"long"}, set(), LATER_S).mute == ["long"]
    assert not strangers.look(held, {"long"}, set(), LATER_S + 1.0).unmute
    assert strangers.look(held, {"long"}, set(), LATER_S + BOOKIE_UNHEARD_S).hang_up == ["long"]


def test_flood_keeps_others_out_for_no_longer_than_its_own_time() -> None:
    strangers = Strangers()
    strangers.look(halves(100, 15), set(), set(), LATER_S)
    later = LATER_S + 2 * BOOKIE_UNHEARD_S
    strangers.look({}, set(), set(), later)
    assert not strangers.look({"new": ENTRY_PAYLOAD_BYTES_MAX}, set(), set(), later).mute


def test_nonsense_of_many_connections_waits_in_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        row = Nonsense()
        second = BOOKIE_NONSENSE_BYTES_S
        waits = [row.pause_s(second) for _connection in range(4)]
        assert waits == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.1)
        monkeypatch.setattr(nonsense, "BOOKIE_NONSENSE_PAUSE_S_MAX", 5.0)
        assert row.pause_s(100 * second) == pytest.approx(5.0, abs=0.1), "not for ever"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("muted_s", "goes_on", "silent_s"),
    [
        (0.025, False, BOOKIE_STALLED_MESSAGE_S),
        (1.0, False, 2.0),
        (1.0, True, BOOKIE_STALLED_MESSAGE_S),
    ],
)
@pytest.mark.parametrize("share", [0.9, 1.1])
def test_stranger_that_is_heard_again_has_time_to_go_on(
    muted_s: float, goes_on: bool, silent_s: float, share: float
) -> None:
    """Its TCP tries again after twice the time at most, and a network may lose that too; once it
    has gone on it has as much time as others. Who has stopped then is never heard again."""
    strangers, now = Strangers(), LATER_S
    alone = {"first": 3 * MIB}
    some, others = (
        {f"{name} {peer}": mib for peer, mib in halves(BOOKIE_STRANGERS_AT_ONCE, 15).items()}
        for name in ("some", "others")
    )
    assert strangers.look(alone | some, set(), set(), now).mute == ["first"]
    now += muted_s
    assert strangers.look(alone, set(), set(some), now).unmute == ["first"]
    if goes_on:
        now, alone = now + 0.1, {"first": 4 * MIB}
        strangers.look(alone, set(), set(), now)
    now += share * silent_s
    strangers.look(alone, set(), set(), now)
    assert strangers.look(alone | others, set(), set(), now).mute == ["first"]
    heard = strangers.look(alone, set(), set(others), now).unmute
    assert heard == (["first"] if share < 1 else [])


def test_places_are_for_those_who_go_on_and_not_for_those_who_stopped_further_on() -> None:
    """Whoever sends a few halves and waits would keep all places, and no large entry came through
    in their time."""
    strangers = Strangers()
    held = halves(BOOKIE_STRANGERS_AT_ONCE, 15)
    assert not strangers.look(held, set(), set(), LATER_S).mute, "they have the places"
    stopped_at = LATER_S + BOOKIE_STALLED_MESSAGE_S
    assert set(strangers.look(held, set(), set(), stopped_at).mute) == held.keys()
    later = stopped_at + 0.99 * BOOKIE_UNHEARD_S
    assert not strangers.look(held, set(), set(), later).hang_up
    assert strangers._left > 0
    more = {f"new {number}": 14 * MIB for number in range(BOOKIE_STRANGERS_AT_ONCE + 1)}
    muted = strangers.look(held | more, set(), set(), later).mute
    assert muted == [f"new {BOOKIE_STRANGERS_AT_ONCE}"]


@pytest.mark.parametrize(
    ("ends", "left_mib"), [("whole", 22), ("stored", 22), ("gone", 15), ("goes on", 15)]
)
def test_each_byte_counts_once_and_is_given_back_only_if_it_was_not_wasted(
    ends: str, left_mib: int
) -> None:
    """A client that leaves by itself and comes again has sent what it has sent."""
    strangers, other = Strangers(), {"other": 3 * MIB}
    for mib in (1, 3, 3, 8, 8):
        strangers.look(other | {"new": mib * MIB}, set(), set(), LATER_S)
    assert BOOKIE_STRANGER_BURST_BYTES - strangers._left == 9 * MIB, "beyond their first parts"
    held = {"whole": {"new": 0}, "goes on": {"new": 8 * MIB}}.get(ends, {})
    strangers.look(other | held, set(), {"new"} if ends == "stored" else set(), LATER_S)
    assert strangers._left == left_mib * MIB
    strangers.look({}, set(), set(), LATER_S + 0.25)
    assert strangers._left == min(left_mib * MIB + 0.25 * BOOKIE_STRANGER_BYTES_S, 24 * MIB)


def test_those_who_were_heard_again_wait_behind_all_others_the_next_time() -> None:
    strangers = Strangers()
    floods = [{f"flood {n} {turn}": 15 * MIB for n in range(4)} for turn in range(2)]
    small = {f"new {number}": 2 * MIB for number in range(6)}
    heard = []
    for turn, flood in enumerate(floods):
        now = LATER_S + 0.1 * turn
        strangers.look(small | flood, set(), set(), now)
        assert strangers.muted == small.keys()
        heard.append(strangers.look(small, set(), set(flood), now + 0.05).unmute)
    assert heard == [[f"new {n}" for n in (0, 1, 2, 3)], [f"new {n}" for n in (4, 5, 0, 1)]]


def test_strangers_that_drip_keep_no_other_one_out() -> None:
    """Four connections that send a byte now and then were taken for four that go on: whoever was
    not heard during a flood waited for them until it was ended."""
    strangers = Strangers()
    dripping = {f"drip {n}": 16 * MIB for n in range(BOOKIE_STRANGERS_AT_ONCE)}
    assert not strangers.look(dripping, set(), set(), LATER_S).mute
    at = LATER_S
    while at < LATER_S + BOOKIE_RECEIVE_S:
        at += BOOKIE_STALLED_MESSAGE_S / 2
        dripping = {peer: byte_count + 1 for peer, byte_count in dripping.items()}
        strangers.look(dripping, set(), set(), at)
    flood = halves(20, 15)
    dripping = {peer: byte_count + 1 for peer, byte_count in dripping.items()}
    muted = set(strangers.look(flood | dripping, set(), set(), at).mute)
    honest = flood.keys() & muted
    assert len(honest) == len(flood) - BOOKIE_STRANGERS_AT_ONCE, "the places are for others"
    heard: set[str] = set()
    while at < LATER_S + 2 * BOOKIE_RECEIVE_S and not heard:
        at += BOOKIE_STALLED_MESSAGE_S / 2
        dripping = {peer: byte_count + 1 for peer, byte_count in dripping.items()}
        held = {peer: flood[peer] for peer in honest} | {
            peer: byte_count for peer, byte_count in dripping.items() if peer in strangers.peers
        }
        heard = honest & set(strangers.look(held, set(), set(), at).unmute)
    assert heard, "as soon as the rate allows it"


def test_stranger_that_was_not_heard_has_its_whole_time_when_it_is() -> None:
    strangers = Strangers()
    held = halves(12, 15)
    muted = strangers.look(held, set(), set(), LATER_S).mute
    at, heard = LATER_S, ""
    while not heard:
        at += BOOKIE_STALLED_MESSAGE_S
        held = {peer: held[peer] for peer in muted}
        heard = next(iter(strangers.look(held, set(), set(), at).unmute), "")
    at += 0.9 * BOOKIE_RECEIVE_S
    held[heard] += MIB
    orders = strangers.look(held, set(), set(), at)
    assert heard not in orders.mute and strangers._seen[heard].is_going_on
