"""Makes an answer for all who ask meanwhile, and spends a bounded share of a processor on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from spark_ledger.limits.bookie import BOOKIE_ADMIN_PAUSE_S_MAX, BOOKIE_ADMIN_SHARE

_Answer = TypeVar("_Answer")


class Paced(Generic[_Answer]):
    """Metrics that are asked for again and again would take the interpreter from everybody else.

    Each answer is made after it was asked for, so none is old: whoever asks while one is being made
    waits for the next one, with all others who do. One that is asked for now and then is made at
    once. Service thread only; ``make`` runs in a thread of a pool.
    """

    def __init__(self, make: Callable[[], _Answer]) -> None:
        self._make = make
        self._next: asyncio.Task[_Answer] | None = None
        self._at_work = asyncio.Lock()
        self._free_at = 0.0

    async def get(self) -> _Answer:
        """An answer that is made from now on."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._make_next())
        return await asyncio.shield(self._next)  # the others wait for it as well

    async def _make_next(self) -> _Answer:
        loop = asyncio.get_running_loop()
        async with self._at_work:
            await asyncio.sleep(self._free_at - loop.time())
            self._next = None
            began = loop.time()
            try:
                return await asyncio.to_thread(self._make)
            finally:
                ended = loop.time()
                pause_s = (BOOKIE_ADMIN_SHARE - 1) * (ended - began)
                self._free_at = ended + min(pause_s, BOOKIE_ADMIN_PAUSE_S_MAX)
