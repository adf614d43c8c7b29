"""Clients that open a ledger: one that recovers it, one that only reads."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ledger.errors import BookieUnavailableError, LedgerError
from spark_ledger.protocol.ensemble import LaneRange, fragment_ranges, lane_ranges
from spark_ledger.protocol.events import (
    CancelRead,
    Command,
    DeliverEntries,
    Done,
    Failed,
    LastConfirmedAnswer,
    LengthRead,
    LengthUnknown,
    ReadEntries,
    ReadLength,
    TellLength,
    Tick,
)
from spark_ledger.protocol.last_confirmed import LastConfirmedRead, LongPoll
from spark_ledger.protocol.placement import read_order
from spark_ledger.protocol.quorum import lanes
from spark_ledger.protocol.read import ReadMachine
from spark_ledger.protocol.recovery import RecoveryMachine
from spark_ledger.protocol.recovery_phases import Phase
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, Versioned
from tests.scenarios.clients import Client
from tests.scenarios.stores import Stored
from tests.scenarios.world import Message, World, metadata_text, ranges_text


class Recoverer(Client):
    """Runs a ``RecoveryMachine``."""

    recovery = True
    hears_late_reads = True
    machine: RecoveryMachine

    def __init__(self, world: World, name: str, *, password: str = "") -> None:
        super().__init__(world, name, password=password)
        store = world.metadata
        self.machine = RecoveryMachine(store.value, store.version, now=world.now)
        self.outcome: Done | Failed | None = None
        self._found: dict[int, Stored] = {}
        self.perform(self.machine.start())

    def frames(self) -> Mapping[int, Stored]:
        return self._found

    def perform_one(self, command: Command) -> None:
        match command:
            case DeliverEntries():
                stride = lanes(self.machine.metadata.quorums)[command.lane].stride
                read = self.reads[command.bookie_index, command.lane]
                for entry_id in range(command.first, command.last + 1, stride):
                    self._found[entry_id] = read.entries[entry_id]
            case ReadLength():
                wanted = command.wanted
                bookies = [wanted.bookies[index] for index in wanted.lane.indexes]
                self._ask_length(wanted.first, bookies)
            case TellLength():
                self.take(LengthRead(self._found[command.entry_id].length, NO_ENTRY))
            case Done() | Failed():
                assert self.outcome is None, "a recovery ends once"
                self.outcome = command
                self.world.say(f"{self.name} {self._told()}")
            case _:
                super().perform_one(command)

    def _ask_length(self, entry_id: int, bookies: list[BookieId]) -> None:
        if not bookies:
            self.take(LengthUnknown(BookieUnavailableError(f"entry {entry_id} cannot be read")))
            return
        first, rest = bookies[0], bookies[1:]

        def serve() -> None:
            found = self.world.bookies[first].read(
                entry_id, entry_id, 1, fence=False, password=self.password
            )
            if found.status is not BookieStatus.OK:
                self._ask_length(entry_id, rest)
                return
            stored = found.entries[0][1]
            event = LengthRead(stored.length, EntryId(stored.last_add_confirmed))
            self.world.send(
                Message(
                    first,
                    self.name,
                    f"{self.name}:length answers",
                    f"{entry_id} carries length {event.length}, last add confirmed "
                    f"{event.last_add_confirmed}",
                    lambda: self.take(event),
                    lambda: self._ask_length(entry_id, rest),
                )
            )

        self.message(
            first,
            "length",
            f"read what {entry_id} carries",
            serve,
            lambda: self._ask_length(entry_id, rest),
        )

    def _told(self) -> str:
        if isinstance(self.outcome, Done):
            return f"opened the ledger: {metadata_text(self.outcome.metadata)}"
        assert self.outcome is not None
        return f"cannot recover: {type(self.outcome.error).__name__}: {self.outcome.error}"

    def state(self) -> str:
        if self.outcome is not None:
            return f"{self.name}: ended"
        machine = self.machine
        found = "" if machine.phase is Phase.MARKING else f", found {ranges_text(self._found)}"
        return (
            f"{self.name}: {machine.phase.name.lower()}, last add confirmed "
            f"{machine.last_add_confirmed}{found}"
        )


class Reader(Client):
    """Opens without recovery, learns the LAC, reads ranges. Never changes anything."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.last_add_confirmed = -1
        self.delivered: list[int] = []
        self.slow: set[BookieId] = set()
        self.error: LedgerError | None = None
        self._round: LastConfirmedRead | None = None
        self._machines: dict[tuple[int, int], ReadMachine] = {}
        self._got: dict[int, Stored] = {}
        self._wanted = range(0)
        self._polls = 0

    # -- last add confirmed ------------------------------------------------------------------------

    def refresh(self) -> None:
        """Learn the LAC, from metadata if the ledger is closed."""
        metadata = self.world.metadata.value
        self.error = None
        if metadata.is_closed:
            self.learn(metadata.last_entry_id)
            return
        self._round = LastConfirmedRead(metadata, fence=False)
        self.machine = _Round(self, self._round)
        self.perform(self._round.start())

    def learn(self, last_confirmed: int) -> None:
        self.last_add_confirmed = max(self.last_add_confirmed, last_confirmed)
        self.world.say(f"{self.name} knows last add confirmed {self.last_add_confirmed}")

    def round_over(self) -> None:
        assert self._round is not None
        if self._round.error is not None:
            self.error = self._round.error
            self.world.say(
                f"{self.name} cannot tell the end: {type(self.error).__name__}: {self.error}"
            )
        elif self._round.result is not None:
            self.learn(self._round.result)

    def poll(self) -> None:
        """One round of a tail: does any bookie know a LAC above ours? Rounds may overlap."""
        round_ = LongPoll(self.world.metadata.value, EntryId(self.last_add_confirmed))
        self._polls += 1
        poll = _Poll(self, round_, self._polls)
        for index, bookie_id in enumerate(self.world.metadata.value.last_fragment.bookies):
            poll.ask(index, bookie_id)

    # -- entries -----------------------------------------------------------------------------------

    def read(self, first: int, last: int) -> None:
        """Read a range, one fragment and lane after the other."""
        self.error = None
        self._wanted = range(first, last + 1)
        self._got = {}
        metadata = self.world.metadata.value
        self._todo = [
            wanted
            for low, high, fragment in fragment_ranges(metadata, first, last)
            for wanted in lane_ranges(metadata, fragment, low, high)
        ]
        self._next_lane()

    def _next_lane(self) -> None:
        if self._todo:
            self._start_lane(self._todo.pop(0))
            return
        self.machine = None
        self._finish()

    def _start_lane(self, wanted: LaneRange) -> None:
        store = self.world.metadata
        indexes, bookies, first = wanted.lane.indexes, wanted.bookies, wanted.first
        gone = [b for b in bookies if b not in self.world.registered]
        last = wanted.last - (wanted.last - first) % wanted.lane.stride
        self._lane_machine = ReadMachine(
            Versioned(store.value, store.version),
            wanted._replace(last=EntryId(last)),
            order=read_order(indexes, bookies, first, slow=self.slow, gone=gone),
            speculative_delay_s=0.5,
            now=self.world.now,
        )
        self._lane_bookies = bookies
        self.machine = self._lane_machine
        self.perform(self._lane_machine.start(self.world.now))

    def perform_one(self, command: Command) -> None:
        match command:
            case DeliverEntries():
                stride = lanes(self.world.metadata.value.quorums)[command.lane].stride
                read = self.reads[command.bookie_index, command.lane]
                for entry_id in range(command.first, command.last + 1, stride):
                    self._got[entry_id] = read.entries[entry_id]
            case Done():
                self._note_slow()
                self._next_lane()
            case Failed():
                self._note_slow()
                self.error, self.machine, self._todo = command.error, None, []
                name = type(command.error).__name__
                self.world.say(f"{self.name} fails: {name}: {command.error}")
            case ReadEntries() | CancelRead():
                super().perform_one(command)
            case _:
                super().perform_one(command)

    def _note_slow(self) -> None:
        slow = {self._lane_bookies[index] for index in self._lane_machine.slow_indexes}

        for bookie in sorted(slow - self.slow):
            self.world.say(f"{self.name} puts {bookie} behind the others: it was slow")
        self.slow |= slow

    def _finish(self) -> None:
        assert sorted(self._got) == list(self._wanted), "a read brings all that it was asked for"
        for entry_id in self._wanted:
            self._check(entry_id, self._got[entry_id])
        self.delivered.extend(self._wanted)
        self.world.say(f"{self.name} has read {ranges_text(self._wanted)}")

    def _check(self, entry_id: int, stored: Stored) -> None:
        world = self.world
        if stored != world.written.get(entry_id):
            world.faults.append(f"I4: {self.name} read something else as entry {entry_id}")
        closed = world.metadata.value
        proved = closed.last_entry_id if closed.is_closed else -1
        if entry_id > max(world.confirmed, proved):
            world.faults.append(f"I5: {self.name} read entry {entry_id}, which is not confirmed")

    def state(self) -> str:
        return ""


