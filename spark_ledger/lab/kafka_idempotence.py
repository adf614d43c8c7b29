"""Kafka's idempotent producer (KIP-98): ids, epochs and sequences, on both sides.

A producer numbers its values and stamps each with its id, its epoch and the number. A broker writes
the stamps into the log with the values, so whoever leads next knows them too. It takes the next
number only, answers a number that it has as if it had just taken it, and refuses a gap. After a gap
that is no accident of the network, because what was acknowledged before it is gone, the producer
goes on in another epoch (KIP-360). One partition; the controller also gives the ids.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from spark_ledger.lab.machines import (
    Acknowledge,
    Effect,
    Event,
    Load,
    Produce,
    Produced,
    Received,
    Refused,
    Send,
    Stamp,
    Store,
    Tick,
)

IN_FLIGHT_MAX: Final = 5
"""``max.in.flight.requests.per.connection``. A broker knows as many of a producer's last values."""

GAP: Final = -1
NEXT: Final = 0


class InitProducer(NamedTuple):
    """A producer asks for an id. ``producer``: the one that it has, of which it wants another
    epoch; or 0."""

    producer: int


class ProducerGiven(NamedTuple):
    """The answer. The first id is 1."""

    producer: int
    epoch: int


class _Known(NamedTuple):
    """A producer: its epoch, and where its last values stand in the log, by sequence."""

    epoch: int
    places: dict[int, int]


class Sequences:
    """What a log says of its producers. Places count from 1."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cuts, self._seen = store.cuts, 0
        self._known: dict[int, _Known] = {}

    def judge(self, stamp: Stamp) -> int:
        """``NEXT``, ``GAP``, or where this value stands already."""
        self._read()
        known = self._known.get(stamp.producer)
        if known is None:
            return NEXT  # nothing is left of this producer (KIP-360)
        if stamp.epoch > known.epoch:
            return NEXT if stamp.sequence == 0 else GAP
        if stamp.epoch < known.epoch:
            return GAP
        if stamp.sequence == max(known.places) + 1:
            return NEXT
        return known.places.get(stamp.sequence, GAP)

    def _read(self) -> None:
        """Take in what is new in the log; all of it, if it was cut."""
        store = self._store
        if store.cuts != self._cuts:
            self._known, self._cuts, self._seen = {}, store.cuts, 0
        for place, entry in enumerate(store.log[self._seen :], self._seen + 1):
            if entry.stamp is not None:
                self._note(entry.stamp, place)
        self._seen = len(store.log)

    def _note(self, stamp: Stamp, place: int) -> None:
        known = self._known.get(stamp.producer)
        if known is None or known.epoch != stamp.epoch:
            known = self._known[stamp.producer] = _Known(stamp.epoch, {})
        known.places[stamp.sequence] = place
        if len(known.places) > IN_FLIGHT_MAX:
            del known.places[min(known.places)]


class IdempotentProducer:
    """The client: its first values that wait are in flight, in order, and are sent again in order
    after a refusal or silence."""

    def __init__(
        self, servers: tuple[str, ...], controller: str, *, timeout_s: float, retry_s: float
    ) -> None:
        self._servers, self._controller = servers, controller
        self._timeout_s, self._retry_s = timeout_s, retry_s
        self._target = servers[0]
        self._id = ProducerGiven(0, 0)
        self._has_id = False
        self._ask_at = 0.0
        self._waiting: dict[int, int | None] = {}
        """Values that are not acknowledged, in order, with the sequence of those that were sent."""
        self._next = 0
        self._flying: set[int] = set()
        self._attempt = 0
        """Grows when what is in flight is sent again: earlier refusals say nothing more."""
        self._due = 0.0
        self._retry_at: float | None = None

    def knows(self) -> str:
        given = f"producer {self._id.producer} in epoch {self._id.epoch}"
        return f"{given}, sends to {self._target}, {len(self._waiting)} values wait"

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Load(value):
                self._waiting[value] = None
                return self._fill(now)
            case Received(_, ProducerGiven() as given):
                return self._on_given(given, now)
            case Received(_, Produced(value)):
                if value not in self._waiting:
                    return []
                if value == next(iter(self._waiting)):  # each request has its time, also the first
                    self._due = now + self._timeout_s
                del self._waiting[value]
                return [Acknowledge(value), *self._fill(now)]
            case Received(source, Refused() as refused):
                return self._on_refused(source, refused, now)
            case Tick():
                return self._on_tick(now)
            case _:
                return []

    def _on_given(self, given: ProducerGiven, now: float) -> list[Effect]:
        if self._has_id or given == self._id:
            return []
        self._id, self._has_id, self._next = given, True, 0
        self._waiting = dict.fromkeys(self._waiting)
        return self._send_again(now)

    def _on_refused(self, source: str, refused: Refused, now: float) -> list[Effect]:
        is_current = refused.attempt in (0, self._attempt) and self._has_id
        if refused.value not in self._waiting or not is_current:
            return []
        if refused.is_gap and refused.value == next(iter(self._waiting)):
            self._has_id = False  # what was acknowledged before it is gone: another epoch
            self._ask_at = now + self._timeout_s
            return [Send(self._controller, InitProducer(self._id.producer))]
        if self._retry_at is None:
            self._retry_at = now + self._retry_s
            self._turn_from(source, refused.leader)
        return []

    def _on_tick(self, now: float) -> list[Effect]:
        if not self._has_id:
            if now < self._ask_at:
                return []
            self._ask_at = now + self._timeout_s
            return [Send(self._controller, InitProducer(self._id.producer))]
        if self._retry_at is not None and now >= self._retry_at:
            return self._send_again(now)
        if self._flying.intersection(self._waiting) and now >= self._due:
            self._turn_from(self._target, "")
            return self._send_again(now)
        return []

    def _turn_from(self, server: str, leader: str) -> None:
        if leader:
            self._target = leader
        elif server == self._target:
            place = self._servers.index(server)
            self._target = self._servers[(place + 1) % len(self._servers)]

    def _send_again(self, now: float) -> list[Effect]:
        self._attempt += 1
        self._flying.clear()
        self._retry_at, self._due = None, now + self._timeout_s
        return self._fill(now)

    def _fill(self, now: float) -> list[Effect]:
        """Send what may be in flight and is not. Nothing that is so far behind the first value that
        waits that a broker which takes it no longer knows that one: its answer may be lost alone.
        """
        if not self._has_id or self._retry_at is not None:
            return []
        effects: list[Effect] = []
        first: int | None = None
        for value in [*islice(self._waiting, IN_FLIGHT_MAX)]:
            sequence = self._waiting[value]
            place = self._next if sequence is None else sequence
            first = place if first is None else first
            if place >= first + IN_FLIGHT_MAX:
                break
            if value in self._flying:
                continue
            if not self._flying:
                self._due = now + self._timeout_s
            if sequence is None:
                sequence = self._waiting[value] = place
                self._next += 1
            self._flying.add(value)
            stamp = Stamp(self._id.producer, self._id.epoch, sequence)
            effects.append(Send(self._target, Produce(value, stamp, self._attempt)))
        return effects
