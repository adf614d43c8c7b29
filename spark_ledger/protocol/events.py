"""What goes into the machines and what comes out. Frozen values, nothing else.

Events are facts that the shell learned; commands are work that it has to do. Both are the same
for every machine, so one shell loop drives them all. A command that asks for something names
what the matching event has to carry back: a machine must be able to tell a late answer to an old
question from the answer it waits for, because nothing takes a message back that is on its way.

Shells decide nothing. Where a command needs a choice (which bookies, which lane, which entry), the
machine has made it and the command carries it: what a shell chooses no model checker sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_ledger.errors import LedgerError
from spark_ledger.protocol.ensemble import LaneRange
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerMetadata, Quorums

# -- events ----------------------------------------------------------------------------------------


class Append(NamedTuple):
    """The application adds entries of these payload sizes; they get the next ids."""

    sizes: Sequence[int]


class AddAcknowledged(NamedTuple):
    """The bookie at an index holds all of its entries up to ``last_entry``, durably (rule P3).

    Cumulative: a transport may report every second entry only, and a lost report costs nothing.
    ``bookie_id`` tells a late answer of a replaced bookie from one of its successor.
    """

    bookie_index: int
    bookie_id: BookieId
    last_entry: EntryId


class AddFailed(NamedTuple):
    """The bookie at an index refused or did not answer; its appender reports nothing more.

    Entries that it acknowledged before still count until it is replaced (rule P8).
    """

    bookie_index: int
    bookie_id: BookieId
    status: BookieStatus
    message: str = ""


class BookiesChosen(NamedTuple):
    """Replacements for indexes, as far as there are any. Answers ``ChooseBookies``.

    ``answering``: those of ``silent`` whose bookie is there, as far as its connection tells.
    """

    replacements: Mapping[int, BookieId]
    answering: frozenset[int] = frozenset()


class MetadataWritten(NamedTuple):
    """The compare-and-set succeeded. Answers ``WriteMetadata``."""

    metadata: LedgerMetadata
    version: int


class MetadataConflict(NamedTuple):
    """The metadata are not what the machine thought; these are stored. Answers ``WriteMetadata``.

    Also the answer when the outcome was unknown and the shell read again: the machine sees for
    itself whether the stored value is the one it wanted.
    """

    metadata: LedgerMetadata
    version: int


class MetadataFailed(NamedTuple):
    """The metadata could not be written or read, for good. Answers ``WriteMetadata``."""

    error: LedgerError


class MetadataRead(NamedTuple):
    """What is stored of the ledger, no older than the question; None if it is gone. Answers
    ``ReadMetadata``."""

    metadata: LedgerMetadata | None


class MetadataUnread(NamedTuple):
    """What is stored of the ledger cannot be told. Answers ``ReadMetadata``."""

    error: LedgerError


class Close(NamedTuple):
    """The application closes the ledger; adds that are still pending are given up."""


class Abandon(NamedTuple):
    """The writer ends here and leaves the ledger as it is: its connection ends, or it crashed.

    ``in_flight`` is what adds without an answer fail with: their outcome is unknown (rule P18).
    ``error`` is what later adds are told.
    """

    in_flight: LedgerError
    error: LedgerError


class Tick(NamedTuple):
    """Time passed. The shell sends one now and then while a machine is at work.

    Machines keep no timers: what is due follows from the time that comes with the event, so a late
    tick delays things and changes nothing else.
    """


class ConsumerReady(NamedTuple):
    """Entries are taken again after they were not for a while. Silence counts from here: nobody was
    asked for anything meanwhile."""


class LastConfirmedAnswer(NamedTuple):
    """A bookie's last add confirmed. Answers ``ReadLastConfirmed``.

    A hint: it may lag, and a broken bookie may invent it (rule P5). If the question fenced, OK and
    denials mean that the fence is durable (rule P12).
    """

    bookie_index: int
    status: BookieStatus
    last_add_confirmed: EntryId
    message: str = ""
    last_entry: EntryId = NO_ENTRY
    """The highest entry that it says it holds. The last add confirmed that this entry carries is
    proved (rule P5)."""


class LastConfirmedTold(NamedTuple):
    """What a bookie did with the last add confirmed that it was told. Answers
    ``AnnounceLastConfirmed``, once for each bookie that was asked."""

    bookie_id: BookieId
    last_add_confirmed: EntryId
    status: BookieStatus


class EntriesRead(NamedTuple):
    """A replica returned the lane's entries from the one it was asked for up to ``last_entry``."""

    bookie_index: int
    lane: int
    last_entry: EntryId


class ReadEnded(NamedTuple):
    """A replica ended a read. OK: it ended early (byte cap) or at the end of the range.

    Otherwise ``entry_id`` is the entry it could not return. Damaged bytes are IO_ERROR.
    """

    bookie_index: int
    lane: int
    status: BookieStatus
    entry_id: EntryId
    message: str = ""


