"""Clients whose every step is a function of their own state and one event, nothing else.

A ``Shell`` holds a real machine and the little that a client keeps beside it: open appenders and
reads, entries found. ``Clients`` numbers all shells that were ever met and remembers their steps,
so each step of a machine is computed once however many schedules lead to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.events import (
    CancelRead,
    ChooseBookies,
    Close,
    CloseAppender,
    Command,
    ConfirmEntries,
    DeliverEntries,
    Done,
    EntriesRead,
    Event,
    Failed,
    FailEntries,
    LastConfirmedAnswer,
    LengthRead,
    OpenAppender,
    ReadEnded,
    ReadEntries,
    ReadLastConfirmed,
    ReadLength,
    ReadMetadata,
    SendEntries,
    TellLength,
    WriteMetadata,
)
from spark_ledger.protocol.last_confirmed import LastConfirmedRead
from spark_ledger.protocol.quorum import entries_of_index, lanes
from spark_ledger.protocol.recovery import RecoveryMachine
from spark_ledger.protocol.recovery_phases import Phase
from spark_ledger.types import NO_ENTRY, BookieId, LedgerMetadata, Quorums
from tests.exhaustive.values import Interned, clone, freeze

ENTRY_BYTES = 10
"""Payload of every entry; so the length of a ledger follows from its end."""


class Channel(NamedTuple):
    """Messages of one channel keep their order; each has one for requests and one for answers."""

    kind: str
    client: int
    bookie_index: int = 0
    lane: int = 0
    number: int = 0


class Store(NamedTuple):
    """Entries for a bookie."""

    bookie_id: BookieId
    entry_ids: tuple[int, ...]
    recovery: bool


class AskLast(NamedTuple):
    """A question for the last add confirmed."""

    bookie_id: BookieId
    bookie_index: int
    fence: bool


class Read(NamedTuple):
    """A question for entries ``first, first + stride, ...``"""

    bookie_id: BookieId
    bookie_index: int
    lane: int
    first: int
    stride: int
    fence: bool


class AskLength(NamedTuple):
    """A question for the length at an entry, to the first of these bookies that has it."""

    bookies: tuple[BookieId, ...]
    entry_id: int


class Choose(NamedTuple):
    """A question for replacements; ``avoided`` bookies come last."""

    indexes: tuple[int, ...]
    members: frozenset[BookieId]
    failed: tuple[tuple[int, BookieId], ...]
    avoided: frozenset[BookieId]


class Look(NamedTuple):
    """A question for the metadata."""


class CompareAndSet(NamedTuple):
    """A change of the metadata."""

    metadata: LedgerMetadata
    version: int


Request = Store | AskLast | Read | AskLength | Choose | Look | CompareAndSet


class Step(NamedTuple):
    """What one event did to a client."""

    client: int
    sent: tuple[tuple[Channel, Request], ...]
    confirmed: int
    """The highest entry that the application was told is confirmed; -1 if it was told nothing."""
    problem: str
    """What the client did that no client may do; "" if all is well."""


class Reading(NamedTuple):
    """A read under way: the how manyth of its index and lane, and what it has brought so far."""

    number: int
    first: int
    brought_to: int


@dataclass
class Shell:
    """One client."""

    index: int
    machine: AppendMachine | RecoveryMachine | LastConfirmedRead
    lanes: dict[int, tuple[BookieId, int]] = field(default_factory=dict)
    """Open appenders: index to bookie and the number of the appender there."""
    opened: dict[int, int] = field(default_factory=dict)
    reads: dict[tuple[int, int], Reading] = field(default_factory=dict)
    """Reads under way, by index and lane."""
    asked: dict[tuple[int, int], int] = field(default_factory=dict)
    found: set[int] = field(default_factory=set)
    failed_before: frozenset[BookieId] = frozenset()
    told: int = -1
    """The last entry of which the application was told that it is confirmed, or failed."""
    outcome: str = ""
    closing: bool = False

    def copy(self) -> Shell:
        return Shell(
            self.index,
            clone(self.machine),
            dict(self.lanes),
            dict(self.opened),
            dict(self.reads),
            dict(self.asked),
            set(self.found),
            self.failed_before,
            self.told,
            self.outcome,
            self.closing,
        )

    def fingerprint(self) -> Hashable:
        return (
            self.index,
            freeze(self.machine),
            tuple(sorted(self.lanes.items())),
            tuple(sorted(self.opened.items())),
            tuple(sorted(self.reads.items())),
            tuple(sorted(self.asked.items())),
            frozenset(self.found),
            self.failed_before,
            self.told,
            self.outcome,
            self.closing,
        )

    def listens(self, channel: Channel) -> bool:
        """Whether an answer on this channel still reaches the machine."""
        if channel.kind == "store":
            lane = self.lanes.get(channel.bookie_index)
            return lane is not None and lane[1] == channel.number
        if channel.kind == "read":
            reading = self.reads.get((channel.bookie_index, channel.lane))
            return reading is not None and reading.number == channel.number
        if channel.kind == "last" and isinstance(self.machine, RecoveryMachine):
            return self.machine.phase is Phase.FENCING
        return not self.outcome

    @property
    def takes_entries(self) -> bool:
        """Whether an application could add now."""
        machine = self.machine
        return isinstance(machine, AppendMachine) and machine.error is None and not self.closing

    @property
    def is_pending(self) -> bool:
        """Whether an application waits for the outcome of something."""
        if isinstance(self.machine, AppendMachine):
            waits = self.told < self.machine.last_add_pushed
            return waits or (self.closing and not self.outcome)
        return not self.outcome


class _Run:
    """One event at one shell: performs the machine's commands, collects what leaves the client."""

    def __init__(self, shell: Shell, quorums: Quorums) -> None:
        self.shell, self.quorums = shell, quorums
        self.sent: list[tuple[Channel, Request]] = []
        self.confirmed = -1

    def take(self, event: Event) -> None:
        machine = self.shell.machine
        if isinstance(machine, LastConfirmedRead):
            assert isinstance(event, LastConfirmedAnswer)
            if machine.answer(event):
                self.shell.outcome = "failed" if machine.result is None else f"{machine.result}"
            return
        self.perform(machine.handle(event, 0.0))

    def perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self._perform(command)

    def _send(
        self, kind: str, request: Request, bookie_index: int = 0, lane: int = 0, number: int = 0
    ) -> None:
        self.sent.append((Channel(kind, self.shell.index, bookie_index, lane, number), request))

    def _perform(self, command: Command) -> None:
        shell = self.shell
        match command:
            case OpenAppender():
                number = shell.opened[command.bookie_index] = (
                    shell.opened.get(command.bookie_index, -1) + 1
                )
                shell.lanes[command.bookie_index] = (command.bookie_id, number)
            case CloseAppender():
                shell.lanes.pop(command.bookie_index, None)
            case SendEntries():
                self._store(command)
            case ReadLastConfirmed():
                ask = AskLast(command.bookie_id, command.bookie_index, command.fence)
                self._send("last", ask, command.bookie_index)
            case ReadEntries():
                self._read(command)
            case CancelRead():
                shell.reads.pop((command.bookie_index, command.lane), None)
            case DeliverEntries():
                self._deliver(command)
            case ReadLength():
                wanted = command.wanted
                bookies = tuple(wanted.bookies[index] for index in wanted.lane.indexes)
                self._send("length", AskLength(bookies, wanted.first))
            case TellLength():
                assert command.entry_id in shell.found, "Only of what was found a length is known."
                self.take(LengthRead(ENTRY_BYTES * (command.entry_id + 1), NO_ENTRY))
            case WriteMetadata():
                self._send("metadata", CompareAndSet(command.metadata, command.version))
            case ReadMetadata():
                self._send("look", Look())
            case ChooseBookies():
                shell.failed_before |= frozenset(command.failed.values())
                failed = tuple(command.failed.items())
                avoided = shell.failed_before
                self._send("choose", Choose(command.indexes, command.excluded, failed, avoided))
            case _:
                self._tell(command)

    def _tell(self, command: Command) -> None:
        shell, machine = self.shell, self.shell.machine
        match command:
            case ConfirmEntries():
                assert command.last > shell.told, "an entry is told of once, and in order"
                shell.told = self.confirmed = command.last
            case FailEntries():
                assert isinstance(machine, AppendMachine)
                shell.told = machine.last_add_pushed
            case Done() | Failed():
                assert not shell.outcome, "a client ends once"
                shell.outcome = "done" if isinstance(command, Done) else "failed"
            case _:
                raise AssertionError(f"a client cannot perform {command!r}")

    def _store(self, command: SendEntries) -> None:
        assert command.bookie_index in self.shell.lanes, "entries leave through open appenders only"
        bookie_id, number = self.shell.lanes[command.bookie_index]
        ids = tuple(
            entries_of_index(command.bookie_index, command.first, command.last, self.quorums)
        )
        recovery = isinstance(self.shell.machine, RecoveryMachine)
        assert not recovery or self.shell.found.issuperset(ids), "only what was found is stored"
        self._send("store", Store(bookie_id, ids, recovery), command.bookie_index, 0, number)

    def _read(self, command: ReadEntries) -> None:
        shell, key = self.shell, (command.bookie_index, command.lane)
        number = shell.asked[key] = shell.asked.get(key, -1) + 1
        first, stride = command.first, command.stride
        shell.reads[key] = Reading(number, first, first - 1)
        read = Read(
            command.bookie_id, command.bookie_index, command.lane, first, stride, command.fence
        )
        self._send("read", read, *key, number)

    def _deliver(self, command: DeliverEntries) -> None:
        stride = lanes(self.quorums)[command.lane].stride
        reading = self.shell.reads[command.bookie_index, command.lane]
        covers = reading.first <= command.first and command.last <= reading.brought_to
        assert covers, "a machine delivers what the replica brought"
        self.shell.found.update(range(command.first, command.last + 1, stride))


