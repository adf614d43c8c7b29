"""One pass after the other until somebody says stop: what the keeper and repair have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from spark_ledger.errors import LedgerClosedError, LedgerError, MetadataRestoredError
from spark_ledger.tasks import wait_at_most


async def run_passes(
    stop: asyncio.Event,
    pause_s: float,
    run_pass: Callable[[], Awaitable[object]],
    on_error: Callable[[LedgerError], None],
    *,
    pauses_first: bool = False,
) -> None:
    """Run passes with a pause of ``pause_s`` seconds between two of them.

    Ends once ``stop`` is set, or the connection is closed. An outage breaks off one pass:
    ``on_error`` is told, and the next one is tried. Raises what no LedgerError is: a bug of ours;
    and MetadataRestoredError: what this process remembers is of another history (rule K6).
    """
    while not stop.is_set():
        if pauses_first:
            await wait_at_most(stop, pause_s)
            if stop.is_set():
                return
        pauses_first = True
        try:
            await run_pass()
        except LedgerClosedError:
            return
        except MetadataRestoredError:
            raise
        except LedgerError as error:
            on_error(error)
