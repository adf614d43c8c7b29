"""Recovery: fence the old writer, find the ledger's end, replicate it, close the ledger.

The steps of BookKeeper's protocol, with the fixes of its TLA+ specification (DESIGN 5.5 to 5.8):

1. MARKING    compare-and-set OPEN -> IN_RECOVERY; several recoverers may be at work.
2. FENCING    fence the last fragment's bookies until the silent ones cannot confirm anything.
3. READING    from the highest LAC on, read with fencing on every replica. One good copy makes an
              entry part of the ledger; WQ - AQ + 1 definite "no" end it; anything else and the
              recovery fails, to be tried again: unknown is never "no".
4. writing back, while reading: every entry found goes to its whole write set. Bookies that fail
   are replaced in memory only: a second recoverer must ask the old ones.
5. CLOSING    one compare-and-set to CLOSED, with the end and the changed fragments.

Reads use the ensemble of the metadata as they were when recovery began.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from spark_ledger.errors import FencedError, LedgerError, RecoveryError, UnauthorizedError
from spark_ledger.limits import ADD_TIMEOUT_S
from spark_ledger.protocol.ensemble import closed, in_recovery, replace_bookies, with_ensemble
from spark_ledger.protocol.events import (
    AddAcknowledged,
    AddFailed,
    BookiesChosen,
    CancelRead,
    ChooseBookies,
    CloseAppender,
    Command,
    DeliverEntries,
    Done,
    EntriesRead,
    Event,
    Failed,
    LastConfirmedAnswer,
    LengthRead,
    LengthUnknown,
    MetadataConflict,
    MetadataFailed,
    MetadataWritten,
    ReadEnded,
    ReadEntries,
    ReadLength,
    Tick,
    WriteMetadata,
)
from spark_ledger.protocol.last_confirmed import LastConfirmedRead
from spark_ledger.protocol.quorum import Lane, is_not_written, lanes
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import (
    BookieStatus,
    EntryId,
    Fragment,
    LedgerMetadata,
    LedgerState,
)

_FAR = EntryId(2**62)
"""Recovery reads have no end: a bookie answers up to the first entry it does not hold."""


class Phase(Enum):
    """Where recovery is."""

    MARKING = auto()
    FENCING = auto()
    READING = auto()
    MEASURING = auto()
    CLOSING = auto()
    ENDED = auto()


class RecoveryMachine:
    """Recovers and closes one ledger. ``Done`` carries the closed metadata, ours or another's."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        now: float,
        add_timeout_s: float = ADD_TIMEOUT_S,
    ) -> None:
        self.metadata, self.version = metadata, version
        self.phase = Phase.MARKING
        self._add_timeout_s = add_timeout_s
        self._fencing: LastConfirmedRead | None = None
        self._lanes = lanes(metadata.quorums)
        self._tails: list[_Tail] = []
        self._end: int | None = None
        """The last entry of the ledger, once it is known."""
        self._start = -1
        self._length: int | None = None
        self._replication: Replication | None = None
        self._fragments: Sequence[Fragment] = metadata.fragments
        self._choosing = False
        self._asked: tuple[int, ...] = ()
        self.last_add_confirmed = EntryId(-1)
        """The last entry that is known to be part of the ledger and stored on AQ bookies."""

    def start(self) -> list[Command]:
        """Begin; the ledger may be in any state."""
        if self.metadata.is_closed:
            return self._ended(Done(self.metadata, self.version))
        if self.metadata.state is LedgerState.IN_RECOVERY:
            return self._fence()
        return [self._write(in_recovery(self.metadata))]

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in one event; the commands to perform, in order."""
        if self.phase is Phase.ENDED:
            return []
        match event:
            case LastConfirmedAnswer():
                return self._on_last_confirmed(event, now)
            case EntriesRead():
                return self._on_entries(event, now)
            case ReadEnded():
                return self._on_read_ended(event, now)
            case AddAcknowledged():
                return self._on_acknowledged(event, now)
            case AddFailed():
                return self._on_add_failed(event, now)
            case BookiesChosen():
                return self._on_chosen(event, now)
            case LengthRead():
                return self._on_length(event)
            case MetadataWritten():
                return self._on_written(event.metadata, event.version)
            case MetadataConflict():
                return self._on_conflict(event)
            case MetadataFailed() | LengthUnknown():
                return self._failed(event.error)
            case Tick():
                return self._on_tick(now)
            case _:
                raise AssertionError(f"not an event of a recovery: {event!r}")

    # -- marking and fencing -----------------------------------------------------------------------

    def _write(self, wanted: LedgerMetadata) -> WriteMetadata:
        return WriteMetadata(wanted, self.version)

    def _fence(self) -> list[Command]:
        self.phase = Phase.FENCING
        self._fragments = self.metadata.fragments
        self._fencing = LastConfirmedRead(self.metadata, fence=True)
        return self._fencing.start()

    def _on_last_confirmed(self, event: LastConfirmedAnswer, now: float) -> list[Command]:
        if self.phase is not Phase.FENCING or self._fencing is None:
            return []
        if not self._fencing.answer(event):
            return []
        if self._fencing.error is not None:
            return self._failed(self._fencing.error)
        assert self._fencing.result is not None, "a round that is over has a result or an error"
        return self._read_tails(self._fencing.result, now)

    # -- reading -----------------------------------------------------------------------------------

    def _read_tails(self, last_confirmed: EntryId, now: float) -> list[Command]:
        """Read, on every replica, what stands behind the highest LAC that a bookie knew."""
        fragment = self.metadata.last_fragment
        assert last_confirmed >= fragment.first_entry - 1, "the floor of defect 2"
        self.phase = Phase.READING
        self._start = last_confirmed
        self.last_add_confirmed = last_confirmed
        self._replication = Replication(
            self.metadata.quorums, fragment.bookies, last_confirmed, now
        )
        commands = self._replication.open_all()
        for index, lane in enumerate(self._lanes):
            tail = _Tail(lane, lane.first_at_or_after(last_confirmed + 1))
            self._tails.append(tail)
            for bookie_index in lane.indexes:
                commands.append(self._read(index, bookie_index))
        return commands

    def _read(self, lane_index: int, bookie_index: int) -> ReadEntries:
        tail = self._tails[lane_index]
        tail.asked(bookie_index)
        bookie_id = self.metadata.last_fragment.bookies[bookie_index]
        first = EntryId(tail.next_entry)
        return ReadEntries(
            bookie_index, lane_index, bookie_id, first, _FAR, tail.lane.stride, fence=True
        )

    def _on_entries(self, event: EntriesRead, now: float) -> list[Command]:
        if self.phase is not Phase.READING:
            return []
        tail = self._tails[event.lane]
        tail.brought(event.bookie_index)
        if event.last_entry < tail.next_entry or self._end is not None:
            return []
        first = EntryId(tail.next_entry)
        tail.found(event.last_entry)
        commands: list[Command] = [
            DeliverEntries(event.bookie_index, event.lane, first, event.last_entry)
        ]
        # Replicas that said "no" to an earlier entry are asked about the new next one.
        commands += [self._read(event.lane, index) for index in tail.idle_indexes()]

        return commands + self._write_back(now) + self._find_end(now)

    def _on_read_ended(self, event: ReadEnded, now: float) -> list[Command]:
        if self.phase is not Phase.READING:
            return []
        if event.status is BookieStatus.UNAUTHORIZED:
            return self._failed(
                UnauthorizedError(
                    f"ledger {self.metadata.ledger_id}: a bookie refuses the password"
                )
            )
        if self._tails[event.lane].ended(event) and self._end is None:
            return [self._read(event.lane, event.bookie_index)]
        return self._find_end(now)

    def _find_end(self, now: float) -> list[Command]:
        """The ledger ends before the first entry that was not written, in whichever lane.

        So the lane that has come least far decides, and only there a lack of answers matters.
        """
        if self._end is not None:
            return self._end_if_complete()
        tail = min(self._tails, key=lambda tail: tail.next_entry)
        if not tail.is_settled(self.metadata):
            return [] if tail.is_waiting else self._failed(self._too_few_answers(tail))
        self._end = tail.next_entry - 1
        commands: list[Command] = [
            CancelRead(bookie_index, index)
            for index, tail in enumerate(self._tails)
            for bookie_index in tail.reading
        ]
        return commands + self._write_back(now) + self._end_if_complete()

    def _too_few_answers(self, tail: _Tail) -> RecoveryError:
        return RecoveryError(
            f"ledger {self.metadata.ledger_id} ({self.metadata.quorums}): too few bookies tell "
            f"whether entry {tail.next_entry} was written ({tail.told()}). Start them and open "
            "the ledger again"
        )

    # -- writing back ------------------------------------------------------------------------------

    def _write_back(self, now: float) -> list[Command]:
        """Send what was found without a gap to its whole write set, marked as recovery."""
        assert self._replication is not None
        last = min(tail.next_entry for tail in self._tails) - 1
        if last <= self._replication.last_pushed:
            return []
        return self._replication.push(last, now) + self._replace_failed(now)

    def _on_acknowledged(self, event: AddAcknowledged, now: float) -> list[Command]:
        if self._replication is None or self.phase is not Phase.READING:
            return []
        if not self._replication.acknowledge(
            event.bookie_index, event.bookie_id, event.last_entry, now
        ):
            return []
        return self._confirm()

    def _confirm(self) -> list[Command]:
        if self._replication is None or self._choosing:
            return []
        self.last_add_confirmed = max(self.last_add_confirmed, self._replication.confirmed_end())
        return self._end_if_complete()

    def _on_add_failed(self, event: AddFailed, now: float) -> list[Command]:
        if self._replication is None or self.phase is not Phase.READING:
            return []  # all is stored: only the metadata store has a say now
        if not self._replication.fail(
            event.bookie_index, event.bookie_id, now, self._add_timeout_s
        ):
            return []
        commands: list[Command] = [CloseAppender(event.bookie_index)]
        if event.status is BookieStatus.UNAUTHORIZED:
            return commands + self._failed(
                UnauthorizedError(
                    f"ledger {self.metadata.ledger_id}: bookie {event.bookie_id} refuses the "
                    "password"
                )
            )
        return commands + self._replace_failed(now)

    def _replace_failed(self, now: float) -> list[Command]:
        """Replace bookies that failed, if there is something to write to them."""
        assert self._replication is not None
        nothing_to_write = self._replication.last_pushed == self.last_add_confirmed
        if self._choosing or nothing_to_write or self.phase is not Phase.READING:
            return []
        due = self._replication.failed_due(now)
        if not due and self._replication.can_confirm():
            return []
        if not due:
            return self._failed(
                RecoveryError(
                    f"ledger {self.metadata.ledger_id} ({self.metadata.quorums}): too few writable "
                    "bookies to store its end. Start bookies and open the ledger again"
                )
            )
        self._choosing, self._asked = True, due
        indexes = self._replication.members
        return [
            ChooseBookies(
                indexes=due,
                members=frozenset(index.bookie_id for index in indexes),
                failed={index: indexes[index].bookie_id for index in due},
            )
        ]

    def _on_chosen(self, event: BookiesChosen, now: float) -> list[Command]:
        if self._replication is None or not self._choosing:
            return []
        self._choosing = False
        for index in self._asked:
            if index not in event.replacements:
                self._replication.members[index].retry_at = now + self._add_timeout_s
        failed = self._replication.failed_indexes
        replacements = {s: b for s, b in event.replacements.items() if s in failed}
        commands: list[Command] = []
        if replacements:
            # In memory only, until the closing compare-and-set (BOOKKEEPER-355).
            bookies = replace_bookies(self._replication.bookies, replacements)
            first = EntryId(self.last_add_confirmed + 1)
            self._fragments = with_ensemble(self._fragments, first, bookies)
            commands = self._replication.install(replacements, self.last_add_confirmed, now)
        if not self._replication.failed_due(now):
            commands += self._confirm()  # also what bookies stored before they failed
        return commands + self._replace_failed(now)

    # -- closing -----------------------------------------------------------------------------------

    def _end_if_complete(self) -> list[Command]:
        """Close, once the end is known and all up to it is stored."""
        if self.phase is not Phase.READING or self._end is None or self._choosing:
            return []
        if self.last_add_confirmed < self._end:
            return []
        assert self.last_add_confirmed == self._end, "nothing behind the end is written back"
        self.phase = Phase.MEASURING
        if self._end < 0:
            return self._on_length(LengthRead(0))
        return [ReadLength(EntryId(self._end))]

    def _on_length(self, event: LengthRead) -> list[Command]:
        if self.phase is not Phase.MEASURING:
            return []
        self._length = event.length
        return self._close()

    def _close(self) -> list[Command]:
        assert self._end is not None and self._length is not None
        self.phase = Phase.CLOSING
        fragments = self._fragments
        return [
            self._write(
                closed(
                    self.metadata,
                    last_entry=EntryId(self._end),
                    length=self._length,
                    fragments=fragments,
                )
            )
        ]

    # -- metadata answers, time --------------------------------------------------------------------

    def _on_written(self, metadata: LedgerMetadata, version: int) -> list[Command]:
        self.metadata, self.version = metadata, version
        if self.phase is Phase.MARKING:
            return self._fence()
        if self.phase is Phase.CLOSING:
            return self._ended(Done(metadata, version))
        return []

    def _on_conflict(self, event: MetadataConflict) -> list[Command]:
        if self.phase not in (Phase.MARKING, Phase.CLOSING):
            return []  # nothing was asked: reads keep to the metadata that recovery began with
        stored = event.metadata
        old, self.metadata, self.version = self.metadata, stored, event.version
        if stored.is_closed:  # somebody else was faster; or it was us, and the reply was lost
            return self._ended(Done(stored, event.version))
        if self.phase is Phase.MARKING:
            return self.start()
        if stored.state is not LedgerState.IN_RECOVERY or stored.last_fragment != old.last_fragment:
            return self._failed(
                FencedError(f"ledger {stored.ledger_id}: its ensemble changed during recovery")
            )
        # Re-replication rewrote older fragments meanwhile: keep its work, add ours.
        ours = self._fragments[len(old.fragments) - 1 :]
        self._fragments = (*stored.fragments[:-1], *ours)
        return self._close()

    def _on_tick(self, now: float) -> list[Command]:
        if self._replication is None or self.phase is not Phase.READING:
            return []
        commands: list[Command] = []
        for index in self._replication.silent_indexes(now, self._add_timeout_s):
            bookie_id = self._replication.members[index].bookie_id
            self._replication.fail(index, bookie_id, now, self._add_timeout_s)
            commands.append(CloseAppender(index))
        return commands + self._replace_failed(now)

    def _failed(self, error: LedgerError) -> list[Command]:
        return self._ended(Failed(error))

    def _ended(self, outcome: Done | Failed) -> list[Command]:
        self.phase = Phase.ENDED
        closing: list[Command] = self._replication.close_all() if self._replication else []
        for index, tail in enumerate(self._tails):
            closing += [CancelRead(bookie_index, index) for bookie_index in tail.reading]

        return [*closing, outcome]


class _Tail:
    """What is known of one lane behind the LAC: which entry is next, who said what of it."""

    def __init__(self, lane: Lane, next_entry: int) -> None:
        self.lane = lane
        self.next_entry = next_entry
        self.reading: set[int] = set()
        self._came_to_nothing: set[int] = set()
        """Slots that are being read and have brought nothing yet."""
        self._answers: dict[int, ReadEnded] = {}
        """How reads ended, for replicas that ended at the entry that is next."""

    @property
    def is_waiting(self) -> bool:
        return bool(self.reading)

    def asked(self, bookie_index: int) -> None:
        self.reading.add(bookie_index)
        self._came_to_nothing.add(bookie_index)
        self._answers.pop(bookie_index, None)

    def brought(self, bookie_index: int) -> None:
        self._came_to_nothing.discard(bookie_index)

    def found(self, last: EntryId) -> None:
        """Entries up to ``last`` exist; what was said of them does not matter any more."""
        self.next_entry = last + self.lane.stride
        self._answers.clear()

    def idle_indexes(self) -> list[int]:
        return [index for index in self.lane.indexes if index not in self.reading]

    def ended(self, event: ReadEnded) -> bool:
        """Take in how a read ended. True: ask the replica again, it has more to say."""
        self.reading.discard(event.bookie_index)
        if event.status is BookieStatus.OK and event.bookie_index not in self._came_to_nothing:
            return True  # the byte cap
        if event.status is not BookieStatus.OK and event.entry_id < self.next_entry:
            return True  # what it says is of an entry that was found elsewhere meanwhile
        self._answers[event.bookie_index] = event
        return False

    def is_settled(self, metadata: LedgerMetadata) -> bool:
        """Whether the next entry is known not to have been written."""
        negatives = sum(
            answer.status.is_negative and answer.entry_id == self.next_entry
            for answer in self._answers.values()
        )
        return is_not_written(negatives, metadata.quorums)

    def told(self) -> str:
        return ", ".join(
            f"bookie_index {s}: {a.status.name.lower()}" for s, a in self._answers.items()
        )
