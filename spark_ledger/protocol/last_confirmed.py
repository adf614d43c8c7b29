"""Finding the last add confirmed: from the bookies of the last fragment, with coverage.

Used to open a ledger that is not closed, with or without fencing, and to end a long poll.
"""

from __future__ import annotations

from spark_ledger.errors import (
    BookieUnavailableError,
    LedgerError,
    RecoveryError,
    UnauthorizedError,
)
from spark_ledger.protocol.events import Command, LastConfirmedAnswer, ReadLastConfirmed
from spark_ledger.protocol.quorum import is_covered, no_newer_confirmed
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerMetadata


class LastConfirmedRead:
    """One round of questions to all bookies of the last fragment.

    ``result`` is set once enough of them answered (``quorum.is_covered``): the highest LAC, which
    is at least every entry whose confirmation the application saw before the round began minus the
    last one per bookie's knowledge: a LAC is a hint that never lies, but may lag. ``error`` is set
    when too many bookies cannot answer.
    """

    def __init__(self, metadata: LedgerMetadata, *, fence: bool) -> None:
        self._metadata = metadata
        self._fence = fence
        self._known: set[int] = set()
        self._answered: set[int] = set()
        self._highest: int = NO_ENTRY
        self._last_problem = ""
        self.result: EntryId | None = None
        self.error: LedgerError | None = None

    def start(self) -> list[Command]:
        """Ask every bookie of the last fragment."""
        return [
            ReadLastConfirmed(bookie_index, bookie_id, self._fence)
            for bookie_index, bookie_id in enumerate(self._metadata.last_fragment.bookies)
        ]

    def answer(self, event: LastConfirmedAnswer) -> bool:
        """Take in one answer. True: the round is over, ``result`` or ``error`` is set."""
        if (
            self.result is not None
            or self.error is not None
            or event.bookie_index in self._answered
        ):
            return False
        self._answered.add(event.bookie_index)
        quorums, name = self._metadata.quorums, f"ledger {self._metadata.ledger_id}"
        bookie_id = self._metadata.last_fragment.bookies[event.bookie_index]
        if event.status is BookieStatus.UNAUTHORIZED:
            self.error = UnauthorizedError(f"{name}: bookie {bookie_id} refuses the password")
            return True
        if event.status is BookieStatus.OK:
            self._highest = max(self._highest, event.last_add_confirmed)
        if event.status is BookieStatus.OK or event.status.is_negative:
            self._known.add(event.bookie_index)
        else:
            self._last_problem = f"bookie {bookie_id}: {event.status.name.lower()} {event.message}"
        if is_covered(frozenset(self._known), quorums):
            self.result = EntryId(max(self._highest, self._metadata.last_fragment.first_entry - 1))
            return True
        if len(self._answered) == quorums.ensemble_size:
            kind = RecoveryError if self._fence else BookieUnavailableError
            self.error = kind(
                f"{name} ({quorums}): too few bookies answer to know its end; the last problem was "
                f"{self._last_problem.strip()}. Start them and open the ledger again"
            )
            return True
        return False


class LongPoll:
    """One round of held questions: does any bookie know a LAC above ``known``?"""

    def __init__(self, metadata: LedgerMetadata, known: EntryId) -> None:
        self._quorums = metadata.quorums
        self._known = known
        self._empty = 0
        self._answered = 0
        self.newest: EntryId = known

    def answer(self, status: BookieStatus, last_add_confirmed: EntryId) -> bool:
        """Take in one answer. True: the round is over, ``newest`` is what it found."""
        self._answered += 1
        if status is BookieStatus.OK:
            self.newest = max(self.newest, last_add_confirmed)
        if status is BookieStatus.OK or status.is_negative:
            self._empty += 1
        return (
            self.newest > self._known
            or no_newer_confirmed(self._empty, self._quorums)
            or self._answered == self._quorums.ensemble_size
        )
