"""Runs a role of the cluster until a signal says stop: the keeper, or one more worker of repair."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


def stopped_by_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. On the main thread's running loop."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


# Any in a coroutine's type: what it is sent and yields is between it and the event loop.


async def run_until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run ``work`` until it ends or ``stop`` is set, which cuts it off. Raises what it raises.

    A pass that is cut off is as good as a kill: the next one goes on, and nobody waits for it.
    """
    loop = asyncio.get_running_loop()
    working, stopping = loop.create_task(work), loop.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    working.cancel()
    (outcome,) = await asyncio.gather(working, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome
