"""What a reader on the driver asks of its subject; a stream and a raw ledger each answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from pyspark.sql.datasource import InputPartition

from connector.read.offsets import OffsetJson

IDLE_WAIT_S: Final = 0.1
"""How long a poll waits for news when there is none. Spark asks about every 11 ms otherwise, and
asks the sources of a query one after the other, so longer waits would slow the others down."""


class Source(Protocol):
    """Positions and plans; offsets are Spark's JSON objects."""

    def initial_offset(self) -> OffsetJson:
        """Where a new query starts. Resolved once: later calls answer the same."""

    def pin_target(self) -> None:
        """Read nothing that arrives from now on (trigger availableNow)."""

    def latest_offset(self, start: Mapping[str, Any], *, unlimited: bool) -> OffsetJson:
        """Where the next micro-batch ends; ``start`` itself when there is nothing to do."""

    def newest_offset(self) -> OffsetJson | None:
        """Where the subject ends, whatever the limits; the lag shown in the query's progress."""

    def final_offset(self) -> OffsetJson:
        """Where a batch read ends."""

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The partitions between two offsets: the same for the same offsets."""

    def forget(self, end: Mapping[str, Any]) -> None:
        """Everything before ``end`` has been processed; caches of it may go."""
