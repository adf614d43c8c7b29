"""Remembers for a while which bookies let a question time out: they are asked last.

Shared by all ledgers of a worker. A bookie whose disk hangs stays registered, and each of ten
thousand ledgers would wait for it anew. It may be the only one that has an entry, so it is never
left out as a source (rule R4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from spark_ledger.limits.repair import CHECK_HUNG_S
from spark_ledger.types import BookieId


class HungBookies:
    """Who let a question time out in the last minute."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or asyncio.get_running_loop().time
        self._until: dict[BookieId, float] = {}

    def note(self, bookie_id: BookieId) -> None:
        """A question to this bookie timed out now. Those whose time is over are forgotten."""
        now = self._clock()
        self._until = {each: until for each, until in self._until.items() if now < until}
        self._until[bookie_id] = now + CHECK_HUNG_S

    def __contains__(self, bookie_id: BookieId) -> bool:
        return self._clock() < self._until.get(bookie_id, 0.0)

    def last(self, bookies: Iterable[BookieId]) -> list[BookieId]:
        """These bookies, those last that hung; else in their order."""
        return sorted(bookies, key=self.__contains__)
