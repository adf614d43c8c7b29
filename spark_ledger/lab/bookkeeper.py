"""BookKeeper: the product's own writer and recovery, over bookies that keep their promises.

``AppendMachine`` and ``RecoveryMachine`` are those of ``spark_ledger.protocol``; only their shells
and the bookies (``bookies.py``) are the lab's. The client writes one ledger after the other: when
it cannot confirm any more, it recovers the ledger, counts what recovery found, and adds the rest to
a new one.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from spark_ledger.lab.bookies import (
    METADATA,
    Add,
    Added,
    AskLast,
    FindLast,
    Last,
    LastFound,
    NodeWritten,
    Read,
    ReadBack,
    WriteNode,
)
from spark_ledger.lab.machines import Acknowledge, Effect, Event, Load, Note, Received, Send, Tick
from spark_ledger.protocol import events as p
from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.append_limits import AppendLimits
from spark_ledger.protocol.quorum import entries_of_index
from spark_ledger.protocol.recovery import RecoveryMachine
from spark_ledger.types import (
    BookieId,
    BookieStatus,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
)

TIMEOUT_S: Final = 1.0
"""A bookie that does not answer for so long has failed: as the other protocols' sessions."""


class LedgerProducer:
    """The client: one ledger at a time, by the product's machines. It begins with the recovery of
    what a client before it left open."""

    def __init__(self, bookies: tuple[str, ...], quorums: Quorums, now: float) -> None:
        self._bookies = tuple(BookieId(name) for name in bookies)
        self._quorums = quorums
        self._ledger = -1
        self._has_looked = False
        """Whether it asked which ledger is the last one."""
        self._wrote = False
        """Whether this ledger is one that it wrote."""
        self._creates = False
        """Whether it waits for the metadata of a new ledger."""
        self._machine: AppendMachine | RecoveryMachine | None = None
        self._values: dict[int, int] = {}
        """By entry, of this ledger."""
        self._confirms: dict[int, int] = {}
        self._confirmed = -1
        self._queue: deque[int] = deque()
        self._asked: dict[tuple[str, int, int], float] = {}
        """Questions of a recovery that have no answer yet, with the time at which they fail."""
        self._reads: dict[tuple[int, int], EntryId] = {}
        """Where each read began."""
        self._members: dict[int, BookieId] = {}
        self._appenders: dict[int, int] = {}
        """The number of each index's appender, and by number what it owes answers for."""
        self._owed: dict[int, deque[int]] = {}
        self._opened = int(1e6 * now)  # no number of a client before it
        self._failed_at: dict[BookieId, float] = {}
        self._now = 0.0
        self._retry_at = 0.0
        self._last: LedgerMetadata | None = None
        self._version = 0

    def knows(self) -> str:
        work = "recovers" if isinstance(self._machine, RecoveryMachine) else "writes"
        waiting = len(self._queue) + len(self._confirms)
        return (
            f"{work} ledger {self._ledger}, last add confirmed {self._confirmed}, "
            f"{waiting} values wait"
        )

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._now = now
        match event:
            case Load(value):
                self._queue.append(value)
                return self._push()
            case Received(_, NodeWritten(ok, metadata, version)):
                return self._on_node(ok, metadata, version)
            case Received(_, LastFound(metadata, version)):
                return self._on_last_found(metadata, version)
            case Received(_, Added() as added) if added.ledger == self._ledger:
                return self._on_added(added)
            case Received(_, Last() as last) if last.ledger == self._ledger:
                if self._asked.pop(("last", last.slot, 0), None) is None:
                    return []
                ids = EntryId(last.last_confirmed), EntryId(last.last_entry)
                answer = p.LastConfirmedAnswer(last.slot, BookieStatus.OK, ids[0], "", ids[1])
                return self._feed(answer)
            case Received(_, ReadBack() as back) if back.ask.ledger == self._ledger:
                return self._on_read(back)
            case Tick():
                return self._on_tick()
            case _:
                return []

    # -- ledgers -----------------------------------------------------------------------------------

    def _create(self) -> list[Effect]:
        """A new ledger, on bookies that have not failed lately."""
        self._ledger, self._wrote, self._creates = self._ledger + 1, True, True
        self._machine, self._values, self._confirms, self._confirmed = None, {}, {}, -1
        chosen = self._healthy(frozenset())[: self._quorums.ensemble_size]
        fragment = Fragment(EntryId(0), tuple(chosen))
        metadata = LedgerMetadata(LedgerId(self._ledger), self._quorums, [fragment])
        return [Note("ledger created"), Send(METADATA, WriteNode(metadata, -1))]

    def _on_last_found(self, metadata: LedgerMetadata | None, version: int) -> list[Effect]:
        """Of the client before this one. What it was told of its values nobody knows."""
        if metadata is None or metadata.is_closed:
            self._ledger = -1 if metadata is None else int(metadata.ledger_id)
            return self._create()
        self._ledger, self._last, self._version = int(metadata.ledger_id), metadata, version
        return self._recover()

    def _healthy(self, without: frozenset[BookieId]) -> list[BookieId]:
        free = [bookie for bookie in self._bookies if bookie not in without]
        return sorted(free, key=lambda bookie: self._failed_at.get(bookie, -1.0))

    def _on_node(self, ok: bool, metadata: LedgerMetadata, version: int) -> list[Effect]:
        if metadata.ledger_id != self._ledger:
            return []
        if self._creates and not ok:
            return self._create()  # another client has taken this number
        self._last, self._version = metadata, version
        if self._creates:
            self._creates = False
            limits = AppendLimits(add_timeout_s=TIMEOUT_S, stalled_wait_s=2 * TIMEOUT_S)
            self._machine = AppendMachine(metadata, version, now=self._now, limits=limits)
            return [*self._perform(self._machine.start()), *self._push()]
        kind = p.MetadataWritten if ok else p.MetadataConflict
        return self._feed(kind(metadata, version))

    def _recover(self) -> list[Effect]:
        assert self._last is not None, "A ledger that is recovered was created."
        self._asked.clear()
        self._machine = RecoveryMachine(
            self._last, self._version, now=self._now, add_timeout_s=TIMEOUT_S
        )
        return [Note("recovery"), *self._perform(self._machine.start())]

    def _push(self) -> list[Effect]:
        machine = self._machine
        if not isinstance(machine, AppendMachine) or machine.error is not None:
            return []
        effects: list[Effect] = []
        while self._queue:
            entry = int(machine.last_add_pushed) + 1
            self._values[entry] = self._queue.popleft()
            self._confirms[entry] = self._confirmed
            effects += self._feed(p.Append((1,)))
            if self._machine is not machine or machine.error is not None:
                break
        return effects

    # -- events ------------------------------------------------------------------------------------

    def _feed(self, event: p.Event) -> list[Effect]:
        if self._machine is None:
            return []
        return self._perform(self._machine.handle(event, self._now))

    def _on_added(self, added: Added) -> list[Effect]:
        """Acknowledgements are cumulative: one that skips an entry means that the connection broke
        in between, as of a bookie that died and came back."""
        bookie, owed = self._members.get(added.slot), self._owed.get(added.appender)
        if bookie is None or owed is None or added.appender != self._appenders[added.slot]:
            return []
        status = added.status
        if status is BookieStatus.OK and owed.popleft() == added.entry:
            return self._feed(p.AddAcknowledged(added.slot, bookie, EntryId(added.entry)))
        del self._owed[added.appender]
        status = BookieStatus.UNAVAILABLE if status is BookieStatus.OK else status
        return self._feed(p.AddFailed(added.slot, bookie, status))

    def _on_read(self, back: ReadBack) -> list[Effect]:
        ask = back.ask
        kind = "length" if ask.lane < 0 else "read"
        if self._asked.pop((kind, ask.slot, ask.lane), None) is None:
            return []
        for entry, value, confirmed in back.entries:
            self._values[entry], self._confirms[entry] = value, confirmed
        note = Note("recovery read", len(back.entries))
        return [note, *self._take(ask, kind, back)]

    def _take(self, ask: Read, kind: str, back: ReadBack) -> list[Effect]:
        """What the machine is told of an answer."""
        if kind == "length":
            if not back.entries:
                return []
            for key in [key for key in self._asked if key[0] == "length"]:
                del self._asked[key]
            entry, _, confirmed = back.entries[0]
            return self._feed(p.LengthRead(entry + 1, EntryId(confirmed)))
        effects: list[Effect] = []
        end = ask.first
        if back.entries:
            last = back.entries[-1][0]
            end = last + ask.stride
            effects += self._feed(p.EntriesRead(ask.slot, ask.lane, EntryId(last)))
        status = BookieStatus.NO_SUCH_ENTRY
        return effects + self._feed(p.ReadEnded(ask.slot, ask.lane, status, EntryId(end)))

    def _on_tick(self) -> list[Effect]:
        if not self._has_looked:
            self._has_looked = True
            return [Send(METADATA, FindLast())]
        if self._machine is None:
            if self._retry_at and self._now >= self._retry_at:
                self._retry_at = 0.0
                return self._recover()
            return []
        effects: list[Effect] = []
        late = [key for key, due in self._asked.items() if due <= self._now]
        away = BookieStatus.UNAVAILABLE
        for kind, index, lane in late:
            if self._asked.pop((kind, index, lane), None) is None:
                continue  # what came before ended this recovery
            if kind == "last":
                effects += self._feed(p.LastConfirmedAnswer(index, away, EntryId(-1)))
            elif kind == "read":
                first = self._reads.get((index, lane), EntryId(0))
                effects += self._feed(p.ReadEnded(index, lane, away, first))
        due = None if self._machine is None else self._machine.next_deadline
        if due is not None and due <= self._now:
            effects += self._feed(p.Tick())
        return effects

    # -- commands ----------------------------------------------------------------------------------

    def _perform(self, commands: list[p.Command]) -> list[Effect]:
        effects: list[Effect] = []
        machine = self._machine
        for command in commands:
            if self._machine is not machine:
                break  # a later command of a ledger that is over
            effects += self._one(command)
        return effects

    def _one(self, command: p.Command) -> list[Effect]:
        match command:
            case p.SendEntries(index, first, last):
                return self._add(index, first, last)
            case p.OpenAppender(index, bookie):
                self._opened += 1
                self._members[index], self._appenders[index] = bookie, self._opened
                self._owed[self._opened] = deque()
            case p.CloseAppender(index):
                self._members.pop(index, None)
                self._owed.pop(self._appenders.get(index, 0), None)
            case p.ConfirmEntries(last):
                fresh = range(self._confirmed + 1, last + 1)
                self._confirmed = int(last)
                return [Acknowledge(self._values[entry]) for entry in fresh]
            case p.FailEntries():
                assert isinstance(self._machine, AppendMachine), "A writer fails entries."
                self._last = self._machine.metadata
                self._machine, self._retry_at = None, self._now + TIMEOUT_S / 10
            case p.WriteMetadata(metadata, version):
                return [Send(METADATA, WriteNode(metadata, version))]
            case p.ChooseBookies():
                return self._choose(command)
            case p.AnnounceLastConfirmed():
                told = [
                    p.LastConfirmedTold(bookie, command.last_add_confirmed, BookieStatus.OK)
                    for bookie in command.bookies
                ]  # no reader follows here: nobody has to be told
                return [effect for each in told for effect in self._feed(each)]
            case p.Failed():
                self._asked.clear()
                self._machine, self._retry_at = None, self._now + TIMEOUT_S / 5
            case p.Done(metadata, _):
                return self._on_recovered(metadata)
            case _:
                return self._ask(command)
        return []

    def _ask(self, command: p.Command) -> list[Effect]:
        """The questions of a recovery."""
        due = self._now + TIMEOUT_S
        match command:
            case p.ReadLastConfirmed(index, bookie, _):
                self._asked["last", index, 0] = due
                return [Send(bookie, AskLast(self._ledger, index))]
            case p.ReadEntries(index, lane, bookie, first, last, stride, _):
                self._asked["read", index, lane] = due
                self._reads[index, lane] = first
                return [Send(bookie, Read(self._ledger, index, lane, first, last, stride))]
            case p.CancelRead(index, lane):
                self._asked.pop(("read", index, lane), None)
            case p.ReadLength(wanted):
                effects: list[Effect] = []
                for index in wanted.lane.indexes:
                    self._asked["length", index, -1] = due
                    ask = Read(self._ledger, index, -1, wanted.first, wanted.first, 1)
                    effects.append(Send(wanted.bookies[index], ask))
                return effects
            case p.TellLength(entry):
                return self._feed(p.LengthRead(entry + 1, EntryId(self._confirms[entry])))
            case _:
                pass  # DeliverEntries: what was read is noted already
        return []

    def _add(self, index: int, first: int, last: int) -> list[Effect]:
        number, ledger = self._appenders[index], self._ledger
        recovers = isinstance(self._machine, RecoveryMachine)
        effects: list[Effect] = []
        for e in entries_of_index(index, first, last, self._quorums):
            add = Add(ledger, index, e, self._values[e], self._confirms[e], recovers, number)
            effects.append(Send(self._members[index], add))
            if number in self._owed:
                self._owed[number].append(e)
        return effects

    def _choose(self, command: p.ChooseBookies) -> list[Effect]:
        self._failed_at.update(dict.fromkeys(command.failed.values(), self._now))
        self._failed_at.update(dict.fromkeys(command.silent.values(), self._now))
        away = TIMEOUT_S * 2
        free = [
            bookie
            for bookie in self._healthy(command.excluded)
            if self._now - self._failed_at.get(bookie, -away) >= away
        ]
        chosen = dict(zip(command.indexes, free, strict=False))
        note = [Note("ensemble change")] if chosen else []
        return [*note, *self._feed(p.BookiesChosen(chosen))]

    def _on_recovered(self, metadata: LedgerMetadata) -> list[Effect]:
        """The ledger is closed at its true end: what is in it counts, the rest is added again."""
        self._asked.clear()
        last = int(metadata.last_entry_id)
        if not self._wrote:
            return self._create()
        found = [Acknowledge(self._values[entry]) for entry in range(self._confirmed + 1, last + 1)]
        rest = [self._values[entry] for entry in sorted(self._values) if entry > last]
        self._queue.extendleft(reversed(rest))
        return [*found, *self._create()]
