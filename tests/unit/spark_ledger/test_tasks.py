"""Ends of background tasks, and waits with an end."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.tasks import cancel, wait_at_most
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
        await cancel(*tasks)
        assert sorted(ended) == ["a", "b", "c"]
        assert all(task.done() for task in tasks)

    run_in_virtual_time(scenario())


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
