"""Finding the last add confirmed: from the bookies of the last fragment, with coverage.

Used to open a ledger that is not closed, with or without fencing, and to end a long poll. A bookie
knows the LAC that the last frame it stored carries, or that the writer announced: a hint that lags,
and that a stranger or a broken bookie may have made up (rule P5).
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

    ``result`` is set once enough of them answered (rule P13): the highest LAC that any of them
    knows. Everything up to it is confirmed; entries behind it may be confirmed too. ``error`` is
    set when too many bookies cannot answer. At most one of the two is ever set.
    """

    def __init__(self, metadata: LedgerMetadata, *, fence: bool) -> None:
        self._metadata = metadata
        self._fence = fence
        self._known: set[int] = set()
        self._answered: set[int] = set()
        self._highest: int = NO_ENTRY
        self._told: set[int] = set()
        self._last_problem = ""
        self._refused = False
        """Whether a bookie refused the password."""
        self._result: EntryId | None = None
        self._error: LedgerError | None = None

    @property
    def result(self) -> EntryId | None:
        """The last add confirmed, once the round is over and found it."""
        return self._result

    @property
    def floor(self) -> EntryId:
        """Everything up to here is confirmed, whatever bookies say: it was when the last fragment
        was made, and bookies that joined with it know no older LAC (rule P15)."""
        return EntryId(self._metadata.last_fragment.first_entry - 1)

    @property
    def hints(self) -> list[EntryId]:
        """What bookies take for confirmed beyond the floor, highest first. Nothing is proved."""
        return [EntryId(hint) for hint in sorted(self._told, reverse=True) if hint > self.floor]

    @property
    def error(self) -> LedgerError | None:
        """Why the round found nothing, once it is over and did not."""
        return self._error

    def start(self) -> list[Command]:
        """Ask every bookie of the last fragment."""
        return [
            ReadLastConfirmed(bookie_index, bookie_id, self._fence)
            for bookie_index, bookie_id in enumerate(self._metadata.last_fragment.bookies)
        ]

    def answer(self, event: LastConfirmedAnswer) -> bool:
        """Take in one answer. True: the round is over, ``result`` or ``error`` is set."""
        if (
            self._result is not None
            or self._error is not None
            or event.bookie_index in self._answered
        ):
            return False
        # A stray answer would count as one more bookie that the writer cannot reach (rule P13).
        assert 0 <= event.bookie_index < self._metadata.quorums.ensemble_size, "Nobody was asked."
        self._answered.add(event.bookie_index)
        quorums, name = self._metadata.quorums, f"ledger {self._metadata.ledger_id}"
        bookie_id = self._metadata.last_fragment.bookies[event.bookie_index]
        if event.status is BookieStatus.OK:
            self._highest = max(self._highest, event.last_add_confirmed)
            self._told.add(event.last_add_confirmed)
        if event.status is BookieStatus.OK or event.status.is_denial:
            # "I do not know the ledger" is an answer too: fencing works on unknown ledgers, so the
            # bookie will store nothing of the old writer from now on (rule P12).
            self._known.add(event.bookie_index)
        else:
            # One that refuses the password too: the client has compared it with the metadata, so
            # it is one bad bookie as long as the others suffice (rule P20).
            self._refused |= event.status is BookieStatus.UNAUTHORIZED
            self._last_problem = f"bookie {bookie_id}: {event.status.name.lower()} {event.message}"
        if is_covered(frozenset(self._known), quorums):
            self._result = EntryId(max(self._highest, self.floor))
            assert self._known <= self._answered, "An answer counts that never came."
            return True
        if len(self._answered) == quorums.ensemble_size:
            kind = RecoveryError if self._fence else BookieUnavailableError
            if self._refused:
                self._error = UnauthorizedError(
                    f"{name} ({quorums}): bookies refuse the ledger's password, and the others do "
                    f"not suffice to know its end; the last problem was {self._last_problem}"
                )
                return True
            self._error = kind(
                f"{name} ({quorums}): too few bookies answer to know its end; the last problem was "
                f"{self._last_problem.strip()}. Start them and open the ledger again"
            )
            return True
        return False


class LongPoll:
    """One round of held questions: does any bookie know a LAC above ``known``?

    Over at the first "yes", or when the rest cannot know more (rule P5): waiting for the slowest
    bookie would make a tail as slow as it.
    """

    def __init__(self, metadata: LedgerMetadata, known: EntryId) -> None:
        self._quorums = metadata.quorums
        self._known = known
        self._empty = 0
        self._answered = 0
        self._newest: EntryId = known

    @property
    def newest(self) -> EntryId:
        """The highest LAC that the round has heard of; ``known`` at first. It never goes back."""
        return self._newest

    def answer(self, status: BookieStatus, last_add_confirmed: EntryId) -> bool:
        """Take in one answer. True: the round is over, ``newest`` is what it found."""
        assert self._answered < self._quorums.ensemble_size, "Every bookie answers a round once."
        self._answered += 1
        if status is BookieStatus.OK:
            self._newest = max(self._newest, last_add_confirmed)
        if status is BookieStatus.OK or status.is_denial:
            self._empty += 1
        assert self._newest >= self._known, "A reader's last add confirmed never goes back."
        return (
            self._newest > self._known
            or no_newer_confirmed(self._empty, self._quorums)
            or self._answered == self._quorums.ensemble_size
        )
