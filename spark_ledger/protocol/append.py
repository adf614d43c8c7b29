"""The writer of a ledger: ids, confirmation in order, ensemble changes, close.

The rules are DESIGN section 5, 2 to 4 and 8. In short:

* An entry is confirmed when all before it are, AQ bookies of its write set hold it, no ensemble
  change is in progress, and its ensemble is the one in the metadata.
* A bookie that fails is replaced from LAC + 1 on: choose, compare-and-set, clear the replaced
  indexes, resend, and only then confirm again, also when nothing could be replaced.
* Without a replacement the writer goes on while AQ is in reach and looks again later.
* Failures with nothing pending wait for the next add.
* A writer that finds its ledger taken over withdraws; it never overrides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from spark_ledger.errors import (
    AddOutcomeUnknownError,
    ConflictError,
    EnsembleLostError,
    FencedError,
    LedgerError,
    LedgerTakenOverError,
    UnauthorizedError,
)
from spark_ledger.limits import (
    ADD_TIMEOUT_S,
    EXPLICIT_LAC_DELAY_S,
    FRAGMENTS_MAX,
    SLOW_BOOKIE_GRACE_S,
    WRITER_BYTES_IN_FLIGHT_MAX,
)
from spark_ledger.protocol.ensemble import closed, replace_bookies, with_ensemble
from spark_ledger.protocol.events import (
    AddAcknowledged,
    AddFailed,
    AnnounceLastConfirmed,
    Append,
    BookiesChosen,
    ChooseBookies,
    Close,
    CloseAppender,
    Command,
    ConfirmEntries,
    Done,
    Event,
    Failed,
    FailEntries,
    MetadataConflict,
    MetadataFailed,
    MetadataWritten,
    Tick,
    WriteMetadata,
)
from spark_ledger.protocol.lengths import Lengths
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import (
    NO_ENTRY,
    BookieId,
    BookieStatus,
    EntryId,
    LedgerMetadata,
    LedgerState,
)


@dataclass(frozen=True, slots=True)
class AppendLimits:
    """When a silent bookie counts as failed, and how much may be in flight."""

    add_timeout_s: float = ADD_TIMEOUT_S
    slow_bookie_grace_s: float = SLOW_BOOKIE_GRACE_S
    bytes_in_flight_max: int = WRITER_BYTES_IN_FLIGHT_MAX
    replacement_retry_s: float = 1.0
    explicit_lac_delay_s: float = EXPLICIT_LAC_DELAY_S


class Phase(Enum):
    """What the writer is doing. CHOOSING and CHANGING are one ensemble change: LAC stands still."""

    WRITING = auto()
    CHOOSING = auto()
    CHANGING = auto()
    CLOSING = auto()
    CLOSED = auto()


class AppendMachine:
    """The writer's half of the protocol, for one ledger that this client created."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        now: float,
        limits: AppendLimits | None = None,
    ) -> None:
        assert metadata.state is LedgerState.OPEN, "only the creator of an open ledger writes"
        self.metadata = metadata
        self.version = version
        self.phase = Phase.WRITING
        self.error: LedgerError | None = None
        """Why no more entries are taken; None while the writer works."""
        self.last_add_confirmed: EntryId = NO_ENTRY
        self.last_add_pushed: EntryId = NO_ENTRY
        self._limits = limits or AppendLimits()
        self._replication = Replication(
            metadata.quorums, metadata.last_fragment.bookies, NO_ENTRY, now
        )
        self._lengths = Lengths()
        self._announced: int = NO_ENTRY
        self._last_append_at = now
        self._asked: tuple[int, ...] = ()
        self._replacements: dict[int, BookieId] = {}
        self._wanted: LedgerMetadata | None = None
        self._close_requested = False

    def start(self) -> list[Command]:
        """Open the appenders of the first ensemble."""
        return self._replication.open_all()

    @property
    def length(self) -> int:
        """Payload bytes pushed so far."""
        return self._lengths.newest

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """The current ensemble in index order."""
        return self._replication.bookies

    @property
    def failed_indexes(self) -> frozenset[int]:
        """Slots whose bookie failed and has not been replaced."""
        return self._replication.failed_indexes

    @property
    def held_by_all(self) -> int:
        """The highest entry up to which every live bookie holds all that it has to."""
        return self._replication.held_by_all_live()

    @property
    def bytes_in_flight(self) -> int:
        """Payload bytes that are not confirmed, or that the slowest live bookie has not
        acknowledged. During an ensemble change bookies acknowledge and nothing is confirmed."""
        held = min(self._replication.held_by_all_live(), self.last_add_confirmed)
        return self.length - self._lengths.at(held)

    @property
    def has_room(self) -> bool:
        """Whether a producer may add more now. Bounds the memory of the writer (DESIGN 5.12)."""
        return self.bytes_in_flight < self._limits.bytes_in_flight_max

    @property
    def bytes_in_flight_max(self) -> int:
        """The bound that ``has_room`` keeps."""
        return self._limits.bytes_in_flight_max

    @property
    def is_idle(self) -> bool:
        """Nothing to wait for: no tick is needed until the next event."""
        if self.phase is Phase.CLOSED:
            return True
        return (
            self.phase is Phase.WRITING
            and self._replication.held_by_all_live() == self.last_add_pushed
            and self._announced >= self.last_add_confirmed
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in one event at monotonic time ``now``; the commands to perform, in order."""
        match event:
            case AddAcknowledged():
                return self._on_acknowledged(event, now)
            case Append():
                return self._on_append(event, now)
            case AddFailed():
                return self._on_add_failed(event, now)
            case BookiesChosen():
                return self._on_chosen(event, now)
            case MetadataWritten():
                return self._on_written(event.metadata, event.version, now)
            case MetadataConflict():
                return self._on_conflict(event, now)
            case MetadataFailed():
                return self._on_metadata_failed(event)
            case Close():
                return self._on_close()
            case Tick():
                return self._on_tick(now)
            case _:
                raise AssertionError(f"not an event of a writer: {event!r}")

    # -- adding ------------------------------------------------------------------------------------

    def _on_append(self, event: Append, now: float) -> list[Command]:
        assert self.error is None and not self._close_requested, "the shell checks before it adds"
        assert event.sizes, "an append carries entries"
        self._lengths.extend(event.sizes)
        self.last_add_pushed = EntryId(self.last_add_pushed + len(event.sizes))
        self._announced = self.last_add_confirmed  # piggybacked in the frames being sent
        self._last_append_at = now
        commands = self._replication.push(self.last_add_pushed, now)
        if not self._replication.can_confirm():
            self._replication.retry_now(now)  # the ledger depends on it: ask before giving up
        return commands + self._change_if_needed(now)

    def _on_acknowledged(self, event: AddAcknowledged, now: float) -> list[Command]:
        if not self._replication.acknowledge(
            event.bookie_index, event.bookie_id, event.last_entry, now
        ):
            return []
        return self._confirm()

    def _confirm(self) -> list[Command]:
        """Move LAC as far as the acknowledgements allow; never during an ensemble change."""
        if self.phase is not Phase.WRITING or self.error is not None:
            return []
        end = self._replication.confirmed_end()
        if end <= self.last_add_confirmed:
            return []
        self.last_add_confirmed = end
        self._lengths.forget_below(min(end, self._replication.held_by_all_live()))
        return [ConfirmEntries(end)]

    # -- failures and ensemble changes -------------------------------------------------------------

    def _on_add_failed(self, event: AddFailed, now: float) -> list[Command]:
        if self.phase in (Phase.CLOSING, Phase.CLOSED):
            return []  # its appenders are closed; only the metadata store has a say now
        commands = self._fail_member(event.bookie_index, event.bookie_id, now)
        if not commands:
            return []
        where = f"ledger {self.metadata.ledger_id}: bookie {event.bookie_id}"
        if event.status is BookieStatus.FENCED:
            return commands + self._stop(
                FencedError(f"{where} says that another client has fenced the ledger")
            )
        if event.status is BookieStatus.UNAUTHORIZED:
            return commands + self._stop(
                UnauthorizedError(f"{where} refuses the ledger's password {event.message}".rstrip())
            )
        return commands + self._change_if_needed(now)

    def _fail_member(self, index: int, bookie_id: BookieId, now: float) -> list[Command]:
        retry_s = self._limits.replacement_retry_s
        failed = self._replication.fail(index, bookie_id, now, retry_s)
        return [CloseAppender(index)] if failed else []

    def _change_if_needed(self, now: float) -> list[Command]:
        """Start an ensemble change, if a bookie has failed and entries are waiting."""
        if self.phase is not Phase.WRITING or self.error is not None:
            return []
        if self.last_add_pushed == self.last_add_confirmed:
            return []  # a late failure: dealt with at the next add (DESIGN 5.4)
        due = self._replication.failed_due(now)
        if due:
            return self._choose(due)
        if self._replication.can_confirm():
            return []
        return self._give_up("no other writable bookie can take their place")

    def _choose(self, due: tuple[int, ...]) -> list[Command]:
        self.phase = Phase.CHOOSING
        self._asked = due
        indexes = self._replication.members
        return [
            ChooseBookies(
                indexes=due,
                members=frozenset(index.bookie_id for index in indexes),
                failed={index: indexes[index].bookie_id for index in due},
            )
        ]

    def _on_chosen(self, event: BookiesChosen, now: float) -> list[Command]:
        if self.phase is not Phase.CHOOSING or self.error is not None:
            return []
        for index in self._asked:
            if index not in event.replacements:
                self._replication.members[index].retry_at = now + self._limits.replacement_retry_s
        self._replacements = {
            bookie_index: bookie
            for bookie_index, bookie in event.replacements.items()
            if bookie_index in self._replication.failed_indexes
        }
        return self._write_change(now) if self._replacements else self._end_change(now)

    def _write_change(self, now: float) -> list[Command]:
        """Write the new ensemble, from LAC + 1 on, into the metadata."""
        bookies = replace_bookies(self._replication.bookies, self._replacements)
        first_entry = EntryId(self.last_add_confirmed + 1)
        if first_entry < self.metadata.last_fragment.first_entry:
            return self._stop(
                ConflictError(
                    f"ledger {self.metadata.ledger_id}: another client changed its ensemble; "
                    "open the ledger with recovery to learn its end"
                )
            )
        fragments = with_ensemble(self.metadata.fragments, first_entry, bookies)
        if len(fragments) > FRAGMENTS_MAX:
            return self._give_up(f"the ledger has {FRAGMENTS_MAX} fragments, the most allowed")
        wanted = self.metadata.with_changes(fragments=fragments)
        self.phase = Phase.CHANGING
        if wanted == self.metadata:
            return self._on_written(wanted, self.version, now)
        return [self._write(wanted)]

    def _write(self, wanted: LedgerMetadata) -> WriteMetadata:
        assert self._wanted is None, "one metadata write at a time"
        self._wanted = wanted
        return WriteMetadata(wanted, self.version)

    def _end_change(self, now: float) -> list[Command]:
        """Nothing is being changed any more: look for newer failures, else confirm again.

        Confirming is not skipped when the change replaced nothing, or the queue would stand still.
        """
        self.phase = Phase.WRITING
        newer = self._replication.failed_due(now)
        commands = [] if newer else self._confirm()  # also what bookies stored before they failed
        return commands + self._change_if_needed(now)

    def _give_up(self, reason: str) -> list[Command]:
        """Failed bookies cannot be replaced: fail what is pending, close the ledger at LAC."""
        quorums = self.metadata.quorums
        failed = sorted(self._replication.members[i].bookie_id for i in self.failed_indexes)
        error = EnsembleLostError(
            f"ledger {self.metadata.ledger_id} ({quorums}): bookies {', '.join(failed)} failed and "
            f"{reason}; the ledger ends at entry {self.last_add_confirmed}. Start bookies, then "
            "write to a new ledger"
        )
        commands: list[Command] = [FailEntries(error)]
        self.error = error
        return commands + self._write_closed()

    def _stop(self, error: LedgerError) -> list[Command]:
        """The writer may add nothing more; the end of the ledger is for others to decide."""
        assert self.error is None, "a writer stops once"
        self.error = error
        self.phase = Phase.CLOSED
        if self._close_requested:
            return [Failed(error)]  # closing has failed the entries and closed the appenders
        return [FailEntries(error), *self._replication.close_all()]

    # -- metadata answers --------------------------------------------------------------------------

    def _on_written(self, metadata: LedgerMetadata, version: int, now: float) -> list[Command]:
        self.metadata, self.version, self._wanted = metadata, version, None
        if self.phase is Phase.CLOSING:
            if metadata.is_closed:
                return self._finished()
            return [self._write(self._closed_value())]  # a change was in flight when close came
        if self.phase is not Phase.CHANGING:
            return []
        replaced, self._replacements = self._replacements, {}
        commands = self._replication.install(replaced, self.last_add_confirmed, now)
        return commands + self._end_change(now)

    def _on_conflict(self, event: MetadataConflict, now: float) -> list[Command]:
        if self.phase not in (Phase.CHANGING, Phase.CLOSING):
            return []
        stored, wanted = event.metadata, self._wanted
        self._wanted = None
        if stored == wanted:
            return self._on_written(stored, event.version, now)  # ours: its reply was lost
        if self.phase is Phase.CLOSING and stored.is_closed and self._is_our_end(stored):
            self.metadata, self.version = stored, event.version
            return self._finished()
        if stored.state is not LedgerState.OPEN:
            self.metadata, self.version = stored, event.version
            return self._withdraw(stored)
        # Somebody changed an older fragment (re-replication): both changes must survive.
        self.metadata, self.version = stored, event.version
        if self.phase is Phase.CLOSING:
            return [self._write(self._closed_value())]
        return self._write_change(now)

    def _withdraw(self, stored: LedgerMetadata) -> list[Command]:
        """Somebody else is recovering, or has closed, the ledger. Never override (DESIGN 5.8)."""
        name = f"ledger {stored.ledger_id}"
        error: LedgerError
        if stored.is_closed:
            error = LedgerTakenOverError(
                f"{name}: another client recovered it and closed it at entry "
                f"{stored.last_entry_id}; this writer had confirmed {self.last_add_confirmed}"
            )
        else:
            error = FencedError(f"{name}: another client is recovering it")
        if self.error is None:
            return self._stop(error)
        self.phase = Phase.CLOSED
        return [Failed(error)] if self._close_requested else []

    def _on_metadata_failed(self, event: MetadataFailed) -> list[Command]:
        self._wanted = None
        if self.phase is Phase.CLOSING:
            self.phase = Phase.CLOSED
            return [Failed(event.error)] if self._close_requested else []
        if self.phase is not Phase.CHANGING:
            return []
        # Not the store's own error: that one would say that nothing happened, but entries that are
        # pending may be on bookies, and recovery may make them part of the ledger.
        error = AddOutcomeUnknownError(
            f"ledger {self.metadata.ledger_id}: a failed bookie could not be replaced, because the "
            f"metadata could not be written: {event.error}"
        )
        error.__cause__ = event.error
        return self._stop(error)

    # -- close -------------------------------------------------------------------------------------

    def _on_close(self) -> list[Command]:
        assert not self._close_requested, "the shell closes once"
        self._close_requested = True
        if self.phase is Phase.CLOSED:
            return [Done(self.metadata, self.version)]  # the application knows why from its adds
        commands: list[Command] = []
        if self.error is None and self.last_add_pushed > self.last_add_confirmed:
            commands.append(
                FailEntries(
                    AddOutcomeUnknownError(
                        f"ledger {self.metadata.ledger_id} was closed at entry "
                        f"{self.last_add_confirmed} while later adds were in flight"
                    )
                )
            )
        if self.phase is Phase.CLOSING:
            return commands  # closing already, after too few bookies were left
        return commands + self._write_closed()

    def _write_closed(self) -> list[Command]:
        self.phase = Phase.CLOSING
        commands = self._replication.close_all()
        if self._wanted is None:  # else an ensemble change is in flight: its answer comes first
            commands.append(self._write(self._closed_value()))
        return commands

    def _closed_value(self) -> LedgerMetadata:
        end = self.last_add_confirmed
        return closed(self.metadata, last_entry=end, length=self._lengths.at(end))

    def _is_our_end(self, stored: LedgerMetadata) -> bool:
        end = self.last_add_confirmed
        return stored.last_entry_id == end and stored.length == self._lengths.at(end)

    def _finished(self) -> list[Command]:
        self.phase = Phase.CLOSED
        return [Done(self.metadata, self.version)] if self._close_requested else []

    # -- time --------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[Command]:
        if self.error is not None or self._close_requested:
            return []
        limits = self._limits
        silent_indexes = set(self._replication.silent_indexes(now, limits.add_timeout_s))
        if not self.has_room:
            silent_indexes.update(
                self._replication.dispensable_indexes(now, limits.slow_bookie_grace_s)
            )
        commands: list[Command] = []
        for index in sorted(silent_indexes):
            commands += self._fail_member(index, self._replication.members[index].bookie_id, now)
        commands += self._change_if_needed(now)  # one change for all of them
        idle = (
            self.last_add_pushed == self.last_add_confirmed
            and now - self._last_append_at >= limits.explicit_lac_delay_s
        )
        if idle and self._announced < self.last_add_confirmed:
            self._announced = self.last_add_confirmed
            commands.append(
                AnnounceLastConfirmed(self.last_add_confirmed, self._replication.live_bookies)
            )
        return commands
