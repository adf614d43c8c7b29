"""What copies of a worker share: byte rates, one of it and one of each bookie read from, and who
hung."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from spark_ledger.repair.hung import HungBookies
from spark_ledger.tasks import Throttle
from spark_ledger.types import BookieId


class Throttles:
    """What one worker copies, in sum and from each bookie, and whom it asks last."""

    def __init__(
        self,
        bytes_per_s: float,
        source_bytes_per_s: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._total = Throttle(bytes_per_s, clock)
        self._source_rate = source_bytes_per_s
        self._sources: dict[BookieId, Throttle] = {}
        self.source_waited_s = 0.0
        """How long copies waited in sum because of one bookie's rate, beyond the worker's own."""
        self.hung = HungBookies(clock)
        """Bookies that let a read time out."""
        self.mute = HungBookies(clock)
        """Those that did not say what they hold. Who hangs as a source may say that still."""

    async def take(self, source: BookieId, count: int) -> None:
        """Wait until ``count`` bytes that came from a bookie may go on."""
        own_s, source_s = self._total.reserve(count), self._of(source).reserve(count)
        self.source_waited_s += max(0.0, source_s - own_s)
        wait_s = max(own_s, source_s)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def least_loaded(self, sources: Sequence[BookieId]) -> list[BookieId]:
        """The sources, those first that have the least to wait for; else in their order."""
        return sorted(sources, key=lambda each: self._of(each).wait_s)

    def _of(self, source: BookieId) -> Throttle:
        if source not in self._sources:
            self._sources[source] = Throttle(self._source_rate, self._clock)
        return self._sources[source]