class _Round:
    """Lets a round of questions for the LAC be driven like a machine."""

    next_deadline: float | None = None

    def __init__(self, reader: Reader, round_: LastConfirmedRead) -> None:
        self._reader, self._round = reader, round_

    def handle(self, event: object, now: float) -> list[Command]:
        if isinstance(event, Tick):
            if self._round.result is None and self._round.is_covered:
                self._round.give_up()
                self._reader.round_over()
            return []
        assert isinstance(event, LastConfirmedAnswer)
        if self._round.answer(event):
            self._reader.round_over()
        return []


class _Poll:
    """A round of held questions. A bookie's deadline passes as soon as it is asked."""

    def __init__(self, reader: Reader, round_: LongPoll, number: int) -> None:
        self._reader, self._round, self._number = reader, round_, number
        self._over = False

    def ask(self, index: int, bookie_id: BookieId) -> None:
        self._reader.message(
            bookie_id,
            f"poll {self._number} {bookie_id}",
            f"anything above {self._reader.last_add_confirmed}?",
            lambda: self._serve(index, bookie_id),
            lambda: self._answered(index, BookieStatus.TIMEOUT, -1),
        )

    def _serve(self, index: int, bookie_id: BookieId) -> None:
        reader = self._reader
        bookie = reader.world.bookies[bookie_id]
        status, last = bookie.read_last_confirmed(fence=False, password=reader.password)
        told = status.name.lower().replace("_", " ")
        reader.world.send(
            Message(
                bookie_id,
                reader.name,
                f"{reader.name}:poll {self._number} {bookie_id} answers",
                f"last add confirmed {last}" if status is BookieStatus.OK else told,
                lambda: self._answered(index, status, last),
                lambda: self._answered(index, BookieStatus.TIMEOUT, -1),
            )
        )

    def _answered(self, index: int, status: BookieStatus, last: int) -> None:
        if self._over:
            return
        self._over = self._round.answer(index, status, EntryId(last))
        if self._over:
            self._reader.learn(self._round.newest)
