"""Bounds the waits for the answers of one call, by one timer that is seldom set."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from spark_ledger.limits.client import LOOP_LATE_S

T = TypeVar("T")


class AnswerTimeout:
    """Ends a call once an answer of it was waited for too long.

    Only waiting counts, not what is done between two answers. And an application that computes on
    the event loop lets answers wait unread: they have come in time, and whoever sent them is not
    slow. So a loop that stood still is given a moment more.

    A timer for each answer, or a task, would cost as much as a twentieth of the reading itself. So
    there is one, which is set when it is due and not before.
    """

    def __init__(self, timeout_s: float, end_call: Callable[[], object]) -> None:
        self._timeout_s = timeout_s
        self._end_call = end_call
        self._loop = asyncio.get_running_loop()
        self._due = math.inf  # while nothing is waited for
        self._is_excused = False  # this wait has got its moment more
        self._timer: asyncio.TimerHandle | None = None
        self.expired = False
        """The call was ended here."""

    async def within(self, answer: Awaitable[T]) -> T:
        """The answer, or what the call raises when it is ended."""
        self._due = self._loop.time() + self._timeout_s
        self._is_excused = False
        if self._timer is None:
            self._look_at(self._due)
        try:
            return await answer
        finally:
            self._due = math.inf

    def close(self) -> None:
        """Nothing more is waited for."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, when: float) -> None:
        self._timer = self._loop.call_at(when, self._look, when)

    def _look(self, was_due: float) -> None:
        """The time is up that was set last; what is waited for now may have more."""
        self._timer = None
        if self._due == math.inf:
            return
        now = self._loop.time()
        if self._due > was_due:
            self._look_at(self._due)
        elif now - was_due > LOOP_LATE_S and not self._is_excused:
            self._is_excused = True
            self._due = now + LOOP_LATE_S
            self._look_at(self._due)
        else:
            self.expired = True
            self._end_call()
