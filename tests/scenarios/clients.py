"""What all clients of the world share: performing a machine's commands by sending messages.

This is the thinnest possible shell. It decides nothing: every answer goes to the machine as an
event, and every command it returns becomes a message or a line that says what the client did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from spark_ledger.errors import MetadataUnavailableError, NoSuchLedgerError
from spark_ledger.protocol.events import (
    AddAcknowledged,
    AddFailed,
    AnnounceLastConfirmed,
    BookiesChosen,
    CancelRead,
    ChooseBookies,
    CloseAppender,
    Command,
    EntriesRead,
    Event,
    LastConfirmedAnswer,
    LastConfirmedTold,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataUnread,
    MetadataWritten,
    OpenAppender,
    ReadEnded,
    ReadEntries,
    ReadLastConfirmed,
    ReadMetadata,
    SendEntries,
    Tick,
    WriteMetadata,
)
from spark_ledger.protocol.quorum import entries_of_index
from spark_ledger.types import BookieId, BookieStatus, EntryId
from tests.scenarios.stores import Stored
from tests.scenarios.world import METADATA, REGISTRY, Message, World, fragments_text, ranges_text


class Machine(Protocol):
    """A machine of ``spark_ledger.protocol``."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in one event."""

    @property
    def next_deadline(self) -> float | None:
        """The earliest time at which a tick may change something."""


@dataclass(eq=False)
class ScriptAppender:
    """An appender: one client's ordered way to one bookie."""

    bookie_index: int
    bookie_id: BookieId
    number: int
    open: bool = True
    broken: bool = False
    """An answer other than OK was given, or one was lost: nothing more is reported."""
    refused: bool = False
    """The bookie refused something: it drops what follows."""


@dataclass(eq=False)
class Read:
    """A read under way, with what it has brought."""

    entries: dict[int, Stored]
    open: bool = True


