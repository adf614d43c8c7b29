"""StallWatch: looks at the disks at a cadence, and tells when one stalls and when it goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from bookie_server.core.read_only import Stall
from bookie_server.service.guard.beat import call_on_beat
from spark_ledger.limits.bookie import STALL_LOOK_S

logger = logging.getLogger(__name__)


class StallWatch:
    """Belongs to the service thread, which no disk stops (see ``Journal``). Any thread may read
    ``stall``, the one that was told last; None while there is none."""

    def __init__(
        self,
        ask: Callable[[], Stall | None],
        on_changed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_changed`` gets the reason when a stall begins, and "" when it has ended."""
        self.stall: Stall | None = None
        self._ask = ask
        self._on_changed = on_changed
        self._clock = clock
        self._looked_at = clock()
        self._look_at_reads: Callable[[float], None] = lambda _now: None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, look_at_reads: Callable[[float], None] | None = None) -> None:
        """Look now, and at the cadence from now on. Reads that a disk does not answer make nobody
        wait who adds: ``look_at_reads`` is only called at each look that is in time."""
        self._look_at_reads = look_at_reads or self._look_at_reads
        self._timer = call_on_beat(STALL_LOOK_S, self.start)
        self.look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Look once.

        A look that comes late proves nothing: the process stood still, and its disks with it.
        """
        now = self._clock()
        is_late = now - self._looked_at > 2 * STALL_LOOK_S
        self._looked_at = now
        if not is_late:
            self._look_at_reads(now)
        before, stall = self.stall, self._ask()
        if (stall and stall.cause) == (before and before.cause) or (stall and is_late):
            return
        self.stall = stall
        if stall is None:
            assert before is not None, "a stall ends that was told"
            logger.warning("it goes on: %s", before.reason)
        else:
            logger.warning("%s", stall.reason)
        self._on_changed("" if stall is None else stall.reason)
