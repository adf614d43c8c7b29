"""Finding the last add confirmed: from the bookies of the last fragment, with coverage.

Used to open a ledger that is not closed, with or without fencing, and to end a long poll. A bookie
knows the LAC that the last frame it stored carries, or that the writer announced: a number that
lags, and that nobody has signed. So the word of one bookie is not enough (rule P5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_ledger.errors import (
    BookieUnavailableError,
    LedgerError,
    RecoveryError,
    UnauthorizedError,
)
from spark_ledger.protocol.events import Command, LastConfirmedAnswer, ReadLastConfirmed
from spark_ledger.protocol.quorum import (
    agreement_suffices,
    is_covered,
    is_supported,
    no_newer_confirmed,
)
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerMetadata, Quorums


class Proof(NamedTuple):
    """An entry to be read: the last add confirmed that it carries is proved (rule P5)."""

    bookie_index: int
    bookie_id: BookieId
    entry_id: EntryId


class Claims:
    """What bookies of one ensemble say of LAC, and how much of it is to be believed (rule P5).

    ``believed`` is the highest LAC that so many bookies support that one of them must be honest: it
    says that it knows this LAC or a higher one, and an honest bookie was told so by the writer. Or
    it is what a verified entry carries, if that is more.
    """

    def __init__(self, quorums: Quorums) -> None:
        self._quorums = quorums
        self._claims: dict[int, int] = {}
        self._newest: dict[int, EntryId] = {}
        """The highest entry that each says it holds."""
        self._mute: set[int] = set()
        """Who gave no answer that says anything: failed or busy, or cannot prove what it says."""
        self._proved: EntryId = NO_ENTRY

    def take(
        self,
        bookie_index: int,
        status: BookieStatus,
        last_add_confirmed: int,
        last_entry: EntryId = NO_ENTRY,
    ) -> None:
        """Take in one answer."""
        if status is BookieStatus.OK and last_add_confirmed >= NO_ENTRY:
            self._claims[bookie_index] = last_add_confirmed
            self._newest[bookie_index] = last_entry
        elif status.is_denial:
            self._claims[bookie_index] = NO_ENTRY  # it has answered, and knows of nothing
        else:
            self._mute.add(bookie_index)

    @property
    def believed(self) -> EntryId:
        """The highest LAC that is believed; -1 if none is."""
        for claim in sorted(set(self._claims.values()), reverse=True):
            supporters = frozenset(i for i, last in self._claims.items() if last >= claim)
            if is_supported(supporters, self._quorums):
                return EntryId(max(claim, self._proved))
        return self._proved

    def proofs(self, bookies: Sequence[BookieId]) -> list[Proof]:
        """The entries that may prove more than is believed, where agreement may be out of reach:
        with few copies, or because some gave no answer.

        An entry's LAC is what its writer had confirmed when it made the frame, and AQ bookies have
        each entry that was acknowledged. One of them has answered, so its newest entry proves at
        least what was confirmed when the last acknowledged entry was added.
        """
        mute = frozenset(self._mute)
        if agreement_suffices(mute, self._quorums) or not self.is_disputed:
            return []
        above = [
            index
            for index, claim in self._claims.items()
            if claim > self.believed and index not in mute
        ]
        above.sort(key=lambda index: -self._claims[index])
        asked = [(index, self._newest[index]) for index in above]
        return [Proof(index, bookies[index], last) for index, last in asked if last > NO_ENTRY]

    def prove(self, last_add_confirmed: EntryId) -> None:
        """A verified entry carries this last add confirmed."""
        self._proved = max(self._proved, last_add_confirmed)

    def fail(self, bookie_index: int) -> bool:
        """A bookie has said something, and its proof cannot be had. True: it counts as one that
        gave no answer, because nobody else has proved what it says.

        It supports what it says all the same: it has said it, and it may not be one of the liars.
        """
        if self._claims[bookie_index] <= self.believed:
            return False
        self._mute.add(bookie_index)
        return True

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
        """The bookies that have not answered take too long. An end that only they could support has
        to be proved (rule P5); otherwise it would stay unseen."""
        for bookie_index in range(self._metadata.quorums.ensemble_size):
            if bookie_index not in self._answered:
                self._claims.take(bookie_index, BookieStatus.TIMEOUT, NO_ENTRY)
        self.conclude()

    @property
    def proofs(self) -> list[Proof]:
        """What to read once the round is over: the result may grow by it."""
        if self._error is not None:
            return []
        return self._claims.proofs(self._metadata.last_fragment.bookies)

    def prove(self, last_add_confirmed: EntryId) -> None:
        """A verified entry carries this last add confirmed."""
        self._claims.prove(last_add_confirmed)
        self.conclude()

    def fail(self, bookie_index: int) -> None:
        """A bookie's proof cannot be had, because it cannot be reached, its copy is damaged, or it
        lies: it counts as one that has not answered (rule P13). Else an end that was confirmed long
        ago could stay unseen."""
        if self._error is not None or not self._claims.fail(bookie_index):
            return
        self._known.discard(bookie_index)
        self._result = None
        if self.is_covered:
            self.conclude()
        else:
            bookie_id = self._metadata.last_fragment.bookies[bookie_index]
            self._last_problem = f"bookie {bookie_id}: its newest entry cannot be read"
            self._error = self._too_few(BookieUnavailableError)

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
        bookie_id = self._metadata.last_fragment.bookies[event.bookie_index]
        self._claims.take(
            event.bookie_index, event.status, event.last_add_confirmed, event.last_entry
        )
        if event.status is BookieStatus.OK or event.status.is_denial:
            # "I do not know the ledger" is an answer too: fencing works on unknown ledgers, so the
            # bookie will store nothing of the old writer from now on (rule P12).
            self._known.add(event.bookie_index)
        else:
            # One that refuses the password too: the client has compared it with the metadata, so
            # it is one bad bookie as long as the others suffice (rule P20).
            self._refused |= event.status is BookieStatus.UNAUTHORIZED
            self._last_problem = f"bookie {bookie_id}: {event.status.name.lower()} {event.message}"
        is_last = len(self._answered) == self._metadata.quorums.ensemble_size
        if self.is_covered:
            # A recovery finds by reading what is above, whoever knew of it. A reader would not see
            # it, so it hears the others as well, if they may support what one bookie says.
            if self._fence or is_last or not self._claims.is_disputed:
                self.conclude()
            return self._result is not None
        if is_last:
            self._error = self._too_few(RecoveryError if self._fence else BookieUnavailableError)
            return True
        return False

    def _too_few(self, kind: type[LedgerError]) -> LedgerError:
        name = f"ledger {self._metadata.ledger_id} ({self._metadata.quorums})"
        if self._refused:
            return UnauthorizedError(
                f"{name}: bookies refuse the ledger's password, and the others do not suffice to "
                f"know its end; the last problem was {self._last_problem}"
            )
        return kind(
            f"{name}: too few bookies answer to know its end; the last problem was "
            f"{self._last_problem.strip()}. Start them and open the ledger again"
        )


class LongPoll:
    """One round of held questions: do bookies know a LAC above ``known``?

    Over when what they say is believed, or when the rest cannot know more (rule P5): waiting for
    the slowest bookie would make a tail as slow as it.
    """

    def __init__(self, metadata: LedgerMetadata, known: EntryId) -> None:
        self._bookies = metadata.last_fragment.bookies
        self._quorums = metadata.quorums
        self._claims = Claims(metadata.quorums)
        self._known = known
        self._empty = 0
        self._answered: set[int] = set()

    @property
    def newest(self) -> EntryId:
        """The highest LAC that is believed; ``known`` at first. It never goes back."""
        return max(self._known, self._claims.believed)

    @property
    def proofs(self) -> list[Proof]:
        """What to read if the round has found nothing newer: ``newest`` may grow by it."""
        return self._claims.proofs(self._bookies) if self.newest == self._known else []

    def prove(self, last_add_confirmed: EntryId) -> None:
        """A verified entry carries this last add confirmed."""
        self._claims.prove(last_add_confirmed)

    def fail(self, bookie_index: int) -> None:
        """A bookie's proof cannot be had."""
        self._claims.fail(bookie_index)

    def answer(
        self,
        bookie_index: int,
        status: BookieStatus,
        last_add_confirmed: EntryId,
        last_entry: EntryId = NO_ENTRY,
    ) -> bool:
        """Take in one answer. True: the round is over, ``newest`` is what it found."""
        assert bookie_index not in self._answered, "Every bookie answers a round once."
        self._answered.add(bookie_index)
        self._claims.take(bookie_index, status, last_add_confirmed, last_entry)
        knows_more = status is BookieStatus.OK and last_add_confirmed > self._known
        if status.is_denial or (status is BookieStatus.OK and not knows_more):
            self._empty += 1
        assert self.newest >= self._known, "A reader's last add confirmed never goes back."
        return (
            self.newest > self._known
            or no_newer_confirmed(self._empty, self._quorums)
            or len(self._answered) == self._quorums.ensemble_size
        )
