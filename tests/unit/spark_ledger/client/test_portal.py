"""The blocking portal: Ctrl-C while an item is awaited ends the iterator, and nothing else."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator

import pytest

from spark_ledger.client.blocking import BlockingPortal


@pytest.mark.parametrize("attempt", range(3))
def test_control_c_while_an_item_is_awaited_closes_the_iterator(attempt: int) -> None:
    closed = threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            yield attempt
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.02)  # giving up takes a few turns, as that of a long poll
                raise
        finally:
            closed.set()

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    try:
        items = BlockingPortal.get().iterate(endless())
        assert next(items) == attempt
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(items)
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert closed.is_set()