class Clients:
    """All clients that the search has met, by number, and what events do to them."""

    def __init__(self, quorums: Quorums) -> None:
        self._quorums = quorums
        self._shells: Interned[Shell] = Interned()
        self._steps: dict[tuple[int, int], Step] = {}

    def __getitem__(self, client: int) -> Shell:
        return self._shells[client]

    def __len__(self) -> int:
        return len(self._shells)

    def start(
        self, index: int, machine: AppendMachine | RecoveryMachine | LastConfirmedRead
    ) -> Step:
        """A new client, with the commands that start its machine."""
        run = _Run(Shell(index, machine), self._quorums)
        return self._finish(run, lambda: run.perform(machine.start()))

    def step(self, client: int, event_number: int, event: Event) -> Step:
        """What an event does to a client. ``event_number`` is equal for equal events."""
        key = (client, event_number)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._step(client, event)
        return found

    def _step(self, client: int, event: Event) -> Step:
        shell = self._shells[client].copy()
        if isinstance(event, EntriesRead):
            key = (event.bookie_index, event.lane)
            shell.reads[key] = shell.reads[key]._replace(brought_to=event.last_entry)
        elif isinstance(event, ReadEnded):
            del shell.reads[event.bookie_index, event.lane]
        elif isinstance(event, Close):
            shell.closing = True
        run = _Run(shell, self._quorums)
        return self._finish(run, lambda: run.take(event))

    def _finish(self, run: _Run, act: Callable[[], None]) -> Step:
        problem = ""
        try:
            act()
        except (AssertionError, LookupError) as error:
            problem = f"{type(error).__name__}: {error}"
        client = self._shells.number(run.shell.fingerprint(), run.shell)
        return Step(client, tuple(run.sent), run.confirmed, problem)
