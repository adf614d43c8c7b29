"""Makes connections wait that send what no client of this system sends, all in one queue.

To receive such bytes and to look at them costs everybody else their time. Were each connection held
for what it sent alone, a hundred connections would cost a hundred times as much.
"""

from __future__ import annotations

import asyncio

from spark_ledger.limits.bookie import BOOKIE_NONSENSE_BYTES_S, BOOKIE_NONSENSE_PAUSE_S_MAX


class Nonsense:
    """Says how long a connection is held. Service thread only."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def pause_s(self, byte_count: int) -> float:
        """For bytes that have just been found to be nonsense."""
        now = asyncio.get_running_loop().time()
        ends_at = max(now, self._free_at) + byte_count / BOOKIE_NONSENSE_BYTES_S
        self._free_at = min(ends_at, now + BOOKIE_NONSENSE_PAUSE_S_MAX)
        return self._free_at - now
