"""Bookies of the lab, which keep their promises, their metadata, and what clients say to both."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from spark_ledger.lab.machines import (
    NO_VALUE,
    Effect,
    Entry,
    Event,
    Received,
    Send,
    Store,
    Sync,
    Synced,
)
from spark_ledger.types import BookieStatus, LedgerMetadata

METADATA: Final = "zookeeper"
_FENCE: Final = -1


class Add(NamedTuple):
    """Store an entry; ``last_confirmed`` is what the writer knew to be confirmed."""

    ledger: int
    slot: int
    entry: int
    value: int
    last_confirmed: int
    recovery: bool
    appender: int = 0

    @property
    def carries(self) -> tuple[int, ...]:
        return (self.value,)


class Added(NamedTuple):
    """What came of an add; ``appender`` as it came with it."""

    ledger: int
    slot: int
    entry: int
    status: BookieStatus
    appender: int


class AskLast(NamedTuple):
    """The last add confirmed that a bookie knows; fences first."""

    ledger: int
    slot: int


class Last(NamedTuple):
    """The answer."""

    ledger: int
    slot: int
    last_confirmed: int
    last_entry: int


class Read(NamedTuple):
    """Entries from ``first`` on, up to the first that is not there."""

    ledger: int
    slot: int
    lane: int
    first: int
    last: int
    stride: int


class ReadBack(NamedTuple):
    """The answer."""

    ask: Read
    entries: tuple[tuple[int, int, int], ...]
    """Entry, value, and the last add confirmed that it carries."""

    @property
    def carries(self) -> tuple[int, ...]:
        return tuple(value for _entry, value, _confirmed in self.entries)


class WriteNode(NamedTuple):
    """Compare and set a ledger's metadata; version -1 creates."""

    metadata: LedgerMetadata
    version: int


class FindLast(NamedTuple):
    """Which ledger is the last one?"""


class LastFound(NamedTuple):
    """The last ledger and its version, if there is one."""

    metadata: LedgerMetadata | None
    version: int


class ListLedgers(NamedTuple):
    """Which ledgers are there?"""


class Listed(NamedTuple):
    """All ledgers, with their versions."""

    ledgers: tuple[tuple[LedgerMetadata, int], ...]


class Ping(NamedTuple):
    """Does this bookie live? (ZooKeeper knows by its session; here it is asked.)"""


class Pong(NamedTuple):
    """It does."""


class NodeWritten(NamedTuple):
    """What is stored now; ``ok``: it is what was to be written."""

    ok: bool
    metadata: LedgerMetadata
    version: int


class Metadata:
    """ZooKeeper, which does not fail here."""

    def __init__(self) -> None:
        self.nodes: dict[int, tuple[LedgerMetadata, int]] = {}

    def knows(self) -> str:
        ledger, _version = self.nodes[max(self.nodes)] if self.nodes else (None, 0)
        if ledger is None:
            return "no ledger"
        fragments = "; ".join(
            f"from {each.first_entry}: {' '.join(each.bookies)}" for each in ledger.fragments
        )
        return f"ledger {ledger.ledger_id} {ledger.state.name.lower()}, {fragments}"

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(source, WriteNode(metadata, version)):
                stored = self.nodes.get(metadata.ledger_id)
                if (stored[1] if stored else -1) != version:
                    assert stored is not None, "What is compared exists."
                    return [Send(source, NodeWritten(False, *stored))]
                self.nodes[metadata.ledger_id] = (metadata, version + 1)
                return [Send(source, NodeWritten(True, metadata, version + 1))]
            case Received(source, FindLast()):
                last = self.nodes[max(self.nodes)] if self.nodes else (None, -1)
                return [Send(source, LastFound(*last))]
            case Received(source, ListLedgers()):
                return [Send(source, Listed(tuple(self.nodes.values())))]
            case _:
                return []


class Bookie:
    """A bookie: a journal of records, and what they say. It answers for what is synced.

    In the journal's ``Entry`` the epoch is the place of the record in ``_records``' order.
    """

    def __init__(self, store: Store, records: list[Add]) -> None:
        self.store, self._records = store, records
        del records[len(store.log) :]  # what a power cut left
        self.entries: dict[tuple[int, int], Add] = {}
        self._fenced: set[int] = set()
        self._owed: deque[tuple[int, Send]] = deque()
        for record in records:
            self._apply(record)

    def knows(self) -> str:
        fenced = ", ".join(map(str, sorted(self._fenced)))
        return f"{len(self.entries)} entries" + (f", fenced: ledger {fenced}" if fenced else "")

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(source, Add() as add):
                reply = Added(add.ledger, add.slot, add.entry, BookieStatus.OK, add.appender)
                if add.ledger in self._fenced and not add.recovery:
                    return [Send(source, reply._replace(status=BookieStatus.FENCED))]
                if self.store.is_full and not add.recovery:
                    return [Send(source, reply._replace(status=BookieStatus.READ_ONLY))]
                return self._store(add, Send(source, reply))
            case Received(source, AskLast(ledger, index)):
                held = [add for (of, _), add in self.entries.items() if of == ledger]
                last = max((add.entry for add in held), default=-1)
                confirmed = max((add.last_confirmed for add in held), default=-1)
                answer = Send(source, Last(ledger, index, confirmed, last))
                return self._store(Add(ledger, index, _FENCE, NO_VALUE, -1, True), answer)
            case Received(source, Read() as ask):
                found, entry = [], ask.first
                while (held_one := self.entries.get((ask.ledger, entry))) and entry <= ask.last:
                    found.append((entry, held_one.value, held_one.last_confirmed))
                    entry += ask.stride
                return [Send(source, ReadBack(ask, tuple(found)))]
            case Received(source, Ping()):
                return [Send(source, Pong())]
            case Synced(length):
                effects: list[Effect] = []
                while self._owed and self._owed[0][0] <= length:
                    effects.append(self._owed.popleft()[1])
                return effects
            case _:
                return []

    def _store(self, record: Add, answer: Send) -> list[Effect]:
        self._records.append(record)
        # A full disk keeps room for fences and recoveries.
        self.store.log.append(Entry(record.ledger, record.value))
        self._apply(record)
        self._owed.append((len(self.store.log), answer))
        return [Sync()]

    def _apply(self, record: Add) -> None:
        if record.entry == _FENCE:
            self._fenced.add(record.ledger)
        else:
            self.entries[record.ledger, record.entry] = record
