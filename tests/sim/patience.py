"""A reader that does not go on with an open read: a real bookie holds the next part for it, and
has less room for all others, until it ends the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from spark_ledger.limits.bookie import BOOKIE_UNREAD_GRACE_S


@contextmanager
def taken_soon(bookie_id: str) -> Iterator[None]:
    """Fails whoever keeps a part of an answer for longer than bookies have patience."""
    loop = asyncio.get_running_loop()
    given_at = loop.time()
    try:
        yield
    finally:
        held_s = loop.time() - given_at
        assert held_s < BOOKIE_UNREAD_GRACE_S, f"a read of {bookie_id} paused for {held_s} s"