class LengthRead(NamedTuple):
    """The cumulative length at an entry, and the last add confirmed that it carries; both are part
    of what its digest covers. Answers ``ReadLength`` and ``TellLength``.
    """

    length: int
    last_add_confirmed: EntryId


class LengthUnknown(NamedTuple):
    """The entry that says the length could not be read. Answers ``ReadLength``."""

    error: LedgerError


Event = (
    Append
    | AddAcknowledged
    | AddFailed
    | BookiesChosen
    | MetadataWritten
    | MetadataConflict
    | MetadataFailed
    | MetadataRead
    | MetadataUnread
    | Close
    | Abandon
    | Tick
    | ConsumerReady
    | LastConfirmedAnswer
    | LastConfirmedTold
    | EntriesRead
    | ReadEnded
    | LengthRead
    | LengthUnknown
)


class Start(NamedTuple):
    """The call of ``start()``, in the tables that say what leads from phase to phase. Not an event:
    ``handle`` never gets it."""


# -- commands --------------------------------------------------------------------------------------


class OpenAppender(NamedTuple):
    """Open an appender to the bookie at an index, instead of the earlier one there."""

    bookie_index: int
    bookie_id: BookieId


class CloseAppender(NamedTuple):
    """The appender at the index is of no more use."""

    bookie_index: int


class SendEntries(NamedTuple):
    """Send the index its entries from ``first`` to ``last``, both included, by its appender."""

    bookie_index: int
    first: EntryId
    last: EntryId


class ConfirmEntries(NamedTuple):
    """Every entry up to ``last`` is confirmed: tell the application, in entry order (rule P4)."""

    last: EntryId


class FailEntries(NamedTuple):
    """Every entry above the last add confirmed fails with this error, and so do later ones.

    None of them is known not to be stored: recovery may find any of them (rule P18).
    """

    error: LedgerError


class ChooseBookies(NamedTuple):
    """Find bookies for indexes: not ``excluded``, and one of ``failed`` only if it works again.

    ``excluded``: the members, and others that failed here before and stay away (rule P10). A failed
    member may return to its own index, never to another: ``failed`` says which.
    Those of ``silent`` have not failed (rule P11): who is not replaced, and alive, is waited for.
    ``liars`` spoke of a fence that is not there (rule P18): new ledgers should do without them.
    ``ensemble``, in order, and ``quorums`` say whose copies are to be in different racks (P21).
    """

    indexes: tuple[int, ...]
    excluded: frozenset[BookieId]
    failed: Mapping[int, BookieId]
    silent: Mapping[int, BookieId]
    ensemble: tuple[BookieId, ...]
    quorums: Quorums
    liars: frozenset[BookieId] = frozenset()


class WriteMetadata(NamedTuple):
    """Compare-and-set the ledger's metadata: store them if ``version`` is stored now (rule P6)."""

    metadata: LedgerMetadata
    version: int


class ReadMetadata(NamedTuple):
    """Read the ledger's metadata as they are now, and not as a server that lags has them. One such
    question is open at a time."""


class AnnounceLastConfirmed(NamedTuple):
    """Tell the bookies the last add confirmed (explicit LAC). Who does not answer is told again."""

    last_add_confirmed: EntryId
    bookies: tuple[BookieId, ...]


class ReadLastConfirmed(NamedTuple):
    """Ask a bookie for its last add confirmed; ``fence`` also fences it first (rule P12)."""

    bookie_index: int
    bookie_id: BookieId
    fence: bool


class ReadEntries(NamedTuple):
    """Ask a replica for entries of a lane: ``first, first + stride, ...`` up to ``last``."""

    bookie_index: int
    lane: int
    bookie_id: BookieId
    first: EntryId
    last: EntryId
    stride: int
    fence: bool


class CancelRead(NamedTuple):
    """A read is of no more use."""

    bookie_index: int
    lane: int


class DeliverEntries(NamedTuple):
    """Take the lane's entries from ``first`` to ``last`` out of what this replica returned."""

    bookie_index: int
    lane: int
    first: EntryId
    last: EntryId


class ReadLength(NamedTuple):
    """Read the one entry of this range from any replica; report its cumulative length, and the last
    add confirmed that it carries."""

    wanted: LaneRange


class TellLength(NamedTuple):
    """Report the cumulative length of an entry that ``DeliverEntries`` took."""

    entry_id: EntryId


class Done(NamedTuple):
    """The machine reached its goal; ``metadata`` and ``version`` are what is stored now."""

    metadata: LedgerMetadata
    version: int


class Failed(NamedTuple):
    """The machine gave up."""

    error: LedgerError


Command = (
    OpenAppender
    | CloseAppender
    | SendEntries
    | ConfirmEntries
    | FailEntries
    | ChooseBookies
    | WriteMetadata
    | ReadMetadata
    | AnnounceLastConfirmed
    | ReadLastConfirmed
    | ReadEntries
    | CancelRead
    | DeliverEntries
    | ReadLength
    | TellLength
    | Done
    | Failed
)
