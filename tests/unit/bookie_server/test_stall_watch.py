"""When a bookie says that its journal stalls, and when that it goes on."""

from __future__ import annotations

import asyncio

from bookie_server.core.journal_stall import stall_reason
from bookie_server.stall_watch import StallWatch
from spark_ledger.limits.bookie import JOURNAL_LOOK_S, JOURNAL_STALLED_S
from spark_ledger.limits.client import ADD_TIMEOUT_S


class Fixture:
    def __init__(self) -> None:
        self.now = 0.0
        self.unsynced_s = 0.0
        self.told: list[str] = []
        self.watch = StallWatch(
            "/journal", lambda: self.unsynced_s, self.told.append, clock=lambda: self.now
        )

    def look(self, unsynced_s: float, after_s: float = JOURNAL_LOOK_S) -> None:
        self.now += after_s
        self.unsynced_s = unsynced_s
        self.watch.look()


def test_stall_is_told_before_clients_find_out_by_silence() -> None:
    assert JOURNAL_STALLED_S + 2 * JOURNAL_LOOK_S < ADD_TIMEOUT_S


def test_journal_that_waits_less_than_its_deadline_is_not_stalled() -> None:
    assert stall_reason("/journal", JOURNAL_STALLED_S - 0.1) == ""
    assert stall_reason("/journal", 2.25) == "journal /journal has not synced for 2.2 s"


def test_stall_is_told_once_and_its_end_once() -> None:
    f = Fixture()
    f.look(0.0)
    f.look(JOURNAL_STALLED_S)
    f.look(JOURNAL_STALLED_S + JOURNAL_LOOK_S)
    assert f.watch.reason == "journal /journal has not synced for 2.0 s"
    f.look(0.0)
    f.look(0.1)
    assert f.told == ["journal /journal has not synced for 2.0 s", ""]


def test_process_that_stood_still_tells_no_stall_before_it_has_looked_again() -> None:
    f = Fixture()
    f.look(20.0, after_s=20.0)
    assert f.told == [], "the journal stood still with the rest"
    f.look(JOURNAL_STALLED_S)
    assert len(f.told) == 1
    f.look(0.0, after_s=20.0)
    assert f.told[1:] == [""], "that it goes on is news at any time"


def test_watch_looks_at_a_cadence_until_it_is_stopped() -> None:
    async def test() -> int:
        looks = 0

        def unsynced_s() -> float:
            nonlocal looks
            looks += 1
            return 0.0

        watch = StallWatch("/journal", unsynced_s, lambda _reason: None)
        watch.start()
        async with asyncio.timeout(10):
            while looks < 3:
                await asyncio.sleep(0.01)
        watch.stop()
        seen = looks
        await asyncio.sleep(2 * JOURNAL_LOOK_S)  # that it does not look is what is tested
        return looks - seen

    assert asyncio.run(test()) == 0
