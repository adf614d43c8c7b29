"""Background work on an asyncio loop: how a task is ended, and how long an event is waited for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


# What a task returns is nobody's business here.
async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and return once they have ended. How they ended is not said."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until the event is set, or so long. The caller looks which of the two it was."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
