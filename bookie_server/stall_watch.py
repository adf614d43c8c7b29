"""StallWatch: looks at the journal at a cadence, and tells when it stalls and when it goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from bookie_server.core.journal_stall import stall_reason
from spark_ledger.limits.bookie import JOURNAL_LOOK_S

logger = logging.getLogger(__name__)


class StallWatch:
    """Belongs to the service thread, which no disk stops (see ``Journal``). Any thread may read
    ``reason``."""

    def __init__(
        self,
        journal: str,
        unsynced_s: Callable[[], float],
        on_changed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_changed`` gets the reason when a stall begins, and "" when it has ended."""
        self.reason = ""
        self._journal = journal
        self._unsynced_s = unsynced_s
        self._on_changed = on_changed
        self._clock = clock
        self._looked_at = clock()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and at the cadence from now on."""
        self._timer = asyncio.get_running_loop().call_later(JOURNAL_LOOK_S, self.start)
        self.look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Look once.

        A look that comes late proves nothing: the process stood still, and the journal with it.
        """
        now = self._clock()
        is_late = now - self._looked_at > 2 * JOURNAL_LOOK_S
        self._looked_at = now
        reason = stall_reason(self._journal, self._unsynced_s())
        if bool(reason) == bool(self.reason) or (reason and is_late):
            return
        self.reason = reason
        logger.warning("%s", reason or f"journal {self._journal} syncs again")
        self._on_changed(reason)
