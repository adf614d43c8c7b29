"""A command that works until it is stopped: signals, the end of its input, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from spark_ledger.tasks import cancel

if TYPE_CHECKING:
    from spark_ledger.client.ledger_client import LedgerClient

Work = Callable[["LedgerClient", asyncio.Event], Coroutine[None, None, None]]
"""Gets a client, and the event that says that it shall end."""


def serve(uri: str, work: Work, *, until_input_ends: bool = False) -> None:
    """Run ``work`` until it returns, or SIGTERM or SIGINT comes, or standard input ends if wanted.

    It logs to standard error. Raises what ``work`` raises, and as ``LedgerClient.connect``.
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    asyncio.run(_serve(uri, work, until_input_ends=until_input_ends))


async def _serve(uri: str, work: Work, *, until_input_ends: bool) -> None:
    from spark_ledger.client.ledger_client import LedgerClient

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_input_ends:
        loop.add_reader(sys.stdin.fileno(), stop.set)  # nothing is ever written to it
    async with await LedgerClient.connect(uri) as client:
        working = loop.create_task(work(client, stop))
        stopping = loop.create_task(stop.wait())
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        # What is under way is cut off: that is as good as a kill, and nobody waits for it.
        await cancel(working, stopping)
        if not working.cancelled():
            working.result()
