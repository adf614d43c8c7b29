"""Ends of background tasks, and waits with an end."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.tasks import Throttle, cancel, wait_at_most
from tests.unit.virtual_time import run_in_virtual_time


def test_cancel_returns_once_every_task_has_ended() -> None:
    ended = []

    async def work(name: str, fails: bool) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1.0)
            ended.append(name)
            if fails:
                raise ValueError(name)

    async def scenario() -> None:
        tasks = [asyncio.create_task(work(name, name == "b")) for name in "abc"]
        await asyncio.sleep(0)
        begun = asyncio.get_running_loop().time()
        await cancel(*tasks)
        assert sorted(ended) == ["a", "b", "c"]
        assert all(task.done() for task in tasks)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(1.0), "side by side"
        await cancel()

    run_in_virtual_time(scenario())


def test_throttle_saves_a_second_at_most_and_waits_for_what_was_taken_ahead() -> None:
    now = [100.0]
    throttle = Throttle(10.0, lambda: now[0])
    assert throttle.wait_s == 0.0
    assert throttle.reserve(10) == pytest.approx(1.0), "nothing is saved at first"
    assert throttle.wait_s == pytest.approx(1.0)
    now[0] = 200.0
    assert throttle.wait_s == 0.0, "it is never owed a time"
    assert throttle.reserve(10) == 0.0, "a second's worth was saved"
    assert throttle.reserve(5) == pytest.approx(0.5)
    now[0] = 200.2
    assert throttle.reserve(5) == pytest.approx(0.8)


@pytest.mark.parametrize(("set_after_s", "waited_s"), [(2.0, 2.0), (9.0, 5.0)])
def test_wait_ends_with_the_event_or_with_the_time(set_after_s: float, waited_s: float) -> None:
    async def scenario() -> None:
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.call_later(set_after_s, event.set)
        begun = loop.time()
        await wait_at_most(event, 5.0)
        assert loop.time() - begun == pytest.approx(waited_s)
        assert event.is_set() == (set_after_s < 5.0)

    run_in_virtual_time(scenario())
