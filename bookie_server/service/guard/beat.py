"""Looks at the clock that several parts of a bookie take now and then, taken together.

What wakes an idle process costs more than what it then does: a fifth of a millisecond for finding
its caches cold. Each part has a cadence of its own, so a bookie that did nothing woke fifteen times
a second. On the beat it wakes four times, and each part still looks as often as it wants to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spark_ledger.limits.bookie import BOOKIE_BEAT_S


def call_on_beat(delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
    """Have the running loop call back after the delay, or before: together with others who wait for
    as long, or twice as long. A delay that is shorter than a beat is kept as it is."""
    loop = asyncio.get_running_loop()
    at = loop.time() + delay_s
    if delay_s >= BOOKIE_BEAT_S:
        at -= at % (delay_s // BOOKIE_BEAT_S * BOOKIE_BEAT_S)
    return loop.call_at(at, callback)
