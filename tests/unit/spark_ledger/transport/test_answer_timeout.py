"""How long the answers of one call are waited for, and what does not count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps

import pytest

from spark_ledger.limits.client import LOOP_LATE_S
from spark_ledger.transport.answer_timeout import AnswerTimeout
from tests.unit.virtual_time import run_in_virtual_time, stand_still


class Call:
    """Brings each answer after as many seconds as it is told; its end cancels what is awaited."""

    def __init__(self, timeout_s: float) -> None:
        self.ended_at: float | None = None
        self.bound = AnswerTimeout(timeout_s, self._end)
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def _end(self) -> None:
        assert self.ended_at is None, "a call ends once"
        self.ended_at = asyncio.get_running_loop().time()
        self._answer.cancel()

    def _arrive(self) -> None:
        if not self._answer.done():
            self._answer.set_result("answer")

    async def read(self, delay_s: float) -> str:
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        loop.call_later(delay_s, self._arrive)
        try:
            return await self.bound.within(self._answer)
        except asyncio.CancelledError:
            return "ended"


def in_virtual_time(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    @pytest.mark.leaves_open("AnswerTimeout._look", reason="its call goes on")
    @wraps(test)
    def run() -> None:
        run_in_virtual_time(test())

    return run


@in_virtual_time
async def test_answer_that_does_not_come_ends_the_call() -> None:
    call = Call(10.0)
    assert await call.read(60.0) == "ended"
    assert call.bound.expired
    assert call.ended_at == 10.0


@in_virtual_time
async def test_each_answer_has_the_whole_time() -> None:
    call = Call(10.0)
    for _ in range(5):
        assert await call.read(9.0) == "answer"
    assert await call.read(60.0) == "ended"
    assert call.ended_at == 5 * 9.0 + 10.0


@in_virtual_time
async def test_time_between_two_answers_does_not_count() -> None:
    call = Call(10.0)
    assert await call.read(1.0) == "answer"
    await asyncio.sleep(100.0)
    assert await call.read(9.0) == "answer"
    assert not call.bound.expired
    assert await call.read(60.0) == "ended"
    assert call.ended_at == 1.0 + 100.0 + 9.0 + 10.0


@in_virtual_time
async def test_closed_bound_ends_nothing() -> None:
    call = Call(10.0)
    assert await call.read(1.0) == "answer"
    call.bound.close()
    await asyncio.sleep(100.0)
    assert call.ended_at is None


@in_virtual_time
async def test_loop_that_stood_still_is_given_a_moment_more() -> None:
    call = Call(10.0)
    loop = asyncio.get_running_loop()
    loop.call_later(5.0, stand_still, 20.0)
    assert await call.read(25.0 + LOOP_LATE_S / 2) == "answer"
    assert not call.bound.expired


@in_virtual_time
async def test_loop_that_stands_still_again_and_again_is_excused_once() -> None:
    call = Call(10.0)
    loop = asyncio.get_running_loop()

    def busy() -> None:
        stand_still(2 * LOOP_LATE_S)
        if call.ended_at is None:
            loop.call_soon(busy)

    loop.call_later(9.9, busy)
    assert await call.read(60.0) == "ended"
    assert call.ended_at is not None and call.ended_at < 10.0 + 8 * LOOP_LATE_S


@in_virtual_time
async def test_each_answer_is_excused_once() -> None:
    """A stream of an hour may meet a loop that stands still more than once."""
    call = Call(10.0)
    loop = asyncio.get_running_loop()
    for _ in range(3):
        loop.call_later(5.0, stand_still, 20.0)
        assert await call.read(25.0 + LOOP_LATE_S / 2) == "answer"
    assert not call.bound.expired


@in_virtual_time
async def test_many_answers_set_few_timers() -> None:
    """A timer for each chunk costs as much as a twentieth of reading it."""
    loop = asyncio.get_running_loop()
    timers = 0
    set_timer = loop.call_at

    def counted(*arguments: object) -> object:
        nonlocal timers
        timers += 1
        return set_timer(*arguments)  # type: ignore[arg-type]

    call = Call(10.0)
    loop.call_at = counted  # type: ignore[method-assign, assignment]
    for _ in range(100):
        loop.call_soon(lambda: call._answer.set_result("answer"))
        assert await _answer_at_once(call) == "answer"
    assert timers <= 1


async def _answer_at_once(call: Call) -> str:
    call._answer = asyncio.get_running_loop().create_future()
    return await call.bound.within(call._answer)
