"""Reading a lane of entries: replica order, failover, speculation, and what a failure means.

One machine reads ``first, first + stride, ...`` up to ``last`` of one fragment and one write set.
Replicas stream; the machine takes each entry from whoever brings it first and asks the next
replica when one ends early, fails or stays silent for too long. An entry is missing only if every
replica said so; a damaged or unreachable replica leaves open that it exists (rule P19).
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
)
from spark_ledger.limits.client import BUSY_PAUSE_S, BUSY_PAUSE_S_MAX, READ_TIMEOUT_S
from spark_ledger.protocol.ensemble import LaneRange
from spark_ledger.protocol.events import (
    CancelRead,
    Command,
    ConsumerReady,
    DeliverEntries,
    Done,
    EntriesRead,
    Event,
    Failed,
    ReadEnded,
    ReadEntries,
    Tick,
)
from spark_ledger.protocol.read_phases import TRANSITIONS, Phase
from spark_ledger.types import BookieStatus, EntryId, LedgerMetadata, Versioned


class ReadMachine:
    """Reads one lane of one fragment.

    ``order`` lists the lane's indexes, preferred first. ``handle`` returns ``Done`` after the last
    entry was delivered, or ``Failed``. ``slow_indexes`` were overtaken by speculation: callers put
    their bookies to the back of later orders.

    Every replica is either asked or waits, and with n the next entry to deliver:

        READING      =>  one replica is asked
        SPECULATING  =>  several are
        WAITING      =>  none is: each has said why not, and some only that they are busy
        n grows, and nothing below it is delivered again
        a replica in ``_problems`` could not bring n; it is not asked again before n is delivered,
        unless it was only busy, nobody else is left to ask, and who is asked is late
    """

    def __init__(
        self,
        ledger: Versioned[LedgerMetadata],
        wanted: LaneRange,
        *,
        order: Sequence[int],
        speculative_delay_s: float,
        now: float,
        busy_wait_s: float = READ_TIMEOUT_S,
        jitter: float = 0.0,
    ) -> None:
        """``busy_wait_s`` bounds how long busy replicas are waited for from when the first says so;
        ``jitter``, from 0 to 1, is this reader's share of randomness in when it asks them again.
        """
        lane, first = wanted.lane, wanted.first
        assert sorted(order) == sorted(lane.indexes), "The order names every replica once."
        assert lane.first_at_or_after(first) == first, "The first entry is one of the lane."
        assert first <= wanted.last, "A range has an entry."
        self._ledger = ledger
        self._wanted = wanted
        self._phase = Phase.READING
        self._event: Event | None = None
        """What is being handled: the table says where it may lead."""
        self._next = int(first)
        self._waiting = list(order)
        self._reading: dict[int, int] = {}
        """Indexes that were asked and have not ended, with the next entry each will bring."""
        self._asked_for: dict[int, int] = {}
        """The entry that each of them was asked to begin with."""
        self._problems: dict[int, ReadEnded] = {}
        """Why replicas could not bring the entry that is next."""
        self._speculative_delay_s = speculative_delay_s
        self._progress_at = now
        """When the last replica was asked, or brought something."""
        self._busy_wait_s = busy_wait_s
        self._busy_since: float | None = None
        """When a replica first said that it is too busy to bring the entry that is next."""
        self._pause_s = BUSY_PAUSE_S * (0.5 + jitter)
        self._first_pause_s = self._pause_s
        self._ask_again_at: float | None = None
        """When the busy replicas may be asked again; None if none is, or they had their time."""
        self._slow_indexes: set[int] = set()

    @property
    def phase(self) -> Phase:
        """What the reader is doing."""
        return self._phase

    @property
    def slow_indexes(self) -> frozenset[int]:
        """Replicas that were too slow: another one was asked beside them, or was faster."""
        return frozenset(self._slow_indexes)

    @property
    def next_deadline(self) -> float | None:
        """The earliest time at which a tick may change something; None if none will."""
        if self._phase is Phase.ENDED:
            return None
        if self._phase is Phase.WAITING:
            return self._ask_again_at
        return self._progress_at + self._speculative_delay_s

    def start(self, now: float) -> list[Command]:
        """Ask the preferred replica."""
        return self._ask_next(now)

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
            case EntriesRead():
                return self._on_entries(event, now)
            case ReadEnded():
                return self._on_ended(event, now)
            case Tick():
                return self._on_tick(now)
            case ConsumerReady():
                self._progress_at = now
                return []
            case _:
                raise AssertionError(f"not an event of a reader: {event!r}")

    def _enter(self, phase: Phase) -> None:
        changes = TRANSITIONS[self._phase]
        assert phase in changes, f"A reader goes from {self._phase} to {phase}."
        assert type(self._event) in changes[phase], f"{self._event!r} leads to {phase}."
        self._phase = phase

    def _settle(self) -> None:
        """Keep the phase true to the number of replicas that are asked."""
        assert self._reading, "A reader that has not ended waits for a replica."
        assert self._reading.keys().isdisjoint(self._waiting), "A replica is asked or waits."
        assert len(self._reading) + len(self._waiting) == len(self._wanted.lane.indexes), (
            "No replica is forgotten: an entry is missing only if all of them say so (rule P19)."
        )
        phase = Phase.SPECULATING if len(self._reading) > 1 else Phase.READING
        if phase is not self._phase:
            self._enter(phase)

    def _on_entries(self, event: EntriesRead, now: float) -> list[Command]:
        if event.bookie_index not in self._reading:
            return []  # it was overtaken, and its cancellation was on the way
        stride, lane_index = self._wanted.lane.stride, self._wanted.lane_index
        self._reading[event.bookie_index] = event.last_entry + stride
        if event.last_entry < self._next:
            return []  # a faster replica has brought them already
        assert event.last_entry <= self._wanted.last, "A replica brings what it was asked for."
        assert (event.last_entry - self._next) % stride == 0, "A lane has every E-th entry only."
        first, self._next = self._next, event.last_entry + stride
        self._progress_at = now
        self._problems.clear()  # they were about an entry that is delivered now
        self._busy_since = self._ask_again_at = None
        self._pause_s = self._first_pause_s
        commands: list[Command] = [
            DeliverEntries(event.bookie_index, lane_index, EntryId(first), event.last_entry)
        ]
        if self._next > self._wanted.last:
            return commands + self._finish(Done(self._ledger.value, self._ledger.version))
        for index in [i for i in self._reading if i != event.bookie_index]:
            # Speculation is over: the faster one goes on alone, or every entry of the rest of the
            # range would be read from two bookies.
            self._retire(index)
            self._slow_indexes.add(index)
            commands.append(CancelRead(index, lane_index))
        self._settle()
        return commands

    def _on_ended(self, event: ReadEnded, now: float) -> list[Command]:
        index = event.bookie_index
        if index not in self._reading:
            return []
        brought_up_to = self._reading[index]
        self._retire(index)
        without_progress = brought_up_to == self._asked_for[index]
        if event.status is BookieStatus.OK and not without_progress:
            self._waiting.remove(index)
            self._waiting.insert(0, index)  # the byte cap: the same replica goes on
        elif brought_up_to >= self._next:
            # An end without progress counts as a problem even if it is called OK: a bookie that
            # answers and brings nothing would be asked for ever.
            self._problems[index] = event
            if event.status is BookieStatus.TOO_MANY_REQUESTS:
                self._on_busy(now)
        if self._reading:
            self._settle()
            return []  # another replica is at work on it
        return self._ask_next(now)

    def _on_busy(self, now: float) -> None:
        """To fail now would blame a bookie that works; to ask at once would keep it busy."""
        if self._busy_since is None:
            self._busy_since = now
        had_its_time = now - self._busy_since >= self._busy_wait_s
        self._ask_again_at = None if had_its_time else now + self._pause_s

    def _on_tick(self, now: float) -> list[Command]:
        if self._phase is not Phase.WAITING:
            if now - self._progress_at < self._speculative_delay_s:
                return []
            # The silent replica is not given up: it may be the only one that has the entry. The
            # next one is asked beside it, and whoever brings the entry first goes on (rule P19).
            self._slow_indexes.update(self._reading)
            self._progress_at = now
        is_due = self._ask_again_at is not None and now >= self._ask_again_at
        if is_due and not self._candidates():
            busy = BookieStatus.TOO_MANY_REQUESTS
            self._problems = {i: p for i, p in self._problems.items() if p.status is not busy}
            self._ask_again_at = None
            self._pause_s = min(2 * self._pause_s, BUSY_PAUSE_S_MAX)
        return self._ask_next(now) if self._candidates() else []

    def _candidates(self) -> list[int]:
        """Replicas that are not asked now and have not said why they cannot bring the next entry.

        One that failed at an earlier entry is among them: it may well hold this one (rule P19).
        """
        return [index for index in self._waiting if index not in self._problems]

    def _ask_next(self, now: float) -> list[Command]:
        candidates = self._candidates()
        if not candidates and self._ask_again_at is not None:
            self._enter(Phase.WAITING)
            return []
        if not candidates:
            return self._finish(Failed(self._failure()))
        index = candidates[0]
        self._waiting.remove(index)
        self._reading[index] = self._asked_for[index] = self._next
        self._progress_at = now
        self._settle()
        return [
            ReadEntries(
                index,
                self._wanted.lane_index,
                self._wanted.bookies[index],
                EntryId(self._next),
                self._wanted.last,
                self._wanted.lane.stride,
                fence=False,  # a reader never stops a writer (rule P12)
            )
        ]

    def _retire(self, index: int) -> None:
        """The replica is not asked any more; it waits behind the others."""
        del self._reading[index]
        self._waiting.append(index)

    def _finish(self, outcome: Done | Failed) -> list[Command]:
        self._enter(Phase.ENDED)
        cancelled = [CancelRead(index, self._wanted.lane_index) for index in self._reading]
        return [*cancelled, outcome]

    def _failure(self) -> LedgerError:
        """Missing only if all say so (rule P19). Damaged only if nobody else may have it: a replica
        that was not reached may bring it when it is asked again, so it decides what the error is.
        """
        problems = list(self._problems.values())
        assert len(problems) == len(self._wanted.lane.indexes), "Every replica was asked."
        bookies = self._wanted.bookies
        name = f"ledger {self._ledger.value.ledger_id} entry {self._next}"
        reasons = ", ".join(
            f"{bookies[p.bookie_index]}: {p.status.name.lower()} {p.message}".strip()
            for p in problems
        )
        if all(p.status.is_denial for p in problems):
            return NoSuchEntryError(f"{name}: no bookie holds it ({reasons})")
        damaged = [p for p in problems if p.status is BookieStatus.IO_ERROR]
        if all(p.status.is_denial or p in damaged for p in problems):
            return DigestMismatchError(f"{name}: no intact copy could be read ({reasons})")
        also = f"; the copy of {bookies[damaged[0].bookie_index]} is damaged" if damaged else ""
        return BookieUnavailableError(f"{name}: no replica could be read ({reasons}){also}")
