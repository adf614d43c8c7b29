"""Reading a lane of entries: replica order, failover, speculation, and what a failure means.

One machine reads ``first, first + stride, ...`` up to ``last`` of one fragment and one write set.
Replicas stream; the machine takes each entry from whoever brings it first and asks the next
replica when one ends early, fails or stays silent for too long. An entry is missing only if every
replica said so; a damaged or unreachable replica leaves open that it exists (DESIGN 5.9).
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
)
from spark_ledger.protocol.events import (
    CancelRead,
    Command,
    DeliverEntries,
    Done,
    EntriesRead,
    Event,
    Failed,
    ReadEnded,
    ReadEntries,
    Tick,
)
from spark_ledger.protocol.quorum import Lane
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerMetadata


class ReadMachine:
    """Reads one lane of one fragment.

    ``order`` lists the lane's indexes, preferred first. ``handle`` returns ``Done`` after the last
    entry was delivered, or ``Failed``. ``slow_indexes`` were overtaken by speculation: callers put
    their bookies to the back of later orders.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        bookies: Sequence[BookieId],
        lane_index: int,
        lane: Lane,
        first: EntryId,
        last: EntryId,
        *,
        order: Sequence[int],
        speculative_delay_s: float,
        now: float,
    ) -> None:
        assert sorted(order) == sorted(lane.indexes), "the order names every replica once"
        assert lane.first_at_or_after(first) == first, "the first entry is one of the lane"
        self._metadata, self._version = metadata, version
        self._bookies = bookies
        self._lane_index, self._lane = lane_index, lane
        self._next, self._last = int(first), int(last)
        self._waiting = list(order)
        self._reading: dict[int, int] = {}
        """Slots that were asked and have not ended, with the next entry each will bring."""
        self._asked_for: dict[int, int] = {}
        """The entry that each of them was asked to begin with."""
        self._problems: dict[int, ReadEnded] = {}
        """Why replicas could not bring the entry that is next."""
        self._speculative_delay_s = speculative_delay_s
        self._progress_at = now
        self._finished = False
        self.slow_indexes: set[int] = set()

    def start(self, now: float) -> list[Command]:
        """Ask the preferred replica."""
        return self._ask_next(now)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in one event; the commands to perform, in order."""
        if self._finished:
            return []
        match event:
            case EntriesRead():
                return self._on_entries(event, now)
            case ReadEnded():
                return self._on_ended(event, now)
            case Tick():
                return self._on_tick(now)
            case _:
                raise AssertionError(f"not an event of a reader: {event!r}")

    def _on_entries(self, event: EntriesRead, now: float) -> list[Command]:
        if event.bookie_index not in self._reading:
            return []
        stride = self._lane.stride
        self._reading[event.bookie_index] = event.last_entry + stride
        if event.last_entry < self._next:
            return []
        first, self._next = self._next, event.last_entry + stride
        self._progress_at = now
        self._problems.clear()
        lane = self._lane_index
        commands: list[Command] = [
            DeliverEntries(event.bookie_index, lane, EntryId(first), event.last_entry)
        ]
        if self._next > self._last:
            return commands + self._finish(Done(self._metadata, self._version))
        for bookie_index in [s for s in self._reading if s != event.bookie_index]:
            # Speculation is over: the faster one goes on alone.
            self._retire(bookie_index)
            self.slow_indexes.add(bookie_index)
            commands.append(CancelRead(bookie_index, lane))
        return commands

    def _on_ended(self, event: ReadEnded, now: float) -> list[Command]:
        if event.bookie_index not in self._reading:
            return []
        brought_up_to = self._reading[event.bookie_index]
        self._retire(event.bookie_index)
        came_to_nothing = brought_up_to == self._asked_for[event.bookie_index]
        if event.status is BookieStatus.OK and not came_to_nothing:
            self._waiting.remove(event.bookie_index)
            self._waiting.insert(0, event.bookie_index)  # the byte cap: the same replica goes on
        elif brought_up_to >= self._next:
            self._problems[event.bookie_index] = event
        if self._reading:
            return []  # another replica is at work on it
        return self._ask_next(now)

    def _on_tick(self, now: float) -> list[Command]:
        if now - self._progress_at < self._speculative_delay_s:
            return []
        self.slow_indexes.update(self._reading)
        self._progress_at = now
        return self._ask_next(now) if self._candidates() else []

    def _candidates(self) -> list[int]:
        return [index for index in self._waiting if index not in self._problems]

    def _ask_next(self, now: float) -> list[Command]:
        candidates = self._candidates()
        if not candidates:
            return self._finish(Failed(self._failure()))
        bookie_index = candidates[0]
        self._waiting.remove(bookie_index)
        self._reading[bookie_index] = self._asked_for[bookie_index] = self._next
        self._progress_at = now
        return [
            ReadEntries(
                bookie_index,
                self._lane_index,
                self._bookies[bookie_index],
                EntryId(self._next),
                EntryId(self._last),
                self._lane.stride,
                fence=False,
            )
        ]

    def _retire(self, bookie_index: int) -> None:
        del self._reading[bookie_index]
        self._waiting.append(bookie_index)

    def _finish(self, outcome: Done | Failed) -> list[Command]:
        self._finished = True
        cancelled = [CancelRead(index, self._lane_index) for index in self._reading]

        return [*cancelled, outcome]

    def _failure(self) -> LedgerError:
        """Missing only if all say so. Damaged only if nobody else may have it: a replica that was
        not reached may bring it when it is asked again, so it decides what the error is."""
        name = f"ledger {self._metadata.ledger_id} entry {self._next}"
        problems = list(self._problems.values())
        told = ", ".join(
            f"{self._bookies[p.bookie_index]}: {p.status.name.lower()} {p.message}".strip()
            for p in problems
        )
        if all(p.status.is_negative for p in problems):
            return NoSuchEntryError(f"{name}: no bookie holds it ({told})")
        damaged = [p for p in problems if p.status is BookieStatus.IO_ERROR]
        if all(p.status.is_negative or p in damaged for p in problems):
            return DigestMismatchError(f"{name}: no intact copy could be read ({told})")
        also = (
            f"; the copy of {self._bookies[damaged[0].bookie_index]} is damaged" if damaged else ""
        )
        return BookieUnavailableError(f"{name}: no replica could be read ({told}){also}")
