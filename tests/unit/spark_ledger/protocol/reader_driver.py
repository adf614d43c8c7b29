"""Drives a ``ReadMachine`` with short words for events."""

from __future__ import annotations

from spark_ledger.protocol.ensemble import LaneRange
from spark_ledger.protocol.events import (
    Command,
    EntriesRead,
    ReadEnded,
    Tick,
)
from spark_ledger.protocol.quorum import lanes
from spark_ledger.protocol.read import ReadMachine
from spark_ledger.types import BookieStatus, EntryId, LedgerMetadata, Versioned
from tests.unit.spark_ledger.protocol.ledgers import ids, ledger

OK, NO = BookieStatus.OK, BookieStatus.NO_SUCH_ENTRY
DOWN, DAMAGED = BookieStatus.UNAVAILABLE, BookieStatus.IO_ERROR
METADATA = ledger((3, 3, 2), (0, "b0 b1 b2"))
STRIPED = ledger((3, 2, 1), (0, "b0 b1 b2"))


def machine_for(
    metadata: LedgerMetadata, lane_index: int, first: int, last: int, order: list[int]
) -> ReadMachine:
    """Reads ``first..last`` of a lane of the only fragment; half a second counts as slow."""
    lane = lanes(metadata.quorums)[lane_index]
    wanted = LaneRange(ids("b0 b1 b2"), lane_index, lane, EntryId(first), EntryId(last))
    return ReadMachine(
        Versioned(metadata, 3), wanted, order=order, speculative_delay_s=0.5, now=0.0
    )


class Reader:
    """A machine that reads 0..9 with replicas 1, 2, 0 in this order."""

    def __init__(self, first: int = 0, last: int = 9) -> None:
        self.machine = machine_for(METADATA, 0, first, last, [1, 2, 0])
        self.started = self.machine.start(0.0)

    def bring(self, bookie_index: int, last: int, now: float = 0.0) -> list[Command]:
        return self.machine.handle(EntriesRead(bookie_index, 0, EntryId(last)), now)

    def end(
        self, bookie_index: int, status: BookieStatus, entry_id: int = 0, now: float = 0.0
    ) -> list[Command]:
        return self.machine.handle(ReadEnded(bookie_index, 0, status, EntryId(entry_id)), now)

    def tick(self, now: float) -> list[Command]:
        return self.machine.handle(Tick(), now)
