"""Finding the last add confirmed: from the bookies of the last fragment, with coverage.

Used to open a ledger that is not closed, with or without fencing, and to end a long poll. A bookie
knows the LAC that the last frame it stored carries, or that the writer announced: a number that
lags, and that nobody has signed. So the word of one bookie is not enough (rule P5).
"""

from __future__ import annotations

from spark_ledger.errors import (
    BookieUnavailableError,
    LedgerError,
    RecoveryError,
    UnauthorizedError,
)
from spark_ledger.protocol.events import Command, LastConfirmedAnswer, ReadLastConfirmed
from spark_ledger.protocol.quorum import is_covered, is_supported, no_newer_confirmed
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerMetadata, Quorums


class Claims:
    """What bookies of one ensemble say of LAC, and how much of it is to be believed (rule P5).

    ``believed`` is the highest LAC that so many bookies support that one of them must be honest: it
    says that it knows this LAC or a higher one, and an honest bookie was told so by the writer.
    """

    def __init__(self, quorums: Quorums) -> None:
        self._quorums = quorums
        self._claims: dict[int, int] = {}
        self._failed: set[int] = set()

    def take(self, bookie_index: int, status: BookieStatus, last_add_confirmed: int) -> None:
        """Take in one answer."""
        if status is BookieStatus.OK and last_add_confirmed >= NO_ENTRY:
            self._claims[bookie_index] = last_add_confirmed
        elif status.is_denial:
            self._claims[bookie_index] = NO_ENTRY  # it has answered, and knows of nothing
        elif status is not BookieStatus.TOO_MANY_REQUESTS:  # busy is not bad
            self._failed.add(bookie_index)

    @property
    def believed(self) -> EntryId:
        """The highest LAC that is believed; -1 if none is."""
        failed = frozenset(self._failed)
        for claim in sorted(set(self._claims.values()), reverse=True):
            supporters = frozenset(i for i, last in self._claims.items() if last >= claim)
            if is_supported(supporters, failed, self._quorums):
                return EntryId(claim)
        return NO_ENTRY

    @property
    def told(self) -> list[int]:
        """Every LAC that somebody has named, highest first. None of them need be true."""
        return sorted({*self._claims.values()}, reverse=True)

    @property
    def is_disputed(self) -> bool:
        """Whether somebody says more than is believed."""
        return max(self._claims.values(), default=NO_ENTRY) > self.believed


class LastConfirmedRead:
    """One round of questions to all bookies of the last fragment.

    ``result`` is set once enough of them answered (rule P13): the highest LAC that is believed.
    Everything up to it is confirmed; entries behind it may be confirmed too. ``error`` is
    set when too many bookies cannot answer. At most one of the two is ever set.
    """

    def __init__(self, metadata: LedgerMetadata, *, fence: bool) -> None:
        self._metadata = metadata
        self._fence = fence
        self._known: set[int] = set()
        self._answered: set[int] = set()
        self._claims = Claims(metadata.quorums)
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
        return [EntryId(hint) for hint in self._claims.told if hint > self.floor]

    @property
    def error(self) -> LedgerError | None:
        """Why the round found nothing, once it is over and did not."""
        return self._error

    @property
    def is_covered(self) -> bool:
        """Whether enough bookies have answered to conclude (rule P13)."""
        return is_covered(frozenset(self._known), self._metadata.quorums)

    def give_up(self) -> None:
        """The bookies that have not answered take too long: they count as failed, and one that
        answered is believed in their place (rule P5). Otherwise an end that was told would stay
        unseen."""
        for bookie_index in range(self._metadata.quorums.ensemble_size):
            if bookie_index not in self._answered:
                self._claims.take(bookie_index, BookieStatus.TIMEOUT, NO_ENTRY)
        self.conclude()

    def conclude(self) -> None:
        """Take what is believed of what has been said."""
        assert self.is_covered, "Too few have answered to know anything (rule P13)."
        assert self._known <= self._answered, "An answer counts that never came."
        self._result = max(self._claims.believed, self.floor)

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
        self._claims.take(event.bookie_index, event.status, event.last_add_confirmed)
        if event.status is BookieStatus.OK or event.status.is_denial:
            # "I do not know the ledger" is an answer too: fencing works on unknown ledgers, so the
            # bookie will store nothing of the old writer from now on (rule P12).
            self._known.add(event.bookie_index)
        else:
            # One that refuses the password too: the client has compared it with the metadata, so
            # it is one bad bookie as long as the others suffice (rule P20).
            self._refused |= event.status is BookieStatus.UNAUTHORIZED
            self._last_problem = f"bookie {bookie_id}: {event.status.name.lower()} {event.message}"
        is_last = len(self._answered) == quorums.ensemble_size
        if self.is_covered:
            # A recovery finds by reading what is above, whoever knew of it. A reader would not see
            # it, so it hears the others as well, if they may support what one bookie says.
            if self._fence or is_last or not self._claims.is_disputed:
                self.conclude()
            return self._result is not None
        if is_last:
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
    """One round of held questions: do bookies know a LAC above ``known``?

    Over when what they say is believed, or when the rest cannot know more (rule P5): waiting for
    the slowest bookie would make a tail as slow as it.
    """

    def __init__(self, metadata: LedgerMetadata, known: EntryId) -> None:
        self._quorums = metadata.quorums
        self._claims = Claims(metadata.quorums)
        self._known = known
        self._empty = 0
        self._answered: set[int] = set()

    @property
    def newest(self) -> EntryId:
        """The highest LAC that is believed; ``known`` at first. It never goes back."""
        return max(self._known, self._claims.believed)

    def answer(self, bookie_index: int, status: BookieStatus, last_add_confirmed: EntryId) -> bool:
        """Take in one answer. True: the round is over, ``newest`` is what it found."""
        assert bookie_index not in self._answered, "Every bookie answers a round once."
        self._answered.add(bookie_index)
        self._claims.take(bookie_index, status, last_add_confirmed)
        knows_more = status is BookieStatus.OK and last_add_confirmed > self._known
        if status.is_denial or (status is BookieStatus.OK and not knows_more):
            self._empty += 1
        assert self.newest >= self._known, "A reader's last add confirmed never goes back."
        return (
            self.newest > self._known
            or no_newer_confirmed(self._empty, self._quorums)
            or len(self._answered) == self._quorums.ensemble_size
        )
