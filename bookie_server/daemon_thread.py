"""Runs what a disk may hold up for ever in a thread that the process need not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


def in_daemon_thread(function: Callable[[], None]) -> asyncio.Future[None]:
    """Run in a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(None)
        else:
            result.set_exception(error)

    def work() -> None:
        error: BaseException | None = None
        try:
            function()
        except BaseException as caught:  # noqa: BLE001 - handed to the waiter as it is
            error = caught
        loop.call_soon_threadsafe(finish, error)

    threading.Thread(target=work, name="close", daemon=True).start()
    return result
