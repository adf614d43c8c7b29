"""Recovery: fence the old writer, find the ledger's end, replicate it, close the ledger.

The steps of BookKeeper's protocol, with the fixes that its TLA+ specification led to:

1. MARKING    compare-and-set OPEN -> IN_RECOVERY; several recoverers may be at work (rule P6).
2. FENCING    fence the last fragment's bookies until the silent ones cannot confirm anything
              (rules P12 and P13).
3. PROVING    bookies only say what is confirmed; an entry that is read carries it (rule P15).
4. READING    from there on, read with fencing on every replica. One good copy makes an entry part
              of the ledger; WQ - AQ + 1 denials end it; anything else and the recovery fails, to
              be tried again: an unknown answer is no denial (rule P14).
   meanwhile  every entry found is written back to its whole write set (rule P16). Bookies that fail
              are replaced in memory only: a second recoverer must ask the old ones.
5. MEASURING  learn the length at the last entry, unless the ledger is empty.
6. CLOSING    one compare-and-set to CLOSED, with the end and the changed fragments (rule P17).

Reads use the ensemble of the metadata as they were when recovery began (rule P15).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_ledger.errors import FencedError, LedgerError
from spark_ledger.limits.client import ADD_TIMEOUT_S, STALLED_BOOKIES_WAIT_S
from spark_ledger.protocol import machine_errors
from spark_ledger.protocol.ensemble import (
    closed,
    entry_range,
    in_recovery,
    replace_bookies,
    with_ensemble,
)
from spark_ledger.protocol.events import (
    AddAcknowledged,
    AddFailed,
    BookiesChosen,
    CancelRead,
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
    Start,
    TellLength,
    Tick,
    WriteMetadata,
)
from spark_ledger.protocol.lane_tail import LaneTail
from spark_ledger.protocol.last_confirmed import LastConfirmedRead
from spark_ledger.protocol.quorum import lanes
from spark_ledger.protocol.recovery_phases import TRANSITIONS, Phase
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import (
    EntryId,
    Fragment,
    LedgerMetadata,
    LedgerState,
)

_FAR: Final = EntryId(2**62)
"""Recovery reads have no end: a bookie answers up to the first entry it does not hold."""


class RecoveryMachine:
    """Recovers and closes one ledger. ``Done`` carries the closed metadata, ours or another's.

    With S the LAC that was proved, L = ``last_add_confirmed``, P the last entry that is
    being written back, and n the lowest entry not found yet, while READING:

        first entry of the last fragment - 1 <= S <= L <= P = max(S, n - 1)      (rule P15)
        the end is known  =>  the end is n - 1: nothing behind it is written back
        the members differ from the metadata's last ensemble by what failed here only (rule P16)
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        now: float,
        add_timeout_s: float = ADD_TIMEOUT_S,
    ) -> None:
        self._metadata, self._version = metadata, version
        self._phase = Phase.MARKING
        self._event: Event | Start | None = Start()
        """What is being handled: the table says where it may lead."""
        self._add_timeout_s = add_timeout_s
        self._fencing: LastConfirmedRead | None = None
        self._lanes = lanes(metadata.quorums)
        self._tails: list[LaneTail] = []
        self._end: int | None = None
        """The last entry of the ledger, once it is known."""
        self._hints: list[EntryId] = []
        """What bookies take for confirmed and nobody has proved yet, lowest first."""
        self._start = -1
        """The last entry that this recovery does not read: everything up to it is confirmed."""
        self._length: int | None = None
        self._replication: Replication | None = None
        """The bookies that entries are written back to; None before reading begins."""
        self._fragments: Sequence[Fragment] = metadata.fragments
        """Those of the metadata, with the changes that the closing write publishes."""
        self._last_add_confirmed = EntryId(-1)

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this recovery last wrote or read them."""
        return self._metadata

    @property
    def phase(self) -> Phase:
        """Where recovery is."""
        return self._phase

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that is known to be part of the ledger and stored on AQ bookies."""
        return self._last_add_confirmed

    @property
    def held_by_all(self) -> int:
        """Up to which entry no live bookie is sent what was found once more."""
        return -1 if self._replication is None else self._replication.held_by_all_live()

    @property
    def next_deadline(self) -> float | None:
        """The earliest time at which a tick may change something; None if none will."""
        replication = self._replication
        if replication is None or self._phase is not Phase.READING:
            return None
        return replication.next_look(self._add_timeout_s, chooses=self._may_choose(replication))

    def _may_choose(self, replication: Replication) -> bool:
        is_free = self._phase is Phase.READING and not replication.is_choosing
        return is_free and replication.last_pushed > self._last_add_confirmed

    def start(self) -> list[Command]:
        """Begin; the ledger may be in any state."""
        if self._metadata.is_closed:
            return self._ended(Done(self._metadata, self._version))
        if self._metadata.state is LedgerState.IN_RECOVERY:
            return self._fence()  # another recovery is at work: both may go on (rule P17)
        # IN_RECOVERY is stored before anybody is fenced: a writer that changed its ensemble after
        # the fence would go on with bookies that recovery never asks. With IN_RECOVERY stored its
        # compare-and-set fails (rule P6).
        return [self._write(in_recovery(self._metadata))]

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in one event; the commands to perform, in order."""
        self._event = event
        commands = self._on_event(event, now)
        self._event = None
        return commands

    def _on_event(self, event: Event, now: float) -> list[Command]:
        if self._phase is Phase.ENDED:
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
                return self._on_length(event, now)
            case MetadataWritten():
                return self._on_written(event.metadata, event.version)
            case MetadataConflict():
                return self._on_conflict(event)
            case LengthUnknown() if self._phase is Phase.PROVING:
                return self._prove(now)
            case MetadataFailed() | LengthUnknown():
                return self._failed(event.error)
            case Tick():
                return self._on_tick(now)
            case _:
                raise AssertionError(f"not an event of a recovery: {event!r}")

    def _enter(self, phase: Phase) -> None:
        changes = TRANSITIONS[self._phase]
        assert phase in changes, f"A recovery goes from {self._phase} to {phase}."
        assert type(self._event) in changes[phase], f"{self._event!r} leads to {phase}."
        self._phase = phase

    # -- marking and fencing -----------------------------------------------------------------------

    def _write(self, wanted: LedgerMetadata) -> WriteMetadata:
        return WriteMetadata(wanted, self._version)

    def _fence(self) -> list[Command]:
        """Fence every bookie of the last fragment: only there can the old writer confirm anything.

        Earlier fragments are complete: all of their entries were confirmed before the next one was
        written (rule P7), and IN_RECOVERY keeps the writer from writing another (rule P6).
        """
        self._enter(Phase.FENCING)
        self._fragments = self._metadata.fragments
        self._fencing = LastConfirmedRead(self._metadata, fence=True)
        return self._fencing.start()

    def _on_last_confirmed(self, event: LastConfirmedAnswer, now: float) -> list[Command]:
        if self._phase is not Phase.FENCING or self._fencing is None:
            return []
        if not self._fencing.answer(event):
            return []
        if self._fencing.error is not None:
            return self._failed(self._fencing.error)
        assert self._fencing.result is not None, "A round that is over has a result or an error."
        self._hints = self._fencing.hints[::-1]
        return self._prove(now)

    def _prove(self, now: float) -> list[Command]:
        """Read the entry that the highest hint names: what it carries was confirmed (rule P15).

        A hint is a number that anybody may have sent to a bookie. If its entry cannot be read, the
        next one is tried; without any, recovery reads the whole last fragment.
        """
        if not self._hints:
            return self._read_tails(EntryId(self._metadata.last_fragment.first_entry - 1), now)
        if self._phase is Phase.FENCING:
            self._enter(Phase.PROVING)
        return [ReadLength(entry_range(self._metadata, self._hints.pop()))]

    def _on_proof(self, event: LengthRead, now: float) -> list[Command]:
        assert self._fencing is not None, "What is proved was a hint before."
        return self._read_tails(max(event.last_add_confirmed, self._fencing.floor), now)

    # -- reading -----------------------------------------------------------------------------------

    def _read_tails(self, last_confirmed: EntryId, now: float) -> list[Command]:
        """Read, on every replica, what stands behind the LAC that was proved."""
        fragment = self._metadata.last_fragment
        # Bookies of a new ensemble may know no LAC at all. Starting below their fragment would ask
        # them for entries that they never had, and take their denials for the end (rule P15).
        assert last_confirmed >= fragment.first_entry - 1, "Recovery starts too low."
        self._enter(Phase.READING)
        self._start = last_confirmed
        self._last_add_confirmed = last_confirmed
        self._replication = Replication(
            self._metadata.quorums, fragment.bookies, last_confirmed, now
        )
        commands = self._replication.open_all()
        for index, lane in enumerate(self._lanes):
            tail = LaneTail(lane, lane.first_at_or_after(last_confirmed + 1))
            self._tails.append(tail)
            for bookie_index in lane.indexes:
                commands.append(self._read(index, bookie_index))
        return commands

    def _read(self, lane_index: int, bookie_index: int) -> ReadEntries:
        """Ask a replica for all that it has of a lane, from the next entry on.

        With fencing, like the question for the LAC: a bookie that was not fenced then could
        deny an entry here and store it a moment later, as the AQ-th copy (rule P12,
        apache/bookkeeper #2614). The bookies are those of the metadata, not those put in since
        (rule P15).
        """
        tail = self._tails[lane_index]
        tail.on_asked(bookie_index)
        bookie_id = self._metadata.last_fragment.bookies[bookie_index]
        first = EntryId(tail.next_entry)
        return ReadEntries(
            bookie_index, lane_index, bookie_id, first, _FAR, tail.lane.stride, fence=True
        )

    def _on_entries(self, event: EntriesRead, now: float) -> list[Command]:
        if self._phase is not Phase.READING:
            return []
        tail = self._tails[event.lane]
        tail.on_entries(event.bookie_index)
        if event.last_entry < tail.next_entry or self._end is not None:
            # Another replica was faster. Or the end is decided: a copy that turns up behind it was
            # on fewer than AQ bookies when the others denied it, so nobody was promised it.
            return []
        first = EntryId(tail.next_entry)
        tail.on_found(event.last_entry)
        commands: list[Command] = [
            DeliverEntries(event.bookie_index, event.lane, first, event.last_entry)
        ]
        # Replicas that denied an earlier entry are asked about the new next one: a bookie that
        # lacks one entry may hold those behind it, and its denial was of that one only (rule P14).
        commands += [self._read(event.lane, index) for index in tail.idle_indexes()]
        return commands + self._write_back(now) + self._find_end(now)

    def _on_read_ended(self, event: ReadEnded, now: float) -> list[Command]:
        if self._phase is not Phase.READING:
            return []
        if self._tails[event.lane].on_ended(event) and self._end is None:
            return [self._read(event.lane, event.bookie_index)]
        return self._find_end(now)

    def _find_end(self, now: float) -> list[Command]:
        """The ledger ends before the first entry that was not written, in whichever lane.

        So the lane that has come least far decides, and only there a lack of answers matters. An
        entry behind the hole was never confirmed, because confirmation is in order (rule P4).
        """
        if self._end is not None:
            return self._end_if_complete()
        tail = min(self._tails, key=lambda tail: tail.next_entry)
        if not tail.is_settled(self._metadata):
            if tail.is_waiting or self._phase is Phase.ENDED:  # as what was found is not stored
                return []
            return self._failed(machine_errors.unknown_end(self._metadata, tail))
        self._end = tail.next_entry - 1
        assert self._end >= self._start, "What is known to be confirmed is never cut off."
        commands: list[Command] = [
            CancelRead(bookie_index, lane_index)
            for lane_index, tail in enumerate(self._tails)
            for bookie_index in tail.reading
        ]
        return commands + self._write_back(now) + self._end_if_complete()

    # -- writing back ------------------------------------------------------------------------------

    def _write_back(self, now: float) -> list[Command]:
        """Send what was found without a gap to its whole write set, with the recovery flag.

        All of it, also what AQ bookies may hold already: which ones do is not known, and the old
        writer may have counted a bookie that is gone now (rule P16).
        """
        assert self._replication is not None, "Nothing is found before reading begins."
        last = min(tail.next_entry for tail in self._tails) - 1
        if last <= self._replication.last_pushed:
            return []
        assert self._end is None or last == self._end, "Nothing behind the end is written back."
        return self._replication.push(last, now) + self._replace_failed(now)

    def _on_acknowledged(self, event: AddAcknowledged, now: float) -> list[Command]:
        if self._replication is None or self._phase is not Phase.READING:
            return []
        if not self._replication.acknowledge(
            event.bookie_index, event.bookie_id, event.last_entry, now
        ):
            return []
        return self._confirm()

    def _confirm(self) -> list[Command]:
        """Count what AQ bookies hold of what is written back (rule P16). Not while bookies are
        chosen, as in the writer: the new fragment will begin behind what is confirmed when they
        are installed (rule P7)."""
        if self._replication is None or self._replication.is_choosing:
            return []
        end = self._replication.confirmed_end()
        self._last_add_confirmed = max(self._last_add_confirmed, end)
        return self._end_if_complete()

    def _on_add_failed(self, event: AddFailed, now: float) -> list[Command]:
        if self._replication is None or self._phase is not Phase.READING:
            return []  # all is stored: only the metadata store has a say now
        excused = self._replication.excuse(event, now)
        if excused is not None:
            return excused
        # FENCED is an ordinary failure here: adds of a recovery pass the fence (rule P12), so a
        # bookie that answers so is broken, and the ledger's end does not depend on it. So is one
        # that refuses the password, which was compared with the metadata before (rule P20).
        if not self._replication.fail(event, now, self._add_timeout_s):
            return []
        return [CloseAppender(event.bookie_index), *self._replace_failed(now)]

    def _replace_failed(self, now: float) -> list[Command]:
        """Replace bookies that failed, if there is something to write to them (rule P9).

        A recovery does not wait for bookies to come back, as a writer may: when AQ of a write set
        are out of reach it fails, keeps the ledger unclosed, and can be started again.
        """
        replication = self._replication
        assert replication is not None, "Nobody fails to store before something is written back."
        if not self._may_choose(replication):
            return []
        if replication.failed_due(now):
            return [replication.choose(now)]
        if replication.can_confirm():
            return []
        return self._failed(machine_errors.not_stored(self._metadata, replication))

    def _on_chosen(self, event: BookiesChosen, now: float) -> list[Command]:
        replication = self._replication
        if replication is None or not replication.is_choosing:
            return []
        replacements, commands = replication.chosen(event, now, self._add_timeout_s)
        if replacements:
            # In memory only, until the closing compare-and-set (rule P16). Were the new ensemble
            # stored now and this client to die, the next recovery would ask bookies that have
            # nothing yet, and cut off entries that were confirmed (BOOKKEEPER-355).
            bookies = replace_bookies(replication.bookies, replacements)
            first = EntryId(self._last_add_confirmed + 1)
            self._fragments = with_ensemble(self._fragments, first, bookies)
            commands += replication.install(replacements, self._last_add_confirmed, now)
        if not replication.failed_due(now):
            commands += self._confirm()  # also what bookies stored before they failed
        return commands + self._replace_failed(now)

    # -- closing -----------------------------------------------------------------------------------

    def _end_if_complete(self) -> list[Command]:
        """Measure and close, once the end is known and all up to it is stored on AQ bookies."""
        if self._phase is not Phase.READING or self._end is None:
            return []
        if self._replication is None or self._replication.is_choosing:
            return []  # the closing write has to name the bookies that are being chosen
        if self._last_add_confirmed < self._end:
            return []
        assert self._last_add_confirmed == self._end, "Nothing behind the end is written back."
        if self._end < 0:
            return self._close(0)  # without entries, without bytes: there is nothing to ask
        self._enter(Phase.MEASURING)
        if self._end > self._start:
            return [TellLength(EntryId(self._end))]
        # Nothing was found, so the end was never read here. Its fragment may be an older one than
        # the last, which holds no entry if the writer changed its ensemble just before.
        return [ReadLength(entry_range(self._metadata, self._end))]

    def _on_length(self, event: LengthRead, now: float) -> list[Command]:
        if self._phase is Phase.PROVING:
            return self._on_proof(event, now)
        if self._phase is not Phase.MEASURING:
            return []
        return self._close(event.length)

    def _close(self, length: int) -> list[Command]:
        self._enter(Phase.CLOSING)
        self._length = length
        return [self._write(self._closed_value())]

    def _closed_value(self) -> LedgerMetadata:
        assert self._end is not None, "A ledger is closed at an end that is known."
        assert self._length is not None, "A ledger is closed with a length that is known."
        end, fragments = EntryId(self._end), self._fragments
        return closed(self._metadata, last_entry=end, length=self._length, fragments=fragments)

    # -- metadata answers, time --------------------------------------------------------------------

    def _on_written(self, metadata: LedgerMetadata, version: int) -> list[Command]:
        self._metadata, self._version = metadata, version
        if self._phase is Phase.MARKING:
            return self._fence()
        return self._ended(Done(metadata, version)) if self._phase is Phase.CLOSING else []

    def _on_conflict(self, event: MetadataConflict) -> list[Command]:
        if self._phase not in (Phase.MARKING, Phase.CLOSING):
            return []  # nothing was asked: reads keep to the metadata as they began (rule P15)
        stored = event.metadata
        old, self._metadata, self._version = self._metadata, stored, event.version
        if stored.is_closed:  # somebody else was faster; or it was us, and the reply was lost
            # Either way it is closed for good, and both recoveries found every confirmed entry:
            # the first close holds (rule P17).
            return self._ended(Done(stored, event.version))
        if self._phase is Phase.MARKING:
            return self.start()
        if stored.state is not LedgerState.IN_RECOVERY or stored.last_fragment != old.last_fragment:
            # What was read and written back belongs to another ensemble than the stored one.
            what = f"ledger {stored.ledger_id}: its ensemble changed during recovery"
            return self._failed(FencedError(f"{what}; open it again"))
        # Re-replication rewrote older fragments meanwhile: keep its work, add ours. The bookies
        # that it took out may be gone: writing them again would lose their entries (rule P6).
        ours = self._fragments[len(old.fragments) - 1 :]
        self._fragments = (*stored.fragments[:-1], *ours)
        return [self._write(self._closed_value())]

    def _on_tick(self, now: float) -> list[Command]:
        replication, silence_s = self._replication, self._add_timeout_s
        if replication is None or self._phase is not Phase.READING:
            return []
        commands = replication.resume(now)
        silent = {  # rule P11
            *replication.silent_indexes(now, silence_s),
            *replication.owing_indexes(now, STALLED_BOOKIES_WAIT_S),
        }
        commands += replication.fail_silent(silent, now, silence_s, 0.0)
        return commands + self._replace_failed(now)

    def _failed(self, error: LedgerError) -> list[Command]:
        return self._ended(Failed(error))

    def _ended(self, outcome: Done | Failed) -> list[Command]:
        self._enter(Phase.ENDED)
        closing: list[Command] = self._replication.close_all() if self._replication else []
        for lane_index, tail in enumerate(self._tails):
            closing += [CancelRead(bookie_index, lane_index) for bookie_index in tail.reading]
        return [*closing, outcome]
