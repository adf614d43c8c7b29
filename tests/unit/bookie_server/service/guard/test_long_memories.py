"""What guards remember of earlier looks: whom the log does not have yet, who waited for longest."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bookie_server.service.guard import memory
from bookie_server.service.guard.strangers import Strangers
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import (
    BOOKIE_STALLED_MESSAGE_S,
    BOOKIE_STRANGERS_AT_ONCE,
    BOOKIE_UNHEARD_S,
)
from tests.unit.bookie_server.service.guard.test_memory import Process
from tests.unit.bookie_server.service.guard.test_strangers import LATER_S, halves

FULL = halves(BOOKIE_STRANGERS_AT_ONCE, 15)
"""Those that have all places, and what they hold is above the rate."""


def test_log_has_every_client_that_was_cut_however_seldom_it_is_written(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(90)
    due = iter((0.0, 9e9, 9e9, 0.0))
    monkeypatch.setattr(process.guard, "_trim_at", lambda _used: next(due))
    monkeypatch.setattr(memory, "_LET_GO_S", 0.0)

    async def main() -> None:
        for process.cuts in (1, 2, 3, 0):
            await process.guard.look()

    with caplog.at_level(logging.WARNING, logger=memory.__name__):
        asyncio.run(main())
    told = [record.getMessage() for record in caplog.records]
    assert ["hung up on 1 clients" in told[0], "hung up on 5 clients" in told[1]] == [True, True]
    assert process.guard.cut == 6


def test_flood_whose_clients_are_gone_is_paid_for_all_the_same() -> None:
    """Each connects again under another number: what it sent was wasted, whoever sent it."""
    strangers = Strangers()
    strangers.look(halves(8, 15), set(), set(), LATER_S)
    orders = strangers.look({"again": 15 * MIB}, set(), set(), LATER_S)
    assert orders.mute == ["again"] and not orders.hang_up


def heard_again(strangers: Strangers) -> float:
    """One that was not heard for a second, and is now; since when."""
    assert strangers.look(FULL | {"late": 5 * MIB}, set(), set(), LATER_S).mute == ["late"]
    now = LATER_S + 1.0
    assert strangers.look({"late": 5 * MIB}, set(), set(FULL), now).unmute == ["late"]
    return now


def flood(strangers: Strangers, late: int, now: float) -> None:
    """Others take all places and more, so that the one is not heard again."""
    others = {f"other {n}": 15 * MIB for n in range(BOOKIE_STRANGERS_AT_ONCE)}
    strangers.look(others | {"late": late}, set(), set(), now)
    assert "late" in strangers.muted


def test_stranger_that_is_heard_again_has_as_long_as_its_tcp_needs_to_try_again() -> None:
    """After a second of silence a TCP tries within two: it did not stop in its message."""
    strangers = Strangers()
    now = heard_again(strangers)
    strangers.look({"late": 5 * MIB}, set(), set(), now + 2 * BOOKIE_STALLED_MESSAGE_S)
    flood(strangers, 5 * MIB, now + 0.6)
    now = LATER_S + BOOKIE_UNHEARD_S
    assert not strangers.look({"late": 5 * MIB}, set(), set(), now).hang_up
    assert strangers.look({"late": 5 * MIB}, set(), set(), now + 2.0).unmute == ["late"]


def test_stranger_that_went_on_and_stops_then_has_stopped_as_any_other() -> None:
    """What its TCP needed is over with its next byte."""
    strangers = Strangers()
    now = heard_again(strangers)
    strangers.look({"late": 6 * MIB}, set(), set(), now + 0.1)
    strangers.look({"late": 6 * MIB}, set(), set(), now + 0.1 + BOOKIE_STALLED_MESSAGE_S)
    flood(strangers, 6 * MIB, now + 0.5)
    assert strangers.look({"late": 6 * MIB}, set(), set(), LATER_S + BOOKIE_UNHEARD_S).hang_up == [
        "late"
    ]


def test_strangers_that_were_heard_wait_behind_those_that_were_not() -> None:
    """Else the first few would be heard again and again, and the others ended unheard."""
    strangers = Strangers()
    waiting = {f"p{n}": 2 * MIB for n in range(BOOKIE_STRANGERS_AT_ONCE + 2)}
    now = LATER_S
    assert strangers.look(FULL | waiting, set(), set(), now).mute == list(waiting)
    first, last = list(waiting)[:BOOKIE_STRANGERS_AT_ONCE], list(waiting)[-2:]
    assert strangers.look(dict(waiting), set(), set(FULL), now).unmute == first
    waiting |= dict.fromkeys(first, 3 * MIB)
    newer = {f"newer {n}": 15 * MIB for n in range(BOOKIE_STRANGERS_AT_ONCE)}
    assert strangers.look(waiting | newer, set(), set(), now).mute == first
    orders = strangers.look(dict(waiting), set(), set(newer), now)
    assert orders.unmute == [*last, *first[:2]]


def test_strangers_that_have_stopped_keep_no_place_from_those_that_go_on() -> None:
    """They are larger, and not ended yet: were the places theirs, nobody would become whole."""
    strangers = Strangers()
    strangers.look(dict(FULL), set(), set(), LATER_S)
    stopped_at = LATER_S + BOOKIE_STALLED_MESSAGE_S
    assert set(strangers.look(dict(FULL), set(), set(), stopped_at).mute) == set(FULL)
    now = stopped_at + BOOKIE_UNHEARD_S - 0.05
    assert not strangers.look(dict(FULL), set(), set(), now).hang_up
    new = {f"new {n}": 4 * MIB for n in range(BOOKIE_STRANGERS_AT_ONCE)}
    assert strangers.look(FULL | new, set(), set(), now).mute == []
    assert strangers.look(FULL | dict.fromkeys(new, 8 * MIB), set(), set(), now).mute == []
