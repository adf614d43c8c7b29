"""Calls that are answered and not read: which of them lose their connection."""

from __future__ import annotations

import asyncio
import time

import pytest

from bookie_server.service import calls
from bookie_server.service.calls import BOUNDS, Call, Leftovers
from spark_ledger.limits.bookie import (
    BOOKIE_CALLS_MAX,
    BOOKIE_LEFTOVER_S,
    BOOKIE_LEFTOVERS_AT_ONCE_MAX,
)
from tests.unit.bookie_server.service.test_calls import hang_up, name, nobody, on_loop, until


def answered(leftovers: Leftovers, number: int, takes_s: float = 9e9) -> list[Call]:
    """Calls whose handlers end now, and whose clients have read the answer after so long."""

    async def call() -> None:
        leftovers.handler_ended(name())
        leftovers.handler_ended(name())  # a call is counted once
        await asyncio.sleep(takes_s)  # gRPC sends the status

    return [asyncio.ensure_future(call()) for _ in range(number)]


@on_loop
async def test_answered_calls_whose_clients_do_not_read_are_cut_when_there_are_too_many() -> None:
    leftovers = Leftovers(hang_up)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "BOOKIE_LEFTOVERS_MAX", 1)
        patch.setattr(calls, "_CUT_AT_ONCE", 2)
        tasks = answered(leftovers, 3)
        await asyncio.sleep(BOOKIE_LEFTOVER_S / 2)
        tasks += answered(leftovers, 2)
        await asyncio.sleep(BOOKIE_LEFTOVER_S / 3)
        assert not any(task.done() for task in tasks)
        await asyncio.sleep(BOOKIE_LEFTOVER_S / 2)
        assert [task.cancelled() for task in tasks] == [True] * 3 + [False] * 2
        await until(lambda: tasks[3].done())
        await asyncio.sleep(10 * BOOKIE_LEFTOVER_S)
        assert not tasks[4].done() and leftovers._timer is None
        tasks[4].cancel()
        await until(lambda: not leftovers._calls)


@on_loop
async def test_calls_that_end_together_and_are_read_soon_are_not_cut() -> None:
    """Thousands of long polls end in one turn when an entry is confirmed."""
    leftovers = Leftovers(nobody)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "BOOKIE_LEFTOVERS_MAX", 2)
        await asyncio.wait(answered(leftovers, 6, 0.9 * BOOKIE_LEFTOVER_S))
        await until(lambda: leftovers._timer is None)
    assert not leftovers._calls


@on_loop
async def test_oldest_of_far_too_many_answered_calls_is_cut_at_once() -> None:
    ended: list[str] = []
    leftovers = Leftovers(lambda peer, _why: ended.append(peer))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "BOOKIE_LEFTOVERS_AT_ONCE_MAX", 4)
        tasks = answered(leftovers, 5, 0.01)
        tasks[0].set_name("oldest")
        await asyncio.wait(tasks)
    assert ended == ["oldest"]


@on_loop
async def test_connection_with_many_unread_answers_ends_once_the_oldest_had_its_time() -> None:
    """All its calls end in one turn of the loop: fewer of them keep the others for less."""
    ended: list[str] = []
    leftovers = Leftovers(lambda peer, _why: ended.append(peer))

    def answer(peer: str, number: int) -> None:
        for task in answered(leftovers, number):
            task.set_name(peer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "BOOKIE_LEFTOVERS_OF_ONE_MAX", 3)
        patch.setattr(calls, "BOOKIE_LEFTOVER_OF_MANY_S", 0.05)
        answer("many", 3)
        answer("few", 2)
        await asyncio.sleep(0.01)
        answer("at once", 5)
        await asyncio.sleep(0.1)
        assert not ended, "who asks no more costs nothing more"
        answer("few", 1)
        await asyncio.sleep(0.01)
        assert not ended
        answer("many", 1)
        await until(lambda: ended == ["many"])
        for task in list(leftovers._calls):
            task.cancel()
        await until(lambda: not leftovers._calls)
        assert not leftovers._of


def test_loop_that_has_stood_still_first_hears_what_was_read_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In real time, as virtual time does not go on while a loop stands still."""
    monkeypatch.setattr(calls, "BOOKIE_LEFTOVERS_OF_ONE_MAX", 3)
    monkeypatch.setattr(calls, "BOOKIE_LEFTOVER_OF_MANY_S", 0.05)
    leftovers = Leftovers(nobody)

    async def main() -> None:
        read = answered(leftovers, 5, 0.02)
        for task in read:
            task.set_name("one")
        await asyncio.sleep(0.01)
        read += answered(leftovers, 1, 0.02)  # its turn is before it is known that they ended
        read[-1].set_name("one")
        time.sleep(0.1)
        await asyncio.gather(*read)
        await until(lambda: not leftovers._doubted and not leftovers._calls)

    asyncio.run(main())


def test_all_calls_that_kinds_admit_may_end_together() -> None:
    assert sum(BOUNDS.values()) < BOOKIE_LEFTOVERS_AT_ONCE_MAX < BOOKIE_CALLS_MAX
