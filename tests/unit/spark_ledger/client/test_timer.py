"""The timer of a client: who is due is called, nobody is called for nothing."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.client.machine_loop import MachineLoop
from spark_ledger.client.timer import Alarm, Timer
from spark_ledger.limits.client import MACHINE_TICK_S_MAX, TIMER_STEP_S
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.virtual_time import run_in_virtual_time


def test_alarms_ring_in_the_order_of_their_times_and_never_early() -> None:
    async def main() -> None:
        timer, loop = Timer(), asyncio.get_running_loop()
        rung: list[tuple[str, float]] = []
        began = loop.time()
        wanted = {"b": 0.04, "a": 0.02, "c": 0.06, "also a": 0.02}
        for name, delay in wanted.items():
            alarm = timer.alarm(lambda name=name: rung.append((name, loop.time() - began)))  # type: ignore[misc]
            alarm.set_by(began + delay)
        async with asyncio.timeout(5):
            while len(rung) < len(wanted):
                await asyncio.sleep(TIMER_STEP_S)
        assert [name for name, _ in rung] == ["a", "also a", "b", "c"]
        assert all(at >= wanted[name] - TIMER_STEP_S / 2 for name, at in rung)

    asyncio.run(main())


def test_alarm_that_is_set_for_an_earlier_time_rings_then_and_once() -> None:
    async def main() -> None:
        timer, loop = Timer(), asyncio.get_running_loop()
        rung: list[float] = []
        alarm = timer.alarm(lambda: rung.append(loop.time()))
        now = loop.time()
        alarm.set_by(now + 0.2)
        alarm.set_by(now + 0.02)
        alarm.set_by(now + 0.1)
        await asyncio.sleep(0.3)
        assert len(rung) == 1
        assert rung[0] < now + 0.1
        alarm.set_by(loop.time() + 0.01)
        await asyncio.sleep(0.05)
        assert len(rung) == 2, "it can be set again"

    run_in_virtual_time(main())


def test_alarm_set_from_its_own_call_or_from_another_rings_again() -> None:
    async def main() -> None:
        timer, loop = Timer(), asyncio.get_running_loop()
        rung = 0

        def on_ring() -> None:
            nonlocal rung
            rung += 1
            second.set_by(loop.time())  # its slot has come, and it is about to ring
            if rung < 5:
                first.set_by(loop.time())

        first, second = timer.alarm(on_ring), timer.alarm(lambda: None)
        first.set_by(loop.time())
        second.set_by(loop.time())
        async with asyncio.timeout(5):
            while rung < 5:
                await asyncio.sleep(TIMER_STEP_S)

    asyncio.run(main())


def test_cancelled_alarm_is_silent_and_one_that_raises_stops_no_other() -> None:
    async def main() -> None:
        timer, loop = Timer(), asyncio.get_running_loop()
        errors: list[str] = []
        loop.set_exception_handler(lambda _loop, context: errors.append(str(context["exception"])))
        rung: list[str] = []

        def broken() -> None:
            raise RuntimeError("broken")

        at = loop.time() + 0.02
        cancelled = timer.alarm(lambda: rung.append("cancelled"))
        cancelled.set_by(at)
        timer.alarm(broken).set_by(at)
        timer.alarm(lambda: rung.append("good")).set_by(at)
        cancelled.cancel()
        cancelled.cancel()
        async with asyncio.timeout(5):
            while not rung:
                await asyncio.sleep(TIMER_STEP_S)
        assert rung == ["good"]
        assert errors == ["broken"]

    asyncio.run(main())


def test_writers_beside_a_silent_bookie_hardly_look_at_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3,000 of them took a whole core when each looked fifty times a second."""
    looks = 0
    look = MachineLoop._on_tick

    def counted(loop: MachineLoop) -> None:
        nonlocal looks
        looks += 1
        look(loop)

    async def test(world: World) -> None:
        nonlocal looks
        client = await world.client(add_timeout_s=30.0, explicit_lac_delay_s=0.01)
        world.bookies[BookieId("b2")].hold = True
        writers = [await client.create_ledger() for _ in range(20)]
        for writer in writers:
            await writer.append(b"two of three are enough")
        await asyncio.sleep(0.1)  # the last add confirmed is told
        looks = 0
        await asyncio.sleep(MACHINE_TICK_S_MAX / 2)
        assert looks <= 3 * len(writers), "an announcement is repeated after 0.5 s, 1 s, 2 s ..."

    with monkeypatch.context() as patched:
        patched.setattr(MachineLoop, "_on_tick", counted)
        run(test)


def test_alarm_that_another_of_its_slot_cancels_does_not_ring() -> None:
    """Both are due in one turn; the first ends what the second belongs to."""

    async def main() -> None:
        timer, loop = Timer(), asyncio.get_running_loop()
        rung: list[str] = []

        def first() -> None:
            rung.append("first")
            second.cancel()

        one, second = timer.alarm(first), timer.alarm(lambda: rung.append("second"))
        last = timer.alarm(lambda: rung.append("last"))
        at = loop.time() + 0.01
        for alarm in (one, second, last):
            alarm.set_by(at)
        async with asyncio.timeout(5):
            while "last" not in rung:
                await asyncio.sleep(TIMER_STEP_S)
        assert rung == ["first", "last"]

    asyncio.run(main())


def test_closed_timer_calls_nobody_and_leaves_nothing_at_the_loop() -> None:
    async def main() -> None:
        timer, loop = Timer(), asyncio.get_running_loop()
        rung: list[str] = []
        timer.alarm(lambda: rung.append("set before")).set_by(loop.time() + 0.1)
        timer.close()
        assert timer._handle is None
        timer.alarm(lambda: rung.append("set behind")).set_by(loop.time() + 0.2)
        assert timer._handle is None
        await asyncio.sleep(1.0)
        assert rung == []

    run_in_virtual_time(main())


def test_alarm_that_is_set_when_its_timer_is_closed_or_behind_that_is_told_once() -> None:
    async def main() -> None:
        timer, loop = Timer(), asyncio.get_running_loop()
        told: list[str] = []

        def alarm(name: str) -> Alarm:
            made = timer.alarm(
                lambda: told.append(f"{name} rings"), lambda: told.append(f"{name} ends")
            )
            made.set_by(loop.time() + 0.1)
            return made

        before, cancelled, cancelled_late = (alarm(name) for name in ("before", "out", "late out"))
        cancelled.cancel()
        timer.close()
        assert told == [], "not from the close: one that raises must not keep it from its end"
        cancelled_late.cancel()
        alarm("behind")
        await asyncio.sleep(1.0)
        assert told == ["before ends", "behind ends"]
        assert not before.is_set
        before.set_by(loop.time())
        await asyncio.sleep(1.0)
        assert told[2:] == ["before ends"]

    run_in_virtual_time(main())
