"""Who is not heard for a while, who is heard again, and who is ended at last."""

from __future__ import annotations

import asyncio

import pytest

from bookie_server.service import nonsense
from bookie_server.service.nonsense import Nonsense
from bookie_server.service.strangers import Strangers
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import (
    BOOKIE_NONSENSE_BYTES_S,
    BOOKIE_STRANGER_BURST_BYTES,
    BOOKIE_STRANGER_BYTES_S,
    BOOKIE_UNHEARD_S,
)
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX

LATER_S = 100.0
"""So long after the start of the clock everything is allowed that ever is."""


def halves(number: int, mib: int) -> dict[str, int]:
    return {f"half {n}": mib * MIB for n in range(number)}


def test_strangers_that_send_little_are_always_heard() -> None:
    orders = Strangers().look(halves(1_000, 1), set(), LATER_S)
    assert not (orders.mute or orders.unmute or orders.hang_up)


def test_largest_entry_as_the_first_of_a_client_is_heard() -> None:
    strangers = Strangers()
    assert not strangers.look({"new": ENTRY_PAYLOAD_BYTES_MAX}, set(), LATER_S).mute
    assert not strangers.look({"new": 0}, set(), LATER_S).mute
    assert not strangers.peers


def test_strangers_above_their_rate_are_not_heard_and_ended_in_the_end() -> None:
    strangers = Strangers()
    held = halves(4, 15)
    assert set(strangers.look(held, set(), LATER_S).mute) == set(held) == strangers.muted
    soon = strangers.look(held, set(), LATER_S + 0.9 * BOOKIE_UNHEARD_S)
    assert not soon.hang_up, "whoever is ended connects and sends again"
    ended = strangers.look(held, set(), LATER_S + BOOKIE_UNHEARD_S).hang_up
    assert set(ended) <= set(held) and len(ended) >= len(held) - 1
    assert not strangers.look({}, set(), LATER_S + BOOKIE_UNHEARD_S).hang_up
    assert not strangers.peers, "those that are gone are forgotten"


def test_strangers_are_heard_again_one_by_one_as_their_rate_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie_server.service.strangers.BOOKIE_UNHEARD_S", 60.0)
    strangers = Strangers()
    held = halves(3, 15)
    strangers.look(held, set(), LATER_S)
    above = 3 * 14 * MIB - BOOKIE_STRANGER_BURST_BYTES
    due = LATER_S + above / BOOKIE_STRANGER_BYTES_S
    assert not strangers.look(held, set(), due - 0.01).unmute
    heard = [strangers.look(held, set(), due + 0.01 * n).unmute for n in range(1, 5)]
    assert [len(several) for several in heard] == [1, 1, 1, 0]
    held["half 0"] = 0
    held["half 1"] += 60 * MIB
    assert set(strangers.look(held, set(), due + 0.1).mute) == {"half 1", "half 2"}
    assert strangers.muted == {"half 1", "half 2"}, "a message that became whole is no part"


def test_stranger_whose_message_became_whole_is_heard_at_once() -> None:
    strangers = Strangers()
    strangers.look(halves(4, 15), set(), LATER_S)
    held = halves(4, 15) | {"half 2": 0}
    assert strangers.look(held, set(), LATER_S).unmute == ["half 2"]


def test_offender_is_not_heard_whatever_the_rate_and_never_again() -> None:
    strangers = Strangers()
    held = {"long": 2 * MIB}
    assert strangers.look(held, {"long"}, LATER_S).mute == ["long"]
    assert not strangers.look(held, {"long"}, LATER_S + 1.0).unmute
    assert strangers.look(held, {"long"}, LATER_S + BOOKIE_UNHEARD_S).hang_up == ["long"]


def test_flood_keeps_others_out_for_no_longer_than_its_own_time() -> None:
    strangers = Strangers()
    strangers.look(halves(100, 15), set(), LATER_S)
    later = LATER_S + 2 * BOOKIE_UNHEARD_S
    strangers.look({}, set(), later)
    assert not strangers.look({"new": ENTRY_PAYLOAD_BYTES_MAX}, set(), later).mute


def test_nonsense_of_many_connections_waits_in_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        row = Nonsense()
        second = BOOKIE_NONSENSE_BYTES_S
        waits = [row.pause_s(second) for _connection in range(4)]
        assert waits == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.1)
        monkeypatch.setattr(nonsense, "BOOKIE_NONSENSE_PAUSE_S_MAX", 5.0)
        assert row.pause_s(100 * second) == pytest.approx(5.0, abs=0.1), "not for ever"

    asyncio.run(main())
