"""What every machine of the lab gets and gives: events, effects, and the log on its disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Stamp(NamedTuple):
    """Who sent a value, and as which of its values: only where producers are idempotent."""

    producer: int
    epoch: int
    """The producer's, not the leader's."""
    sequence: int


class Entry(NamedTuple):
    """One entry of a replicated log. ``epoch``: the term or leader epoch in which it was added."""

    epoch: int
    value: int
    stamp: Stamp | None = None


NO_VALUE = -1
"""What a leader writes for itself: no application added it."""


def values_of(entries: tuple[Entry, ...]) -> tuple[int, ...]:
    """The applications' values: what a message with these entries ``carries``."""
    return tuple(entry.value for entry in entries if entry.value != NO_VALUE)


class NoSpaceError(Exception):
    """An entry was to be written to a full disk. A server that does not expect it ends."""


@dataclass(slots=True)
class Store:
    """The disk of one server: a log, of which a power cut leaves the first ``synced`` entries.

    ``meta`` (term, vote) is small and seldom changes: it counts as synced at once, and so does a
    truncation.
    """

    log: list[Entry] = field(default_factory=list)
    synced: int = 0
    meta: dict[str, int] = field(default_factory=dict)
    cuts: int = 0
    """How often it was truncated: a sync that began before says nothing of what came since."""
    is_full: bool = False

    def append(self, *entries: Entry) -> None:
        """Write entries behind the log. Raises NoSpaceError: none of them was written."""
        if self.is_full and entries:
            raise NoSpaceError
        self.log.extend(entries)

    def truncate(self, length: int) -> int:
        """Cut the log to a length. Returns how many entries are gone."""
        gone = max(0, len(self.log) - length)
        del self.log[length:]
        self.cuts += gone > 0
        self.synced = min(self.synced, length)
        return gone

    def lose_power(self) -> None:
        """What was not synced is gone."""
        del self.log[self.synced :]


# -- events ----------------------------------------------------------------------------------------


class Received(NamedTuple):
    """A message came."""

    source: str
    message: object


class Synced(NamedTuple):
    """The first ``length`` entries of the log are on the disk."""

    length: int


class Load(NamedTuple):
    """The application adds a value; only clients get this."""

    value: int


class Tick(NamedTuple):
    """Time passed."""


Event = Received | Synced | Load | Tick

# -- effects ---------------------------------------------------------------------------------------


class Send(NamedTuple):
    """Send a message."""

    target: str
    message: object


class Sync(NamedTuple):
    """Sync the log; ``Synced`` follows."""


class Acknowledge(NamedTuple):
    """Tell the application that its value is stored; only clients do this."""

    value: int


class Saw(NamedTuple):
    """A read that began at ``since`` saw the first ``values`` values of the log; only clients do
    this."""

    since: float
    values: int


class Note(NamedTuple):
    """Something that whoever looks at the run wants to know: an election, a truncation."""

    kind: str
    times: int = 1


Effect = Send | Sync | Acknowledge | Saw | Note


class Machine(Protocol):
    """A server or a client: a pure value. No clock, no network, no disk but its ``Store``."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event; the effects, in order."""

    def knows(self) -> str:
        """What it takes for true now, for people who follow a run."""


# -- what clients and servers say to each other, in every protocol with a leader -------------------


class Produce(NamedTuple):
    """Add a value. ``attempt`` comes back with a refusal."""

    value: int
    stamp: Stamp | None = None
    attempt: int = 0

    @property
    def carries(self) -> tuple[int, ...]:
        """The values in this message. Messages without this carry none."""
        return (self.value,)


class Produced(NamedTuple):
    """The value is stored as the protocol promises."""

    value: int


class Refused(NamedTuple):
    """The value was not taken. ``leader``: who may take it, or an empty name. ``is_gap``: a value
    before it is missing. ``attempt``: 0 if it came later than the answer to one."""

    value: int
    leader: str
    attempt: int = 0
    is_gap: bool = False


class Ask(NamedTuple):
    """How far does the log go?"""

    number: int


class Shown(NamedTuple):
    """The answer: so many values were committed when it was asked, or later."""

    number: int
    values: int


class Reader:
    """A client that asks every server again and again; who does not lead does not answer."""

    def __init__(self, servers: tuple[str, ...], *, every_s: float) -> None:
        self._servers, self._every_s = servers, every_s
        self._asked: list[float] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(_, Shown(number, values)):
                return [Saw(self._asked[number], values)]
            case Tick() if not self._asked or now - self._asked[-1] >= self._every_s:
                self._asked.append(now)
                return [Send(server, Ask(len(self._asked) - 1)) for server in self._servers]
            case _:
                return []

    def knows(self) -> str:
        return f"asked {len(self._asked)} times"


class Producer:
    """A client of a protocol with a leader: asks one server after the other who takes its values.

    It sends a value again after a refusal or silence, so a log may hold a value twice.
    """

    def __init__(self, servers: tuple[str, ...], *, timeout_s: float, retry_s: float) -> None:
        self._servers = servers
        self._timeout_s, self._retry_s = timeout_s, retry_s
        self._target = servers[0]
        self._due: dict[int, float] = {}
        self._sent: dict[int, str] = {}
        """Values that were sent and not answered at all, and to whom."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Load(value):
                return self._send(value, now)
            case Received(_, Produced(value)):
                return [Acknowledge(value)] if self._due.pop(value, None) is not None else []
            case Received(source, Refused(value, leader)):
                if value in self._due:
                    self._due[value] = now + self._retry_s
                    self._sent.pop(value, None)
                    self._turn_from(source, leader)
                return []
            case Tick():
                late = [value for value, due in self._due.items() if due <= now]
                # Silence: it may be dead. What was sent to an earlier one says nothing of this one.
                if any(self._sent.get(value) == self._target for value in late):
                    self._turn_from(self._target, "")
                return [effect for value in late for effect in self._send(value, now)]
            case _:
                return []

    def knows(self) -> str:
        return f"sends to {self._target}, {len(self._due)} values wait"

    def _send(self, value: int, now: float) -> list[Effect]:
        self._due[value] = now + self._timeout_s
        self._sent[value] = self._target
        return [Send(self._target, Produce(value))]

    def _turn_from(self, server: str, leader: str) -> None:
        if leader:
            self._target = leader
        elif server == self._target:
            place = self._servers.index(server)
            self._target = self._servers[(place + 1) % len(self._servers)]


class CarelessProducer(Producer):
    """A client that waits for nobody (Kafka's ``acks=0``): a value counts as stored when it is
    sent, and is sent once.

    From answers it learns only that somebody is there who leads, as from a connection that stays.
    """

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Load(value):
                return [Acknowledge(value), *self._send(value, now)]
            case Received(_, Produced(value)):
                self._due.pop(value, None)
            case Received(source, Refused(value, leader)):
                if self._due.pop(value, None) is not None:
                    self._turn_from(source, leader)
            case Tick():
                late = [value for value, due in self._due.items() if due <= now]
                if any(self._sent[value] == self._target for value in late):
                    self._turn_from(self._target, "")
                for value in late:
                    del self._due[value]
            case _:
                pass
        return []
