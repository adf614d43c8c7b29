"""The machines of one run on simulated servers: network, disks, deaths, and what is measured."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_ledger.lab.machines import (
    Acknowledge,
    Effect,
    Event,
    Load,
    Machine,
    NoSpaceError,
    Note,
    Received,
    Saw,
    Send,
    Store,
    Sync,
    Synced,
    Tick,
)
from spark_ledger.lab.simulation.loop import Process, SimulatedLoop
from spark_ledger.lab.simulation.network import Direction, Network

CLIENT: Final = "client"
READER: Final = "reader"
FORMER_CLIENT: Final = "client-1"
"""A client that was frozen, when another one has taken its place."""
MESSAGE_S: Final = 0.0005
"""About the time that a message takes: half to one and a half of it."""
SYNC_S: Final = 0.002
"""What one sync of a disk takes. What is written meanwhile goes with the next one."""
TICK_S: Final = 0.01
SETTLED_S: Final = 0.25
"""So long after its acknowledgement a value is where it belongs, if nothing is wrong: also on
slaves that are sent what is new ten times a second."""
_CALLBACKS_MAX: Final = 20_000_000
_TICK: Final = Tick()


class Pace(NamedTuple):
    """When values are added, how often time passes for machines, and when a run ends."""

    from_s: float
    load_s: float
    every_s: float
    until_s: float
    tick_s: float = TICK_S
    quiet_s: float = math.inf
    """From then on a run ends as soon as all values are acknowledged."""


class Links(NamedTuple):
    """The network's options: the lab's scenarios cut and slow links themselves."""

    loss: float = 0.0
    duplicates: float = 0.0
    corruption: float = 0.0
    delay: str = "even"


Make = Callable[[Store, float], Machine]
"""Makes a machine at a start: on its disk, at a time."""


class Happened(NamedTuple):
    """A fault, or a decision of a machine."""

    at: float
    who: str
    what: str
    is_fault: bool


@dataclass(slots=True)
class Sent:
    """A message, for people. ``arrived_at``: None if it never came."""

    source: str
    target: str
    message: object
    sent_at: float
    arrived_at: float | None = None


class Host:
    """One server or client: its process, its disk, and the machine that runs there."""

    def __init__(self, name: str, make: Make) -> None:
        self.name, self.make = name, make
        self.store = Store()
        self.slowness = 1.0
        self.starts = 0
        self.process = Process(name)
        self.machine: Machine
        self.is_syncing = False
        self.wants_sync = False


class World:
    """All hosts of a run. ``check`` is called after each tick: what the protocol promises."""

    healing = False

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.options = Links()
        self.loop = SimulatedLoop(self.random_for("loop"), shuffle=False)  # type: ignore[abstract]
        self.loop.on_error = self._on_error
        self.network = Network(self)
        self.hosts: dict[str, Host] = {}
        self.servers: tuple[str, ...] = ()
        """Of these hosts, those that keep the log."""
        self.counts_copies = True
        """Whether anybody asks for ``copied``."""
        self.acknowledged: dict[int, float] = {}
        self.sent: dict[int, float] = {}
        self.seen: list[Saw] = []
        """What reads saw."""
        self.lost: frozenset[int] = frozenset()
        """What was acknowledged and is not in the log: known when the run is over."""
        self.notes: Counter[str] = Counter()
        self.events: list[Happened] = []
        """Decisions and faults, for people."""
        self.messages = 0
        self.carried: Counter[str] = Counter()
        """Values in messages that came, each time it came, by who sent them."""
        self.copied = 0
        """Values that came to a server which lacked them, ``SETTLED_S`` or more after they had been
        acknowledged: copies of what it had missed or lost."""
        self.check: Callable[[], None] = lambda: None
        self.on_event: Callable[[], None] = lambda: None
        """Called after each of ``events``, for who follows the run."""
        self.trace: list[Sent] | None = None
        """All messages, if somebody wants them."""
        self.error: BaseException | None = None
        self._directions: dict[tuple[str, str], Direction] = {}
        self._delays = self.random_for("delays")
        self._factor = 1.0
        self._tick_s = TICK_S

    # -- what the network asks for -----------------------------------------------------------------

    def random_for(self, name: str, /) -> random.Random:
        """A generator for one purpose."""
        return random.Random(f"{name} {self.seed}")  # noqa: S311 - a simulation repeats itself

    def delay(self) -> float:
        """Seconds that one message takes."""
        return MESSAGE_S * (0.5 + self._delays.random()) * self._factor

    def fault(self, kind: str, detail: str, /) -> None:
        """Record a fault."""
        self._note(detail, kind, is_fault=True)

    def _note(self, who: str, what: str, *, is_fault: bool) -> None:
        self.events.append(Happened(self.loop.now, who, what, is_fault))
        self.on_event()

    # -- hosts -------------------------------------------------------------------------------------

    def add(self, name: str, make: Make) -> None:
        """Start a server or client."""
        host = self.hosts[name] = Host(name, make)
        self._start(host)

    def _start(self, host: Host) -> None:
        host.starts += 1
        host.process = Process(f"{host.name}#{host.starts}")
        host.is_syncing = host.wants_sync = False
        host.machine = host.make(host.store, self.loop.now)

    def kill(self, name: str, *, power: bool, what: str = "killed") -> None:
        """End a process; with ``power`` its machine too, and with it what was not synced."""
        host = self.hosts[name]
        self.loop.bury(host.process)
        if power:
            host.store.lose_power()
        else:
            host.store.synced = len(host.store.log)  # the kernel lives, and writes it
        self.fault("power cut" if power else what, name)

    def stop(self, name: str) -> None:
        """End a process in order: it says on its disk that nothing is missing there."""
        self.kill(name, power=False, what="stopped")
        self.hosts[name].store.meta["stopped"] = 1

    def fill(self, name: str) -> None:
        """A server's disk has no room for entries."""
        self.hosts[name].store.is_full = True
        self.fault("disk full", name)

    def clear(self, name: str) -> None:
        """There is room again; who ended for lack of it is started again."""
        host = self.hosts[name]
        host.store.is_full = False
        self.fault("disk has room", name)
        if not host.process.alive:
            self.restart(name)

    def freeze_client(self) -> None:
        """The client stands still."""
        self.hosts[CLIENT].process.paused = True
        self.fault("frozen", CLIENT)

    def replace_client(self) -> None:
        """Another client takes its place; the frozen one has another name from now on."""
        former = self.hosts[CLIENT]
        former.name = FORMER_CLIENT
        self.hosts[FORMER_CLIENT] = former
        host = self.hosts[CLIENT] = Host(CLIENT, former.make)
        host.starts = former.starts
        self._start(host)
        self.fault("another one begins", CLIENT)

    def thaw_client(self) -> None:
        """The frozen client goes on, as if no time had passed."""
        self.loop.resume(self.hosts[FORMER_CLIENT].process)
        self.fault("goes on", FORMER_CLIENT)

    def restart(self, name: str) -> None:
        """Start a dead server again, on its disk."""
        self._start(self.hosts[name])
        self.fault("started again", name)

    def slow(self, name: str, factor: float) -> None:
        """Make a server's disk and links slower by a factor."""
        self.hosts[name].slowness = factor
        self.fault(f"{factor:g} times as slow" if factor > 1.0 else "no longer slow", name)

    # -- events and effects ------------------------------------------------------------------------

    def _tick(self) -> None:
        """Time passes for all hosts at once: a callback for each would be most of a run."""
        for host in tuple(self.hosts.values()):
            if host.process.alive and not host.process.paused:
                self.give(host, _TICK)
        self.check()
        self.loop.later(self._tick_s, None, self._tick)

    def give(self, host: Host, event: Event) -> None:
        """Let a machine take in an event, and perform what follows."""
        try:
            effects = host.machine.handle(event, self.loop.now)
        except NoSpaceError:
            self.loop.bury(host.process)
            host.store.synced = len(host.store.log)
            self._note(host.name, "ends: no room", is_fault=True)
            return
        for effect in effects:
            self._perform(host, effect)

    def _perform(self, host: Host, effect: Effect) -> None:
        match effect:
            case Send(target, message):
                self._send(host, self.hosts[target], message)
            case Sync():
                self._sync(host)
            case Acknowledge(value):
                self.acknowledged.setdefault(value, self.loop.now)
            case Saw():
                self.seen.append(effect)
            case Note(kind, count):
                self.notes[kind] += count
                if count:
                    self._note(host.name, kind, is_fault=False)

    def _send(self, source: Host, target: Host, message: object) -> None:
        self.messages += 1
        key = (source.process.name, target.process.name)
        direction = self._directions.get(key)
        if direction is None or direction.broken:  # what is sent next goes over a new connection
            direction = self._directions[key] = Direction()
        self._factor = max(source.slowness, target.slowness)
        sent = None
        if self.trace is not None:
            sent = Sent(source.name, target.name, message, self.loop.now)
            self.trace.append(sent)
        arrived = Received(source.name, message)
        self.network.send(
            source.name, target.process, direction, self._arrive, target, arrived, sent
        )

    def _arrive(self, target: Host, event: Received, sent: Sent | None) -> None:
        if sent is not None:
            sent.arrived_at = self.loop.now
        if carried := getattr(event.message, "carries", ()):
            self.carried[event.source] += len(carried)
            if self.counts_copies and target.name in self.servers:
                before, at = self.loop.now - SETTLED_S, self.acknowledged.get
                late = {value for value in carried if at(value, math.inf) <= before}
                if late:
                    self.copied += len(late.difference(entry.value for entry in target.store.log))
        self.give(target, event)

    def _sync(self, host: Host) -> None:
        if host.is_syncing:
            host.wants_sync = True
            return
        host.is_syncing = True
        length, cuts, delay_s = len(host.store.log), host.store.cuts, SYNC_S * host.slowness
        self.loop.later(delay_s, host.process, self._synced, host, length, cuts)

    def _synced(self, host: Host, length: int, cuts: int) -> None:
        store = host.store
        if cuts == store.cuts:
            store.synced = max(store.synced, length)
        else:
            host.wants_sync = True
        host.is_syncing = False
        if host.wants_sync:
            host.wants_sync = False
            self._sync(host)
        self.give(host, Synced(store.synced))

    # -- running -----------------------------------------------------------------------------------

    def run(self, pace: Pace) -> None:
        """Add values at an even rate, and go on to the end."""
        self._tick_s = pace.tick_s
        self.loop.at(pace.from_s, None, self._load, 0, pace)

        def is_done() -> bool:
            is_quiet = self.loop.now >= pace.quiet_s and len(self.acknowledged) == len(self.sent)
            return is_quiet or self.error is not None

        self._tick()
        self.loop.run(is_done, until_s=pace.until_s, callbacks_max=_CALLBACKS_MAX)
        if self.error is not None:
            raise self.error

    def _load(self, value: int, pace: Pace) -> None:
        client = self.hosts[CLIENT]
        if client.process.alive and not client.process.paused:
            self.sent[value] = self.loop.now
            self.give(client, Load(value))
        if self.loop.now + pace.every_s < pace.load_s:
            self.loop.later(pace.every_s, None, self._load, value + 1, pace)

    def _on_error(self, error: BaseException | None, text: str) -> None:
        self.error = self.error or error or AssertionError(text)
