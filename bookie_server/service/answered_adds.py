"""AnsweredAdds: tells a stream's share, the gate and the metrics of adds that were answered.

Of small adds of many ledgers each was told by itself, at a tenth of what the service does for it.
One synced journal batch answers many of one message, so they are added up and told together.
"""

from __future__ import annotations

import time

from bookie_server.service.append_gate import AppendGate, AppendShares
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.limits.bookie import ADD_COST_BYTES
from spark_ledger.types import BookieStatus


class AnsweredAdds:
    """The adds of one stream that were answered and not told of yet. Service thread only.

    All of them have one status and came with one message.
    """

    __slots__ = (
        "_began",
        "_bytes",
        "_entries",
        "_gate",
        "_metrics",
        "_peer",
        "_runs",
        "_shares",
        "_status",
    )

    def __init__(
        self, peer: str, gate: AppendGate, shares: AppendShares, metrics: ServiceMetrics
    ) -> None:
        """``peer`` names the connection whose share it is."""
        self._peer = peer
        self._gate = gate
        self._shares = shares
        self._metrics = metrics
        self._status = BookieStatus.OK
        self._began = 0.0
        self._runs = 0
        self._entries = 0
        self._bytes = 0

    def add(self, status: BookieStatus, entries: int, size_bytes: int, began: float) -> None:
        """One more was answered; ``began`` is when its message was received."""
        if began != self._began or status is not self._status:
            if self._runs:
                self.tell()
            self._status, self._began = status, began
        self._runs += 1
        self._entries += entries
        self._bytes += size_bytes

    def tell(self) -> None:
        """Tell of all of them, as if they had been answered now."""
        runs, size_bytes = self._runs, self._bytes
        if not runs:
            return
        seconds = time.perf_counter() - self._began
        self._metrics.adds_completed(self._status, runs, self._entries, size_bytes, seconds)
        self._runs = self._entries = self._bytes = 0
        self._shares.ended(self._peer, runs * ADD_COST_BYTES + size_bytes)
        self._gate.completed()
