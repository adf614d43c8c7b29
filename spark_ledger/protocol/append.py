"""The writer of a ledger: ids, confirmation in order, ensemble changes, close.

An entry is confirmed in order, by AQ bookies of the ensemble that is in the metadata, and not while
a change of it is being written (rule P4). A bookie that fails is replaced from LAC + 1 on (rules P7
and P8); without a replacement the writer goes on while AQ is in reach (rule P10).
"""

from __future__ import annotations

from spark_ledger.errors import ConfigurationError, LedgerError
from spark_ledger.limits.entries import FRAGMENTS_MAX
from spark_ledger.protocol import machine_errors
from spark_ledger.protocol.append_announce import Announcements
from spark_ledger.protocol.append_fence import FenceQuestion, speaks_of_fence
from spark_ledger.protocol.append_limits import AppendLimits
from spark_ledger.protocol.append_phases import ENDING, TRANSITIONS, Phase
from spark_ledger.protocol.ensemble import closed, replace_bookies, with_ensemble
from spark_ledger.protocol.events import (
    Abandon,
    AddAcknowledged,
    AddFailed,
    Append,
    BookiesChosen,
    Close,
    CloseAppender,
    Command,
    ConfirmEntries,
    Done,
    Event,
    Failed,
    FailEntries,
    LastConfirmedTold,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataUnread,
    MetadataWritten,
    Tick,
    WriteMetadata,
)
from spark_ledger.protocol.lengths import Lengths
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import NO_ENTRY, BookieId, EntryId, LedgerMetadata, LedgerState


