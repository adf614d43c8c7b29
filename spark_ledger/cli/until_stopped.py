"""Runs a role of the cluster until a signal says stop: the keeper, or one more worker of repair."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable

from spark_ledger.loop_watch import LoopWatch
from spark_ledger.tasks import cancel


def stopped_by_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. On the main thread's running loop."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def run_until_stopped(work: Awaitable[None], stop: asyncio.Event) -> None:
    """Run ``work`` until it ends or ``stop`` is set, which cuts it off. Raises what it raises.

    A pass that is cut off is as good as a kill: the next one goes on, and nobody waits for it. If
    the loop stands still the process ends: it would stay elected, and nobody would take its place.
    """
    with LoopWatch().running():
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        await cancel(working, stopping)
    if not working.cancelled():
        working.result()
