"""Messages of adds that are held until the ledgers of their first adds were looked up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_ledger.limits.bookie import BOOKIE_HELD_MESSAGES_BYTES


class HeldMessages:
    """Those of all append streams, by their bytes: nothing else counts what was not taken in yet.
    Service thread only."""

    def __init__(self) -> None:
        self._bytes = 0

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[bool]:
        """Count a message while the body waits. False: there is no room for it, and the rest of it
        is taken in at once."""
        if self._bytes + size_bytes > BOOKIE_HELD_MESSAGES_BYTES:
            yield False
            return
        self._bytes += size_bytes
        try:
            yield True
        finally:
            self._bytes -= size_bytes