class AppendMachine:
    """The writer's half of the protocol, for one ledger that this client created.

    With L = ``last_add_confirmed`` and P = ``last_add_pushed``, after every event:

        -1 <= L <= P = the last entry pushed to the members
        L never goes back, and moves in WRITING and CHOOSING only (rules P4 and P5)
        WRITING or CHOOSING  =>  the members are the last ensemble in the metadata,
                     and its first entry is at most L + 1          (rules P4 and P7)
        CLOSING or CLOSED  <=>  an error stopped the writer, or the application closes it
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        now: float,
        limits: AppendLimits | None = None,
    ) -> None:
        # A second writer would give the same ids to other payloads (rule P2).
        assert metadata.state is LedgerState.OPEN, "Only the creator of an open ledger writes."
        self._metadata, self._version = metadata, version
        self._phase = Phase.WRITING
        self._event: Event | None = None
        """What is being handled: the table says where it may lead."""
        self._error: LedgerError | None = None
        self._last_add_confirmed = self._last_add_pushed = NO_ENTRY
        self._limits = limits = limits or AppendLimits()
        quorums, bookies = metadata.quorums, metadata.last_fragment.bookies
        self._replication = Replication(quorums, bookies, NO_ENTRY, now, limits.stalled_wait_s)
        self._lengths = Lengths(limits.entry_bytes)
        self._announcements = Announcements(now, limits.explicit_lac_delay_s, quorums)
        self._fence = FenceQuestion()
        self._replacements: dict[int, BookieId] = {}
        """Chosen and not yet installed, by index."""
        self._wanted: LedgerMetadata | None = None
        """The metadata that are being written; None if no write is in flight."""
        self._close_requested = False
        self._measured: tuple[int, int, int] | None = None
        """``held_by_all``, ``bytes_in_flight``, and the payload of these; None: not asked yet."""

    def start(self) -> list[Command]:
        """Open the appenders of the first ensemble."""
        return self._replication.open_all()

    # -- state -------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last wrote or read them."""
        return self._metadata

    @property
    def phase(self) -> Phase:
        """What the writer is doing."""
        return self._phase

    @property
    def error(self) -> LedgerError | None:
        """Why no more entries are taken; None while the writer works."""
        return self._error

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that is confirmed; -1 if there is none."""
        return self._last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry that was added, confirmed or not."""
        return self._last_add_pushed

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
        """Indexes whose bookie failed and has not been replaced."""
        return self._replication.failed_indexes

    @property
    def held_by_all(self) -> int:
        """The highest entry up to which every live bookie holds all that it has to."""
        return (self._measured or self._measure())[0]

    @property
    def bytes_in_flight(self) -> int:
        """Of entries that are not confirmed, or that some live bookie has not acknowledged."""
        return (self._measured or self._measure())[1]

    @property
    def has_room(self) -> bool:
        """Whether a producer may add more now. This bounds the writer's memory (rule P11)."""
        return self.bytes_in_flight < self._limits.bytes_in_flight_max

    @property
    def _silence_s(self) -> float:
        return self._limits.silence_s((self._measured or self._measure())[2])  # rule P11

    @property
    def answers_wanted(self) -> int:
        """Fewer acknowledgements than this, of any bookies, confirm nothing (rule P4)."""
        return self._replication.answers_wanted(self._last_add_confirmed)

    @property
    def is_idle(self) -> bool:
        """Nothing to wait for: no tick is needed until the next event."""
        if self._phase is not Phase.WRITING or self.held_by_all < self._last_add_pushed:
            return self._phase is Phase.CLOSED
        return not self._announcements.owes(self._last_add_confirmed, self._replication)

    @property
    def next_deadline(self) -> float | None:
        """The earliest time at which a tick may change something; None if none will. The shell
        ticks then, and not before: what ``_on_tick`` comes to look at has to be named here."""
        if self._phase in ENDING:
            return None
        due = self._replication.next_look(self._silence_s, chooses=self._may_change)
        if self._last_add_pushed > self._last_add_confirmed:
            return due
        told = self._announcements.next_look(self._last_add_confirmed, self._replication)
        return told if due is None or (told is not None and told < due) else due

    @property
    def _may_change(self) -> bool:
        """Whether bookies that failed are replaced now, because entries wait for it.

        If none do, the next add deals with it (rule P9): a change now would write metadata for a
        fragment that may never get an entry. While a change is made, or a fence is in question, the
        answer is an event of its own.
        """
        if self._phase is not Phase.WRITING or self._fence.is_open:
            return False
        return self._last_add_pushed > self._last_add_confirmed

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in one event at monotonic time ``now``; the commands to perform, in order."""
        self._event = event
        commands = self._on_event(event, now)
        self._event = self._measured = None
        return commands

    def _measure(self) -> tuple[int, int, int]:
        held = self._replication.held_by_all_live()
        self._measured = held, *self._lengths.above(min(held, self._last_add_confirmed))
        return self._measured

    def _on_event(self, event: Event, now: float) -> list[Command]:
        match event:
            case AddAcknowledged():
                return self._on_acknowledged(event, now)
            case Append():
                return self._on_append(event, now)
            case AddFailed():
                return self._on_add_failed(event, now)
            case LastConfirmedTold():
                more = self._announcements.told(event, self._replication)
                return [] if self._phase in ENDING else more
            case BookiesChosen():
                return self._on_chosen(event, now)
            case MetadataWritten():
                return self._on_written(event.metadata, event.version, now)
            case MetadataConflict():
                return self._on_conflict(event, now)
            case MetadataFailed():
                return self._on_metadata_failed(event, now)
            case MetadataRead() | MetadataUnread():
                return self._on_looked(event, now)
            case Close():
                return self._on_close()
            case Abandon():
                return self._on_abandon(event)
            case Tick():
                return self._on_tick(now)
            case _:
                raise AssertionError(f"not an event of a writer: {event!r}")

    def _enter(self, phase: Phase) -> None:
        changes = TRANSITIONS[self._phase]
        assert phase in changes, f"A writer goes from {self._phase} to {phase}."
        assert type(self._event) in changes[phase], f"{self._event!r} leads to {phase}."
        self._phase = phase
        if phase is Phase.WRITING:
            # What is confirmed from here on is confirmed by these members, so they have to be the
            # ones that recovery and readers will find in the metadata (rule P4).
            last = self._metadata.last_fragment
            assert last.bookies == self._replication.bookies, "A writer's ensemble is not stored."
            assert last.first_entry <= self._last_add_confirmed + 1, "A fragment starts too late."

    # -- adding ------------------------------------------------------------------------------------

    def _on_append(self, event: Append, now: float) -> list[Command]:
        assert self._phase not in ENDING and event.sizes, "The shell checks before it adds."
        self._lengths.extend(event.sizes)
        self._last_add_pushed = EntryId(self._last_add_pushed + len(event.sizes))
        self._announcements.carried(self._last_add_confirmed, now)  # in the frames being sent
        commands = self._replication.push(self._last_add_pushed, now)
        if not self._replication.failed_indexes:
            return commands  # as nearly always: nobody is to be replaced
        if not self._replication.can_confirm():
            self._replication.retry_now(now)  # the ledger depends on it: ask before giving up
        return commands + self._change_if_needed(now)

    def _on_acknowledged(self, event: AddAcknowledged, now: float) -> list[Command]:
        index, bookie_id, last = event  # more copies of what is confirmed confirm nothing more
        is_new = self._replication.acknowledge(index, bookie_id, last, now)
        return self._confirm() if is_new and last > self._last_add_confirmed else []

    def _confirm(self) -> list[Command]:
        """Move LAC as far as the acknowledgements allow; never while an ensemble change is written.

        The new fragment starts at LAC + 1 as of when it was computed (rule P7): from then on, what
        the old bookies hold belongs to one that names others (apache/bookkeeper #4651). While they
        are only looked for, what members that stay hold is confirmed (rule P4).
        """
        if self._phase is Phase.WRITING:
            end = self._replication.confirmed_end()
        elif self._phase is Phase.CHOOSING:
            end = self._replication.confirmed_by_live()
        else:
            return []
        if end <= self._last_add_confirmed:
            return []  # LAC never goes back (rule P5): after a change members start from LAC again
        assert end <= self._last_add_pushed, "Only entries that were added are confirmed."
        self._last_add_confirmed = end
        return [ConfirmEntries(end)]

    # -- failures and ensemble changes -------------------------------------------------------------

    def _on_add_failed(self, event: AddFailed, now: float) -> list[Command]:
        if self._phase in ENDING:
            return []  # its appenders are closed; only the metadata store has a say now
        if (excused := self._replication.excuse(event, now)) is not None:
            return excused
        if not self._replication.fail(event, now, self._limits.replacement_retry_s):
            return []  # not a member any more: what it says may be long out of date (rule P8)
        closing: list[Command] = [CloseAppender(event.bookie_index)]
        if speaks_of_fence(event):
            return closing + self._fence.ask(event.bookie_id)
        return closing + self._change_if_needed(now)

    def _on_looked(self, event: MetadataRead | MetadataUnread, now: float) -> list[Command]:
        """Whether a bookie that speaks of a fence is to be believed (rule P18)."""
        if self._phase in ENDING:
            return []  # its own compare-and-set decides
        can_wait = self._replication.can_confirm()
        commands, error = self._fence.answer(event, self._metadata, can_wait=can_wait)
        return commands + (self._change_if_needed(now) if error is None else self._stop(error))

    def _change_if_needed(self, now: float, silent: tuple[int, ...] = ()) -> list[Command]:
        """Start an ensemble change, if a bookie has failed and entries are waiting. ``silent`` have
        not failed, and cannot be spared: others are looked for (rule P11)."""
        if not self._may_change:
            return []
        if silent or self._replication.failed_due(now):
            self._enter(Phase.CHOOSING)
            return [self._replication.choose(now, silent)]
        if self._replication.can_confirm():  # rule P10: go on with fewer copies, look again later
            return []
        return self._give_up("no other writable bookie can replace them")

    def _on_chosen(self, event: BookiesChosen, now: float) -> list[Command]:
        if self._phase is not Phase.CHOOSING:
            return []
        retry_s = self._limits.replacement_retry_s
        self._replacements, closing = self._replication.chosen(event, now, retry_s)
        return closing + (self._write_change(now) if self._replacements else self._end_change(now))

    def _write_change(self, now: float) -> list[Command]:
        """Write the new ensemble, from LAC + 1 on, into the metadata (rule P7)."""
        bookies = replace_bookies(self._replication.bookies, self._replacements)
        first_entry = EntryId(self._last_add_confirmed + 1)
        if first_entry < self._metadata.last_fragment.first_entry:
            # Only a conflict brings this: somebody else added a fragment above what is confirmed
            # here. To write below it would give its entries to other bookies.
            return self._stop(machine_errors.ensemble_changed(self._metadata.ledger_id))
        fragments = with_ensemble(self._metadata.fragments, first_entry, bookies)
        if len(fragments) > FRAGMENTS_MAX:
            return self._no_room(f"the ledger has {FRAGMENTS_MAX} fragments, the most allowed", now)
        wanted = self._metadata.with_changes(fragments=fragments)
        self._enter(Phase.CHANGING)
        if wanted == self._metadata:
            # A bookie takes its own index again, from the same entry on: nothing to write, and a
            # version that does not move would look like somebody else's write.
            return self._on_written(wanted, self._version, now)
        return [self._write(wanted)]

    def _write(self, wanted: LedgerMetadata) -> WriteMetadata:
        assert self._wanted is None, "One metadata write is in flight at a time."
        self._wanted = wanted
        return WriteMetadata(wanted, self._version)

    def _end_change(self, now: float) -> list[Command]:
        """Nothing is being changed any more: look for newer failures, else confirm again.

        Also when the change replaced nobody: what was acknowledged during it has confirmed nothing
        (rule P8). A newer failure comes first, if it may: LAC may rely on its bookie.
        """
        self._enter(Phase.WRITING)
        newer = not self._fence.is_open and self._replication.failed_due(now)
        commands = [] if newer else self._confirm()  # also what bookies stored before they failed
        return commands + self._change_if_needed(now)

    def _no_room(self, reason: str, now: float) -> list[Command]:
        """The metadata take no other fragment: go on without, while AQ is in reach (rule P10)."""
        is_stored = self._metadata.last_fragment.bookies == self._replication.bookies
        if not (is_stored and self._replication.can_confirm()):
            return self._give_up(reason)
        self._replacements = {}
        self._replication.retry_late(now)
        return self._end_change(now)

    def _give_up(self, reason: str) -> list[Command]:
        """Failed bookies cannot be replaced: fail what is pending, close the ledger at LAC. Nobody
        is asked: what is confirmed is on AQ bookies, what is not was not promised (rule P10)."""
        end, members = self._last_add_confirmed, self._replication
        self._error = machine_errors.cannot_go_on(self._metadata, members, end, reason)
        return [FailEntries(self._error), *self._write_closed()]

    def _stop(self, error: LedgerError) -> list[Command]:
        """The writer may add nothing more; the end of the ledger is for others to decide."""
        assert self._error is None, "A writer stops once."
        self._error = error
        self._enter(Phase.CLOSED)
        if self._close_requested:
            return [Failed(error)]  # closing has failed the entries and closed the appenders
        return [FailEntries(error), *self._replication.close_all()]

    # -- metadata answers --------------------------------------------------------------------------

    def _on_written(self, metadata: LedgerMetadata, version: int, now: float) -> list[Command]:
        self._metadata, self._version, self._wanted = metadata, version, None
        if self._phase is Phase.CLOSING:
            if metadata.is_closed:
                return self._finished()
            return [self._write(self._closed_value())]  # a change was in flight when close came
        if self._phase is not Phase.CHANGING:
            return []
        # Metadata first, then the members: an entry sent to a new bookie before the compare-and-set
        # could be confirmed on an ensemble that nobody else will ever read from (rule P4).
        replaced, self._replacements = self._replacements, {}
        commands = self._replication.install(replaced, self._last_add_confirmed, now)
        return commands + self._end_change(now)

    def _on_conflict(self, event: MetadataConflict, now: float) -> list[Command]:
        """Something else is stored than this writer thought; ``_wanted`` may or may not be it. That
        is never written again as it was (rule P6): what is stored decides what the next one is."""
        if self._phase not in (Phase.CHANGING, Phase.CLOSING):
            return []
        if (error := machine_errors.went_back(self._metadata, self._version, event)) is not None:
            return self._on_metadata_failed(MetadataFailed(error), now)
        stored, wanted, self._wanted = event.metadata, self._wanted, None
        if stored == wanted:
            return self._on_written(stored, event.version, now)  # ours: its reply was lost
        self._metadata, self._version = stored, event.version
        if self._phase is Phase.CLOSING and self._lengths.is_end(stored, self._last_add_confirmed):
            return self._finished()  # a recovery closed it where this writer would have
        if stored.state is not LedgerState.OPEN:
            return self._withdraw(stored)
        # Somebody changed an older fragment (re-replication): both changes must survive.
        if self._phase is Phase.CLOSING:
            return [self._write(self._closed_value())]
        return self._write_change(now)

    def _withdraw(self, stored: LedgerMetadata) -> list[Command]:
        """Somebody else is recovering, or has closed, the ledger. Never override (rule P18)."""
        error = machine_errors.taken_over(stored, self._last_add_confirmed)
        if self._error is None:
            return self._stop(error)
        self._enter(Phase.CLOSED)
        return [Failed(error)] if self._close_requested else []

    def _on_metadata_failed(self, event: MetadataFailed, now: float) -> list[Command]:
        wanted, self._wanted = self._wanted, None
        is_refused = isinstance(event.error, ConfigurationError)  # no room, and nothing was written
        if self._phase is Phase.CLOSING:
            if is_refused and wanted is not None and not wanted.is_closed:
                return [self._write(self._closed_value())]  # a change, as when it is stored
            self._enter(Phase.CLOSED)
            return [Failed(event.error)] if self._close_requested else []
        if self._phase is not Phase.CHANGING:
            return []
        if is_refused:
            return self._no_room(f"their replacement cannot be stored ({event.error})", now)
        return self._stop(machine_errors.change_not_stored(self._metadata.ledger_id, event.error))

    # -- close -------------------------------------------------------------------------------------

    def _on_close(self) -> list[Command]:
        assert not self._close_requested, "The shell closes once."
        self._close_requested = True
        if self._phase is Phase.CLOSED:
            return [Done(self._metadata, self._version)]  # the application knows why from its adds
        commands: list[Command] = []
        if self._error is None and self._last_add_pushed > self._last_add_confirmed:
            end, ledger_id = self._last_add_confirmed, self._metadata.ledger_id
            commands.append(FailEntries(machine_errors.closed_early(ledger_id, end)))
        if self._phase is Phase.CLOSING:
            return commands  # closing already, after too few bookies were left
        return commands + self._write_closed()

    def _on_abandon(self, event: Abandon) -> list[Command]:
        """End now, whatever is in progress; the ledger stays open for a recovery to close.

        Nothing is written: a close from here could race with a change that is in flight. The shell
        closes all appenders. The first error stays: this one says only what the client did.
        """
        self._error = self._error or event.error
        if self._phase is not Phase.CLOSED:
            self._enter(Phase.CLOSED)
        return [FailEntries(event.in_flight), Failed(event.error)]

    def _write_closed(self) -> list[Command]:
        self._enter(Phase.CLOSING)
        commands = self._replication.close_all()
        if self._wanted is None:  # else an ensemble change is in flight: its answer comes first
            commands.append(self._write(self._closed_value()))
        return commands

    def _closed_value(self) -> LedgerMetadata:
        """Closed at LAC: entries above it were answered with errors, and are never promised."""
        end = self._last_add_confirmed
        return closed(self._metadata, last_entry=end, length=self._lengths.at(end))

    def _finished(self) -> list[Command]:
        assert self._metadata.is_closed, "A writer has finished when its ledger is closed."
        self._enter(Phase.CLOSED)
        return [Done(self._metadata, self._version)] if self._close_requested else []

    # -- time --------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[Command]:
        if self._phase in ENDING:
            return []
        limits, replication = self._limits, self._replication
        silence_s, retry_s = self._silence_s, limits.replacement_retry_s
        commands = replication.resume(now)
        failing, asked = replication.silence(now, limits.add_timeout_s, limits.stalled_wait_s)
        if silence_s < limits.add_timeout_s:
            # Slow is failed once it holds up much payload and can be done without (rule P11).
            failing.update(replication.spare_indexes(now, silence_s, failing))
        commands += replication.fail_silent(failing, now, retry_s, limits.stalled_wait_s)
        commands += self._change_if_needed(now, asked)  # one change for all of them
        replication.look_later(now, silence_s, limits.add_timeout_s, retry_s)
        if self._last_add_pushed == self._last_add_confirmed:
            commands += self._announcements.announce(self._last_add_confirmed, replication, now)
        return commands
