"""What a disk or another machine may hold up for ever does not hold up the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from bookie_server.telling import end_output
from spark_ledger.limits.bookie import BOOKIE_EXIT_S

T = TypeVar("T")

logger = logging.getLogger(__name__)


def in_daemon_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run in a thread that does not keep the process alive; what it returns. Raises OSError if the
    process can have no other thread now: who asks a disk expects no other error, and asks again
    later."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def finish(end: Callable[[], None]) -> None:
        if not result.done():
            end()

    def work() -> None:
        try:
            end = partial(result.set_result, function())
        except BaseException as caught:  # noqa: BLE001 - handed to the waiter as it is
            end = partial(result.set_exception, caught)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, end)

    try:
        threading.Thread(target=work, name="close", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread for the disk: {error}") from error
    return result


async def at_most(seconds: float, work: Awaitable[None], otherwise: str) -> None:
    """Wait for it, but no longer: what ends a process may not hold it up."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        logger.warning("%s", otherwise)


def end_process(exit_code: int, after_s: float = BOOKIE_EXIT_S) -> None:
    """End the process after that time, if it has not ended by itself: Python waits without a bound
    for the threads of pools, and one may wait for a disk."""

    def end() -> None:
        time.sleep(after_s)
        logger.error("a disk has not answered for %g s: the process ends without it", after_s)
        end_output()
        os._exit(exit_code)

    threading.Thread(target=end, name="end", daemon=True).start()
