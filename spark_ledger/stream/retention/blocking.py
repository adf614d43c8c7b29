"""The end of a stream for code without a loop: the async handle on the portal's loop."""

from __future__ import annotations

from spark_ledger.client.portal import BlockingPortal
from spark_ledger.stream.model import Retention
from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.positions import Position
from spark_ledger.stream.retention.handle import Extent
from spark_ledger.stream.retention.handle import StreamRetention as AsyncStreamRetention
from spark_ledger.stream.retention.names import LedgerCounts
from spark_ledger.stream.retention.rules import Hold
from spark_ledger.types import Dlsn


class StreamRetention:
    """What is kept of a stream. See ``handle.StreamRetention`` for what the methods promise."""

    def __init__(self, portal: BlockingPortal, retention: AsyncStreamRetention) -> None:
        self._portal = portal
        self._retention = retention

    def packs(self) -> Packs:
        """The packs of the stream, as they are now."""
        return self._portal.call(self._retention.packs())

    def limits(self) -> Retention:
        """What is kept, as it is now."""
        return self._portal.call(self._retention.limits())

    def set_limits(self, retention: Retention) -> None:
        """Keep so much from now on; ``Retention()`` keeps all. The keeper drops what is more."""
        self._portal.call(self._retention.set_limits(retention))

    def truncate(
        self,
        before: Position | None = None,
        *,
        before_ms: int | None = None,
        ignore_holds: bool = False,
    ) -> Dlsn:
        """Drop all commits wholly before a position, or a time; the first position left."""
        return self._portal.call(
            self._retention.truncate(before, before_ms=before_ms, ignore_holds=ignore_holds)
        )

    def holds(self) -> list[Hold]:
        """The holds of the stream, by name."""
        return self._portal.call(self._retention.holds())

    def hold(
        self,
        name: str,
        position: Position = "earliest",
        *,
        for_s: float,
        size_bytes_max: int | None = None,
    ) -> Hold:
        """Keep the rows from a position on for so long; also moves and renews a hold."""
        return self._portal.call(
            self._retention.hold(name, position, for_s=for_s, size_bytes_max=size_bytes_max)
        )

    def release(self, name: str) -> bool:
        """Take a hold off; whether there was one."""
        return self._portal.call(self._retention.release(name))

    def extent(self) -> Extent:
        """What the stream holds, and what is about to go."""
        return self._portal.call(self._retention.extent())

    def ledgers(self) -> LedgerCounts:
        """How many ledgers the stream has. Reads all commits that are not given back."""
        return self._portal.call(self._retention.ledgers())