class Client:
    """A client with at most one machine at work."""

    recovery = False
    hears_late_reads = False
    """Whether answers to a read that was given up still arrive, unless it was asked again."""

    def __init__(self, world: World, name: str, *, password: str = "") -> None:
        self.world, self.name, self.password = world, name, password
        self.machine: Machine | None = None
        self.lanes: dict[int, ScriptAppender] = {}
        self.reads: dict[tuple[int, int], Read] = {}
        self._numbers = 0
        self._failed_before: set[BookieId] = set()
        world.actors[name] = self

    # -- the loop ----------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Give the machine an event, perform what it wants."""
        if self.machine is None:
            return
        due = self.machine.next_deadline
        commands = self.machine.handle(event, self.world.now)
        if isinstance(event, Tick) and commands:
            # A shell ticks only when its machine has said so: this tick would not have come.
            assert due is not None and due <= self.world.now, f"{self.name} names {due} for a tick"
        self.perform(commands)

    def perform(self, commands: list[Command]) -> None:
        for command in commands:
            self.perform_one(command)

    def tick(self) -> None:
        self.take(Tick())

    def state(self) -> str:
        return ""

    def perform_one(self, command: Command) -> None:
        """Commands that several machines give. Others are for the subclass."""
        match command:
            case OpenAppender():
                self._open_lane(command)
            case CloseAppender():
                self.lanes[command.bookie_index].open = False
            case SendEntries():
                self._send_entries(command)
            case ChooseBookies():
                self._choose(command)
            case WriteMetadata():
                self._write_metadata(command)
            case ReadMetadata():
                self._look()
            case AnnounceLastConfirmed():
                for bookie_id in command.bookies:
                    self._announce(bookie_id, command.last_add_confirmed)
            case ReadLastConfirmed():
                self._read_last_confirmed(command)
            case ReadEntries():
                self._read_entries(command)
            case CancelRead():
                self.reads[command.bookie_index, command.lane].open = False
            case _:
                raise AssertionError(f"{self.name} cannot perform {command!r}")

    def frames(self) -> Mapping[int, Stored]:
        """The entries that this client can send."""
        return {}

    def message(
        self,
        target: str,
        channel: str,
        text: str,
        deliver: Callable[[], None],
        lose: Callable[[], None],
    ) -> None:
        """Send a request. Requests of one channel keep their order."""
        self.world.send(Message(self.name, target, f"{self.name}:{channel}", text, deliver, lose))

    # -- appenders ---------------------------------------------------------------------------------

    def _open_lane(self, command: OpenAppender) -> None:
        if command.bookie_index in self.lanes:
            self.lanes[command.bookie_index].open = False
        self._numbers += 1
        self.lanes[command.bookie_index] = ScriptAppender(
            command.bookie_index, command.bookie_id, self._numbers
        )

    def _send_entries(self, command: SendEntries) -> None:
        lane, frames = self.lanes[command.bookie_index], self.frames()
        assert lane.open, "a machine sends through open appenders only"
        quorums = self.world.metadata.value.quorums
        ids = entries_of_index(command.bookie_index, command.first, command.last, quorums)
        run = [(entry_id, frames[entry_id]) for entry_id in ids]
        self.message(
            lane.bookie_id,
            f"lane {lane.number}",
            f"store {ranges_text(ids)}" + (", recovery" if self.recovery else ""),
            lambda: self._arrive(lane, run),
            lambda: self._break(lane, BookieStatus.TIMEOUT),
        )

    def _arrive(self, lane: ScriptAppender, run: list[tuple[int, Stored]]) -> None:
        """Entries reach the bookie of a lane."""
        if lane.refused:
            return
        bookie = self.world.bookies[lane.bookie_id]
        status = bookie.add(run, recovery=self.recovery, password=self.password)
        if status is not BookieStatus.OK:
            lane.refused = True
            self._break(lane, status)
            return
        if lane.broken:
            return
        last = EntryId(run[-1][0])
        event = AddAcknowledged(lane.bookie_index, lane.bookie_id, last)
        self.world.send(
            Message(
                lane.bookie_id,
                self.name,
                f"{self.name}:lane {lane.number} answers",
                f"stored up to {last}",
                lambda: self._report(lane, event),
                lambda: self._break(lane, BookieStatus.TIMEOUT),
                repeatable=True,
            )
        )

    def _break(self, lane: ScriptAppender, status: BookieStatus) -> None:
        """The lane ends: exactly one failure is reported for it."""
        if lane.broken:
            return
        lane.broken = True
        event = AddFailed(lane.bookie_index, lane.bookie_id, status)
        text = "refuses to store: " + status.name.lower().replace("_", " ")
        if status in (BookieStatus.UNAVAILABLE, BookieStatus.TIMEOUT):
            text = "does not answer"
        self.world.send(
            Message(
                lane.bookie_id,
                self.name,
                f"{self.name}:lane {lane.number} answers",
                text,
                lambda: self._report(lane, event, last=True),
                lambda: self._report(lane, event, last=True),
            )
        )

    def _report(
        self, lane: ScriptAppender, event: AddAcknowledged | AddFailed, *, last: bool = False
    ) -> None:
        if lane.open and (last or not lane.broken):
            self.take(event)

    def disconnect(self, bookie_id: BookieId) -> None:
        """The connection to a bookie breaks; also lanes with nothing under way notice."""
        for lane in list(self.lanes.values()):
            if lane.bookie_id == bookie_id and lane.open:
                self._break(lane, BookieStatus.UNAVAILABLE)

    def _announce(self, bookie_id: BookieId, last_add_confirmed: int) -> None:
        self._numbers += 1
        self.message(
            bookie_id,
            f"announcement {self._numbers}",
            f"last add confirmed is {last_add_confirmed}",
            lambda: self._announced(bookie_id, last_add_confirmed),
            lambda: self.take(
                LastConfirmedTold(bookie_id, EntryId(last_add_confirmed), BookieStatus.TIMEOUT)
            ),
        )

    def _announced(self, bookie_id: BookieId, last: int) -> None:
        """The answer is never late: it changes nothing but whether the bookie is told again."""
        status = self.world.bookies[bookie_id].write_last_confirmed(last)
        self.take(LastConfirmedTold(bookie_id, EntryId(last), status))

    # -- metadata ----------------------------------------------------------------------------------

    def _choose(self, command: ChooseBookies) -> None:
        asked = [f"{bookie} (index {index})" for index, bookie in command.failed.items()]
        asked += [f"{bookie} (index {i}, silent)" for i, bookie in command.silent.items()]
        known = {*command.failed, *command.silent}
        asked += [f"who stays away from index {i}" for i in command.indexes if i not in known]
        text = "who can replace " + ", ".join(asked)
        self.message(
            REGISTRY, "choose", text, lambda: self._chosen(command), lambda: self._chosen(None)
        )

    def _chosen(self, command: ChooseBookies | None) -> None:
        """A registered bookie that is no member, one that never failed us first; else the failed
        one, if it is back."""
        replacements: dict[int, BookieId] = {}
        writable = self.world.writable()
        if command is not None:
            self._failed_before.update(command.failed.values())
            free = [name for name in writable if name not in command.excluded]
            free.sort(key=self._failed_before.__contains__)
            for bookie_index in command.indexes:
                if free:
                    replacements[bookie_index] = free.pop(0)
                elif command.failed.get(bookie_index) in writable:
                    replacements[bookie_index] = command.failed[bookie_index]
        told = [f"{bookie} for index {index}" for index, bookie in replacements.items()]
        silent = command.silent if command is not None else {}
        answering = frozenset(
            i for i, bookie in silent.items() if bookie in writable and i not in replacements
        )
        told += [f"{silent[index]} is alive" for index in sorted(answering)]
        answer = BookiesChosen(replacements, answering)
        self._answer(REGISTRY, "choose", ", ".join(told) or "nobody", answer)

    def _write_metadata(self, command: WriteMetadata) -> None:
        wanted = command.metadata
        text = f"if version {command.version}, set {wanted.state.value.replace('_', ' ')}"
        if wanted.is_closed:
            text += f" at {wanted.last_entry_id}"
        if wanted.fragments != self.world.metadata.value.fragments:
            text += f", entries {fragments_text(wanted)}"
        self.message(
            METADATA, "metadata", text, lambda: self._write(command), self._read_metadata_again
        )

    def _write(self, command: WriteMetadata) -> None:
        store = self.world.metadata
        if store.refuses:
            error = MetadataUnavailableError("the metadata store cannot be reached")
            self._answer(METADATA, "metadata", "refused", MetadataFailed(error))
        elif store.deleted:
            gone = NoSuchLedgerError("the ledger was deleted")
            self._answer(METADATA, "metadata", "no such ledger", MetadataFailed(gone))
        elif store.compare_and_set(command.metadata, command.version):
            event = MetadataWritten(command.metadata, store.version)
            self._answer(METADATA, "metadata", f"done, version {store.version}", event)
        else:
            self._conflict("conflict")

    def _read_metadata_again(self) -> None:
        """An answer was lost: the outcome is unknown, so read again (rule P6)."""
        self._conflict("answer lost, read again")

    def _conflict(self, text: str) -> None:
        store = self.world.metadata
        told = f"{text}: version {store.version}, {store.value.state.value.replace('_', ' ')}"
        self._answer(METADATA, "metadata", told, MetadataConflict(store.value, store.version))

    def _look(self) -> None:
        self.message(METADATA, "look", "what is stored?", self._looked, self._cannot_look)

    def _looked(self) -> None:
        store = self.world.metadata
        if store.refuses:
            self._cannot_look()
            return
        told, metadata = store.value.state.value.replace("_", " "), store.value
        event = MetadataRead(None if store.deleted else metadata)
        self._told_what_is_stored(
            f"version {store.version}, {told}" if not store.deleted else "nothing", event
        )

    def _cannot_look(self) -> None:
        error = MetadataUnavailableError("the metadata store cannot be reached")
        self._told_what_is_stored("refused", MetadataUnread(error))

    def _told_what_is_stored(self, text: str, event: Event) -> None:
        channel = f"{self.name}:look answers"
        take = partial(self.take, event)
        self.world.send(Message(METADATA, self.name, channel, text, take, self._cannot_look))

    def _answer(self, source: str, channel: str, text: str, event: Event) -> None:
        lose = self._read_metadata_again if source == METADATA else (lambda: self.take(event))
        self.world.send(
            Message(
                source,
                self.name,
                f"{self.name}:{channel} answers",
                text,
                lambda: self.take(event),
                lose,
            )
        )

    # -- reads -------------------------------------------------------------------------------------

    def _read_last_confirmed(self, command: ReadLastConfirmed) -> None:
        bookie = self.world.bookies[command.bookie_id]
        channel = f"last confirmed {command.bookie_index}"
        machine = self.machine

        def answer(status: BookieStatus, last_confirmed: int) -> None:
            event = LastConfirmedAnswer(command.bookie_index, status, EntryId(last_confirmed))
            told = status.name.lower().replace("_", " ")
            if status is BookieStatus.OK:
                told = f"last add confirmed {last_confirmed}"
            self.world.send(
                Message(
                    command.bookie_id,
                    self.name,
                    f"{self.name}:{channel} answers",
                    told,
                    lambda: self.take(event) if self.machine is machine else None,
                    lambda: answer(BookieStatus.TIMEOUT, -1),
                    repeatable=True,
                )
            )

        self.message(
            command.bookie_id,
            channel,
            "last add confirmed?" + (" and fence" if command.fence else ""),
            lambda: answer(
                *bookie.read_last_confirmed(fence=command.fence, password=self.password)
            ),
            lambda: answer(BookieStatus.TIMEOUT, -1),
        )

    def _read_entries(self, command: ReadEntries) -> None:
        key = (command.bookie_index, command.lane)
        if key in self.reads:
            self.reads[key].open = False
        read = self.reads[key] = Read({})
        self._numbers += 1
        number = self._numbers
        step = f" in steps of {command.stride}" if command.stride > 1 else ""
        until = f"..{command.last}" if command.last < 2**60 else " on"
        self.message(
            command.bookie_id,
            f"read {number}",
            f"read {command.first}{until}{step}" + (" and fence" if command.fence else ""),
            lambda: self._serve_read(command, read, number),
            lambda: self._end_read(command, read, number, BookieStatus.TIMEOUT, command.first),
        )

    def _serve_read(self, command: ReadEntries, read: Read, number: int) -> None:
        found = self.world.bookies[command.bookie_id].read(
            command.first,
            command.last,
            command.stride,
            fence=command.fence,
            password=self.password,
        )
        if found.entries:
            last = EntryId(found.entries[-1][0])
            event = EntriesRead(command.bookie_index, command.lane, last)

            def bring() -> None:
                if self._hears(command, read):
                    read.entries.update(found.entries)
                    self.take(event)

            self.world.send(
                Message(
                    command.bookie_id,
                    self.name,
                    f"{self.name}:read {number} answers",
                    f"entries {ranges_text(entry_id for entry_id, _ in found.entries)}",
                    bring,
                    lambda: self._lose_read(command, read, number),
                )
            )
        self._end_read(command, read, number, found.status, found.entry_id)

    def _hears(self, command: ReadEntries, read: Read) -> bool:
        is_newest = self.reads[command.bookie_index, command.lane] is read
        return read.open or (self.hears_late_reads and is_newest)

    def _lose_read(self, command: ReadEntries, read: Read, number: int) -> None:
        """Part of the answer is gone: the client sees that it ended too early."""
        for message in list(self.world.messages):
            if message.channel == f"{self.name}:read {number} answers":
                self.world.messages.remove(message)
        self._end_read(command, read, number, BookieStatus.TIMEOUT, command.first)

    def _end_read(
        self, command: ReadEntries, read: Read, number: int, status: BookieStatus, entry_id: int
    ) -> None:
        event = ReadEnded(command.bookie_index, command.lane, status, EntryId(entry_id))
        told = f"{status.name.lower().replace('_', ' ')} {entry_id}"
        if status is BookieStatus.OK:
            told = "end of the read"
        self.world.send(
            Message(
                command.bookie_id,
                self.name,
                f"{self.name}:read {number} answers",
                told,
                lambda: self.take(event) if self._hears(command, read) else None,
                lambda: self.take(event) if self._hears(command, read) else None,
            )
        )
