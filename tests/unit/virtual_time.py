"""Runs a coroutine on a loop whose clock jumps to the next timer, so that waits cost no time.

For tests of bounds and retries: they can ask how long something took, to the microsecond and on
any machine. What runs in threads or waits for sockets cannot be tested with it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Final, TypeVar

T = TypeVar("T")

_LASTS_S_MAX: Final = 300.0


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for a time, lets it pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "somebody waits for what never comes"
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop of ``run_in_virtual_time``."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(main: Coroutine[object, object, T]) -> T:
    """The result of ``main``. Fails if everybody waits and no timer is set, and after some minutes
    of its time: who looks again and again for ever would hang."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_bounded(main))


async def _bounded(main: Coroutine[object, object, T]) -> T:
    """In the task of the test: whoever counts tasks finds no other."""
    async with asyncio.timeout(_LASTS_S_MAX):
        return await main


def stand_still(seconds: float) -> None:
    """Let time pass as for a loop that is kept busy: nobody else has a turn meanwhile."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "only there"
    loop._jumping.now += seconds
