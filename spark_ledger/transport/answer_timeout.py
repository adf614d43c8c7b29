"""Waiting for an answer with a bound that a busy event loop does not use up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from spark_ledger.limits.client import LOOP_LATE_S

T = TypeVar("T")


async def answer_within(answer: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """The answer, if it comes within the time; a loop that stood still is given a moment more.

    An application that computes on the event loop lets answers wait unread. They have come in
    time, and whoever sent them is not slow.

    Raises TimeoutError if there is none.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(answer)
    deadline = loop.time() + timeout_s
    try:
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done() and loop.time() - deadline > LOOP_LATE_S:
            await asyncio.wait([task], timeout=LOOP_LATE_S)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
