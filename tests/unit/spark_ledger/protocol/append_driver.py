"""Drives an ``AppendMachine`` with short words for events."""

from __future__ import annotations

from spark_ledger.errors import LedgerError, MetadataUnavailableError
from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.append_limits import AppendLimits
from spark_ledger.protocol.events import (
    AddAcknowledged,
    AddFailed,
    Append,
    BookiesChosen,
    ChooseBookies,
    Close,
    Command,
    LastConfirmedTold,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataUnread,
    MetadataWritten,
    Tick,
    WriteMetadata,
)
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerMetadata
from tests.unit.spark_ledger.protocol.ledgers import ledger, one

LIMITS = AppendLimits(
    add_timeout_s=5.0,
    slow_bookie_grace_s=1.0,
    bytes_in_flight_max=100,
    entry_bytes=0,
    replacement_retry_s=1.0,
    explicit_lac_delay_s=0.02,
)


class Writer:
    """A machine with short words for events. Index s has bookie bs unless told otherwise."""

    def __init__(self, quorums: tuple[int, int, int] = (3, 3, 2)) -> None:
        names = " ".join(f"b{i}" for i in range(quorums[0]))
        self.first = ledger(quorums, (0, names))
        self.machine = AppendMachine(self.first, 4, now=0.0, limits=LIMITS)
        self.now = 0.0

    def add(self, count: int = 1, size: int = 10) -> list[Command]:
        return self.machine.handle(Append([size] * count), self.now)

    def ack(self, index: int, last: int) -> list[Command]:
        bookie = self.machine.bookies[index]
        return self.machine.handle(AddAcknowledged(index, bookie, EntryId(last)), self.now)

    def ack_all(self) -> None:
        for index in range(len(self.machine.bookies)):
            self.ack(index, self.machine.last_add_pushed)

    def fail(self, index: int, status: BookieStatus = BookieStatus.UNAVAILABLE) -> list[Command]:
        return self.machine.handle(AddFailed(index, self.machine.bookies[index], status), self.now)

    def choose(self, **replacements: str) -> list[Command]:
        """``choose(i1="b3")``."""
        chosen = {int(index[1:]): BookieId(name) for index, name in replacements.items()}
        return self.machine.handle(BookiesChosen(chosen), self.now)

    def written(self, metadata: LedgerMetadata, version: int = 5) -> list[Command]:
        return self.machine.handle(MetadataWritten(metadata, version), self.now)

    def conflict(self, metadata: LedgerMetadata, version: int = 6) -> list[Command]:
        return self.machine.handle(MetadataConflict(metadata, version), self.now)

    def metadata_failed(self, error: LedgerError | None = None) -> list[Command]:
        error = error or MetadataUnavailableError("gone")
        return self.machine.handle(MetadataFailed(error), self.now)

    def looked(self, metadata: LedgerMetadata | None) -> list[Command]:
        return self.machine.handle(MetadataRead(metadata), self.now)

    def cannot_look(self, error: LedgerError) -> list[Command]:
        return self.machine.handle(MetadataUnread(error), self.now)

    def close(self) -> list[Command]:
        return self.machine.handle(Close(), self.now)

    def told(self, *bookies: str, last: int, status: BookieStatus = BookieStatus.OK) -> None:
        """Bookies answer an announcement."""
        for bookie in bookies:
            event = LastConfirmedTold(BookieId(bookie), EntryId(last), status)
            assert self.machine.handle(event, self.now) == []

    def tick(self, now: float) -> list[Command]:
        self.now = now
        return self.machine.handle(Tick(), now)


def change_of_index_1(writer: Writer) -> LedgerMetadata:
    """Up to the metadata write of a change from b1 to b3."""
    asked = one(writer.fail(1), ChooseBookies)
    assert asked.indexes == (1,) and asked.failed == {1: "b1"}
    return one(writer.choose(i1="b3"), WriteMetadata).metadata
