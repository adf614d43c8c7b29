"""Drives a ``RecoveryMachine`` with short words for events."""

from __future__ import annotations

from spark_ledger.errors import (
    LedgerError,
)
from spark_ledger.protocol.events import (
    AddAcknowledged,
    AddFailed,
    BookiesChosen,
    Command,
    EntriesRead,
    Failed,
    LastConfirmedAnswer,
    LengthRead,
    MetadataConflict,
    MetadataWritten,
    ReadEnded,
    ReadLength,
    Tick,
)
from spark_ledger.protocol.recovery import RecoveryMachine
from spark_ledger.protocol.recovery_phases import Phase
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerMetadata, LedgerState
from tests.unit.spark_ledger.protocol.ledgers import ledger, one

OK, NO = BookieStatus.OK, BookieStatus.NO_SUCH_ENTRY
DOWN, DAMAGED, REFUSED = (
    BookieStatus.UNAVAILABLE,
    BookieStatus.IO_ERROR,
    BookieStatus.UNAUTHORIZED,
)
OPEN = ledger((3, 3, 2), (0, "b0 b1 b2"))
MARKED = OPEN.with_changes(state=LedgerState.IN_RECOVERY)


class Recoverer:
    """A machine with short words for events."""

    def __init__(self, metadata: LedgerMetadata = MARKED) -> None:
        self.machine = RecoveryMachine(metadata, 4, now=0.0, add_timeout_s=5.0)
        self.now = 0.0
        self.started = self.machine.start()

    def lac(self, index: int, last: int, status: BookieStatus = OK) -> list[Command]:
        event = LastConfirmedAnswer(index, status, EntryId(last))
        return self.machine.handle(event, self.now)

    def fenced(self, last: int = -1) -> list[Command]:
        """Two of three answers: coverage. What they say is proved at once."""
        self.lac(0, last)
        commands = self.lac(1, last)
        if self.machine.phase is not Phase.PROVING:
            return commands
        assert one(commands, ReadLength).wanted.first == last
        return self.length(10 * (last + 1), last)

    def bring(self, index: int, last: int, lane: int = 0) -> list[Command]:
        return self.machine.handle(EntriesRead(index, lane, EntryId(last)), self.now)

    def end(self, index: int, status: BookieStatus, entry_id: int, lane: int = 0) -> list[Command]:
        return self.machine.handle(ReadEnded(index, lane, status, EntryId(entry_id)), self.now)

    def ack(self, index: int, bookie: str, last: int) -> list[Command]:
        event = AddAcknowledged(index, BookieId(bookie), EntryId(last))
        return self.machine.handle(event, self.now)

    def fail(self, index: int, bookie: str, status: BookieStatus = DAMAGED) -> list[Command]:
        return self.machine.handle(AddFailed(index, BookieId(bookie), status), self.now)

    def choose(self, **replacements: str) -> list[Command]:
        chosen = {int(index[1:]): BookieId(name) for index, name in replacements.items()}
        return self.machine.handle(BookiesChosen(chosen), self.now)

    def length(self, length: int, last_confirmed: int = -1) -> list[Command]:
        return self.machine.handle(LengthRead(length, EntryId(last_confirmed)), self.now)

    def written(self, metadata: LedgerMetadata, version: int = 5) -> list[Command]:
        return self.machine.handle(MetadataWritten(metadata, version), self.now)

    def conflict(self, metadata: LedgerMetadata, version: int = 6) -> list[Command]:
        return self.machine.handle(MetadataConflict(metadata, version), self.now)

    def tick(self, now: float) -> list[Command]:
        self.now = now
        return self.machine.handle(Tick(), now)


def error_of(commands: list[Command]) -> LedgerError:
    return one(commands, Failed).error


def found_one() -> Recoverer:
    """Entry 0 was found on b2 and is being written back; two have told that it is the last."""
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.bring(2, 0)
    recoverer.end(0, NO, 1)
    recoverer.end(1, NO, 1)
    return recoverer
