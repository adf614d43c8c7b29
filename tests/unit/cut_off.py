"""Runs a piece of work again and again, cut off at its first wait, its second, and so on.

Whoever holds something across a wait may be cancelled there: by a caller whose patience ends, by a
process that stops, by a pass that is broken off. A test that cancels at one moment knows that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")

_WAITS_MAX = 2_000


class _CutOff(Generic[T]):
    """Awaits for another, and cancels the task that does so once it waits for the nth time."""

    def __init__(self, work: Awaitable[T], wait: int) -> None:
        self._work = work
        self._left = wait

    def __await__(self) -> Generator[object, None, T]:
        steps, error = self._work.__await__(), None
        while True:
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self._left -= 1
            if self._left == 0:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            error = None
            try:
                yield waits_for
            except BaseException as raised:  # noqa: BLE001 - it is the work's
                error = raised

    @property
    def was_cut(self) -> bool:
        """Whether it had as many waits."""
        return self._left <= 0


async def cut_off(work: Awaitable[object], wait: int) -> bool:
    """Run work, cancelled at a wait, counted from 1; false if it ended before that. What is cut off
    ends by that: whoever swallows it goes on in a process that stops."""
    cut = _CutOff(work, wait)

    async def run() -> object:
        return await cut

    task = asyncio.ensure_future(run())
    await asyncio.gather(task, return_exceptions=True)
    if not cut.was_cut:
        task.result()
    elif not task.cancelled():
        task.result()
        raise AssertionError(f"it was cut off at wait {wait}, and went on")
    return cut.was_cut


async def cut_off_at_each_wait(one: Callable[[int], Awaitable[bool]]) -> int:
    """Call ``one`` with 1, 2, ... until it says that its work ended before it was cut off; how many
    waits the work has. ``one`` makes what it needs, runs ``cut_off``, and looks what is left."""
    for wait in range(1, _WAITS_MAX):
        if not await one(wait):
            return wait - 1
    raise AssertionError(f"more than {_WAITS_MAX} waits")
