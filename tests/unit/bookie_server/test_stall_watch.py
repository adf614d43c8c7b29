"""When a bookie says that its disks stall, and when that they go on."""

from __future__ import annotations

import asyncio

from bookie_server.core.read_only import Cause, Stall, stall
from bookie_server.stall_watch import StallWatch
from spark_ledger.limits.bookie import JOURNAL_STALLED_S, LEDGERS_STALLED_S, STALL_LOOK_S
from spark_ledger.limits.client import ADD_TIMEOUT_S


class Fixture:
    def __init__(self) -> None:
        self.now = 0.0
        self.unsynced_s = self.unmoved_s = 0.0
        self.told: list[str] = []
        self.watch = StallWatch(self._ask, self.told.append, clock=lambda: self.now)

    def _ask(self) -> Stall | None:
        return stall("/journal", self.unsynced_s, "/ledgers", self.unmoved_s, adds_wait=True)

    def look(
        self, unsynced_s: float, after_s: float = STALL_LOOK_S, unmoved_s: float = 0.0
    ) -> None:
        self.now += after_s
        self.unsynced_s, self.unmoved_s = unsynced_s, unmoved_s
        self.watch.look()


def test_stall_is_told_before_clients_find_out_by_silence() -> None:
    assert max(JOURNAL_STALLED_S, LEDGERS_STALLED_S) + 2 * STALL_LOOK_S < ADD_TIMEOUT_S


def test_stall_is_told_once_and_its_end_once() -> None:
    f = Fixture()
    f.look(0.0)
    f.look(JOURNAL_STALLED_S)
    f.look(JOURNAL_STALLED_S + STALL_LOOK_S)
    assert (
        f.watch.stall is not None
        and f.watch.stall.reason == "journal /journal has not synced for 2.0 s"
    )
    f.look(0.0)
    f.look(0.1)
    assert f.told == ["journal /journal has not synced for 2.0 s", ""]


def test_flush_that_still_stands_when_the_journal_goes_on_is_told_as_well() -> None:
    f = Fixture()
    f.look(JOURNAL_STALLED_S, unmoved_s=LEDGERS_STALLED_S)
    f.look(0.0, unmoved_s=LEDGERS_STALLED_S)
    assert f.watch.stall is not None and f.watch.stall.cause is Cause.LEDGERS_STALLED
    f.look(0.0)
    assert [told.split(" has")[0] for told in f.told] == [
        "journal /journal",
        "the flush of /ledgers",
        "",
    ]


def test_process_that_stood_still_tells_no_stall_before_it_has_looked_again() -> None:
    f = Fixture()
    f.look(20.0, after_s=20.0)
    assert f.told == [], "the journal stood still with the rest"
    f.look(JOURNAL_STALLED_S)
    assert len(f.told) == 1
    f.look(0.0, after_s=20.0)
    assert f.told[1:] == [""], "that it goes on is news at any time"


def test_reads_are_looked_at_unless_the_look_is_late() -> None:
    """Reads of a process that stood still look as old as those of a disk that hangs."""

    async def test() -> None:
        f, looks = Fixture(), list[float]()
        f.watch.start(looks.append)
        f.watch.stop()
        f.look(0.0)
        f.look(0.0, after_s=20.0)
        f.look(0.0)
        assert looks == [0.0, STALL_LOOK_S, 20.0 + 2 * STALL_LOOK_S]

    asyncio.run(test())


def test_watch_looks_at_a_cadence_until_it_is_stopped() -> None:
    async def test() -> int:
        looks = 0

        def ask() -> Stall | None:
            nonlocal looks
            looks += 1
            return None

        watch = StallWatch(ask, lambda _reason: None)
        watch.start()
        async with asyncio.timeout(10):
            while looks < 3:
                await asyncio.sleep(0.01)
        watch.stop()
        seen = looks
        await asyncio.sleep(2 * STALL_LOOK_S)  # that it does not look is what is tested
        return looks - seen

    assert asyncio.run(test()) == 0
