"""Kafka's replication: a leader, followers that fetch, in-sync replicas, and a controller.

After the replication design in Kafka's documentation, KIP-101 and KIP-279 (leader epochs instead
of truncation by high watermark), KIP-497 (changes of the in-sync set through the controller:
until one is confirmed, the high watermark waits for the members of both sets), KIP-966 (eligible
leader replicas) and KIP-392 (consumers that ask followers). The controller is in
``kafka_controller.py``. One partition. A broker whose disk is full ends. Times are scaled down.
Left out: transactions, compaction, tiers, and the way back to a preferred leader.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from spark_ledger.lab.kafka_idempotence import GAP, NEXT, Sequences
from spark_ledger.lab.machines import (
    Ask,
    Effect,
    Entry,
    Event,
    Note,
    Produce,
    Produced,
    Received,
    Refused,
    Send,
    Shown,
    Store,
    Sync,
    Synced,
    Tick,
    values_of,
)

CONTROLLER: Final = "controller"
HEARTBEAT_S: Final = 0.1
WRITE_BACK_S: Final = 5.0
"""How often the kernel writes the page cache to the disk, if nobody asks for it sooner."""
SESSION_S: Final = 1.0
"""A broker that is silent for so long is dead to the controller."""
BATCH_MAX: Final = 200


class KafkaOptions(NamedTuple):
    """A topic's settings, by Kafka's names."""

    acks: Literal["0", "1", "all"] = "all"
    """Of the producer. With 0 it does not wait: see ``CarelessProducer``."""
    min_insync_replicas: int = 2
    replica_lag_time_max_s: float = 1.0
    """A follower that was not caught up for so long leaves the in-sync set. It is caught up at the
    time of its last fetch but one, if its last one asks for all that there was then."""
    unclean_leader_election: bool = False
    flush_each: bool = False
    """``flush.messages=1``: an entry counts when it is synced, not when it is in the page cache."""
    truncate_by_epoch: bool = True
    """False: followers cut their log at their high watermark, as before KIP-101."""
    eligible_leaders: bool = False
    """``eligible.leader.replicas``: see ``Controller``."""
    idempotent: bool = False
    """``enable.idempotence`` of the producer: see ``kafka_idempotence.py``."""
    reads: str = ""
    """Whom consumers ask: nobody reads, the ``leader``, or a ``follower``."""

    @property
    def acks_all(self) -> bool:
        """Whether a record counts when all in-sync replicas have it."""
        return self.acks == "all"


class Heartbeat(NamedTuple):
    """A broker lives. ``incarnation`` is another one after each start; ``is_whole``: it was stopped
    in order before that, so its log lacks nothing."""

    incarnation: float
    is_whole: bool = False


class LeaderAndIsr(NamedTuple):
    """The partition's state, from the controller. ``version`` grows with each change of it."""

    epoch: int
    leader: str
    isr: tuple[str, ...]
    version: int


class AlterIsr(NamedTuple):
    """The leader asks for another in-sync set."""

    epoch: int
    isr: tuple[str, ...]
    version: int


class OffsetForEpoch(NamedTuple):
    """A follower asks where its last epoch ends in the leader's log."""

    epoch: int
    of: int


class EndOffset(NamedTuple):
    """The largest epoch up to the one asked for, and where it ends."""

    epoch: int
    of: int
    end: int


class Fetch(NamedTuple):
    """A follower has everything below ``offset``. ``number`` comes back with the answer."""

    epoch: int
    offset: int
    number: int


class Fetched(NamedTuple):
    """The entries from ``offset`` on, and the leader's high watermark."""

    epoch: int
    offset: int
    entries: tuple[Entry, ...]
    high_watermark: int
    number: int

    @property
    def carries(self) -> tuple[int, ...]:
        return values_of(self.entries)


class Broker:
    """One broker. ``high_watermark`` entries are on every in-sync replica, as far as it knows."""

    def __init__(self, name: str, store: Store, options: KafkaOptions, now: float) -> None:
        self.name, self.store, self._options = name, store, options
        # As of the last checkpoint: what was acknowledged since is above it.
        self.high_watermark = min(store.meta.get("high watermark", 0), len(store.log))
        self.state = LeaderAndIsr(0, "", (), 0)
        self._incarnation = now
        self._is_whole = bool(store.meta.pop("stopped", 0))
        self._epoch_start = 0
        """Of a leader: how long its log was when it became one."""
        self._heartbeat_at = 0.0
        self._offsets: dict[str, int] = {}
        self._caught_up: dict[str, float] = {}
        self._fetched_at: dict[str, tuple[int, float]] = {}
        """Of each follower's last fetch: how long the log was then, and when that was."""
        self._parked: dict[str, Fetch] = {}
        """Fetches that wait for an entry, by follower."""
        self._waiting: dict[int, str] = {}
        self._sequences = Sequences(store)
        self._altering: tuple[str, ...] = ()
        self._fetch_due = 0.0
        self._fetches = 0
        self._is_fetching = False
        """One question is open at a time: an answer to an earlier one asks nothing more."""
        self._write_back_at = now + WRITE_BACK_S
        self._truncated = False

    @property
    def is_leader(self) -> bool:
        return self.state.leader == self.name

    @property
    def end(self) -> int:
        """The log end offset that counts."""
        return self.store.synced if self._options.flush_each else len(self.store.log)

    def knows(self) -> str:
        role = "leader" if self.is_leader else f"follower of {self.state.leader or '?'}"
        return f"{role} in epoch {self.state.epoch}, high watermark {self.high_watermark}"

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Tick():
                return self._on_tick(now)
            case Synced():
                return self._on_grown(now) if self._options.flush_each else []
            case Received(_, LeaderAndIsr() as state):
                return self._on_state(state, now)
            case Received(source, Produce() as produce):
                return self._on_produce(source, produce, now)
            case Received(source, Ask(number)):
                return self._on_ask(source, number)
            case Received(source, Fetch() as fetch):
                is_mine = self.is_leader and fetch.epoch == self.state.epoch
                return self._on_fetch(source, fetch, now) if is_mine else []
            case Received(source, OffsetForEpoch(epoch, of)):
                if not self.is_leader or epoch != self.state.epoch:
                    return []
                return [Send(source, EndOffset(epoch, *self._end_of(of)))]
            case Received(_, EndOffset() as answer):
                return self._on_end_offset(answer, now)
            case Received(_, Fetched() as answer):
                return self._on_fetched(answer, now)
            case _:
                return []

    # -- leadership --------------------------------------------------------------------------------

    def _on_state(self, state: LeaderAndIsr, now: float) -> list[Effect]:
        if state.version <= self.state.version:
            return []
        is_new_epoch = state.epoch != self.state.epoch
        self.state, self._altering = state, ()
        if not is_new_epoch:
            return self._advance() if self.is_leader else []
        self._waiting.clear()
        self._parked.clear()
        if self.is_leader:
            self._offsets = dict.fromkeys(state.isr, 0)
            self._caught_up = dict.fromkeys(state.isr, now)
            self._fetched_at.clear()
            self._epoch_start = len(self.store.log)
            return self._advance()
        if not state.leader:
            return []
        effects: list[Effect] = []
        self._truncated = not self._options.truncate_by_epoch
        if self._truncated:
            effects.append(Note("truncated", self.store.truncate(self.high_watermark)))
        return [*effects, *self._ask(now)]

    def _end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and where it ends in this log (KIP-279)."""
        log = self.store.log
        end = len(log)
        while end and log[end - 1].epoch > epoch:
            end -= 1
        return (log[end - 1].epoch if end else 0), end

    def _ask(self, now: float) -> list[Effect]:
        """What a follower asks its leader: first where to cut, then for entries."""
        self._fetch_due = now + 5 * HEARTBEAT_S
        self._fetches += 1
        self._is_fetching = True
        state, log = self.state, self.store.log
        if self._truncated or not log:
            self._truncated = True
            return [Send(state.leader, Fetch(state.epoch, self.end, self._fetches))]
        return [Send(state.leader, OffsetForEpoch(state.epoch, log[-1].epoch))]

    def _on_end_offset(self, answer: EndOffset, now: float) -> list[Effect]:
        if answer.epoch != self.state.epoch or self._truncated:
            return []
        epoch, end = self._end_of(answer.of)
        gone = self.store.truncate(min(end, answer.end))
        self.high_watermark = min(self.high_watermark, len(self.store.log))
        self.store.meta["high watermark"] = self.high_watermark
        self._truncated = epoch == answer.of or not self.store.log
        return [Note("truncated", gone), *self._ask(now)] if gone else self._ask(now)

    def _on_fetched(self, answer: Fetched, now: float) -> list[Effect]:
        log = self.store.log
        if answer.epoch != self.state.epoch or answer.number != self._fetches:
            return []
        assert not self.is_leader, "The leader of an epoch fetches nothing in it."
        assert answer.offset <= len(log), "A follower asks for what comes next."
        self._is_fetching = False
        new = answer.entries[len(log) - answer.offset :]
        self.store.append(*new)
        self.high_watermark = max(self.high_watermark, min(answer.high_watermark, len(log)))
        if not new:
            return self._ask(now)
        return [Sync()] if self._options.flush_each else self._ask(now)

    # -- the leader --------------------------------------------------------------------------------

    def _on_produce(self, source: str, produce: Produce, now: float) -> list[Effect]:
        options, (value, stamp, attempt) = self._options, produce
        if not self.is_leader:
            return [Send(source, Refused(value, self.state.leader, attempt))]
        if options.acks_all and self._is_small:
            return [Send(source, Refused(value, self.name, attempt))]
        place = NEXT if stamp is None else self._sequences.judge(stamp)
        if place == GAP:
            return [Send(source, Refused(value, self.name, attempt, is_gap=True))]
        if place != NEXT:  # it is in the log: answered as if it had just come
            self._waiting[place] = source
            return self._answer(self.high_watermark if options.acks_all else self.end)
        self.store.append(Entry(self.state.epoch, value, stamp))
        self._waiting[len(self.store.log)] = source
        return [Sync()] if options.flush_each else self._on_grown(now)

    def _on_grown(self, now: float) -> list[Effect]:
        """The log that counts is longer: answer those who wait for it."""
        if not self.is_leader:
            is_free = self._truncated and not self._is_fetching
            return self._ask(now) if self.state.leader and is_free else []
        parked, self._parked = self._parked, {}
        fetched = [self._fetched(follower, at) for follower, at in parked.items()]
        if not self._options.acks_all:
            return [*self._answer(self.end), *fetched, *self._advance()]
        return [*fetched, *self._advance()]

    def _on_fetch(self, source: str, fetch: Fetch, now: float) -> list[Effect]:
        offset = fetch.offset
        self._offsets[source] = offset
        end, at = self._fetched_at.get(source, (self.end, now))
        self._fetched_at[source] = self.end, now
        if offset >= min(end, self.end):
            self._caught_up[source] = now if offset >= self.end else at
        effects = self._advance()
        # What an earlier leader acknowledged may lie above this one's high watermark.
        least = max(self.high_watermark, self._epoch_start)
        if source not in self.state.isr and offset >= least:
            effects += self._alter((*self.state.isr, source))
        if offset >= self.end:
            self._parked[source] = fetch
            return effects
        return [*effects, self._fetched(source, fetch)]

    def _fetched(self, follower: str, fetch: Fetch) -> Send:
        offset = fetch.offset
        entries = tuple(self.store.log[offset : min(self.end, offset + BATCH_MAX)])
        answer = Fetched(self.state.epoch, offset, entries, self.high_watermark, fetch.number)
        return Send(follower, answer)

    def _advance(self) -> list[Effect]:
        """The high watermark is the least end of the in-sync replicas, asked for ones included."""
        members = {*self.state.isr, *self._altering} - {self.name}
        least = min([self.end, *(self._offsets.get(each, 0) for each in members)])
        if self._options.eligible_leaders and self._is_small:
            least = 0  # KIP-966: who left the set has all that is committed
        self.high_watermark = max(self.high_watermark, least)
        return self._answer(self.high_watermark) if self._options.acks_all else []

    def _answer(self, up_to: int) -> list[Effect]:
        """Tell clients whose entries count now, in the order of their offsets.

        An entry that counts because the in-sync set has become too small is refused
        (``NOT_ENOUGH_REPLICAS_AFTER_APPEND``), though it stays in the log."""
        effects: list[Effect] = []
        is_safe = not (self._options.acks_all and self._is_small)
        for place in sorted(each for each in self._waiting if each <= up_to):
            value = self.store.log[place - 1].value
            answer = Produced(value) if is_safe else Refused(value, self.name)
            effects.append(Send(self._waiting.pop(place), answer))
        return effects

    @property
    def _is_small(self) -> bool:
        return len(self.state.isr) < self._options.min_insync_replicas

    def _on_ask(self, source: str, number: int) -> list[Effect]:
        """A consumer sees what is below the high watermark, as far as this broker knows it."""
        asked = "leader" if self.is_leader else "follower"
        if self._options.reads != asked:
            return []
        return [Send(source, Shown(number, self.high_watermark))]

    def _alter(self, isr: tuple[str, ...]) -> list[Effect]:
        if self._altering:
            return []
        self._altering = isr
        return [Send(CONTROLLER, AlterIsr(self.state.epoch, isr, self.state.version))]

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if now >= self._write_back_at:
            self._write_back_at = now + WRITE_BACK_S
            self.store.meta["high watermark"] = self.high_watermark
            effects.append(Sync())
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + HEARTBEAT_S
            effects.append(Send(CONTROLLER, Heartbeat(self._incarnation, self._is_whole)))
            for follower, at in self._parked.items():  # they learn the high watermark
                effects.append(self._fetched(follower, at))
            self._parked.clear()
            if self._altering and self.is_leader:
                wanted, self._altering = self._altering, ()
                effects += self._alter(wanted)
        if self.is_leader:
            lag = self._options.replica_lag_time_max_s
            late = {each for each in self.state.isr if each != self.name}
            late = {each for each in late if self._offsets.get(each, 0) < self.end}
            late = {each for each in late if now - self._caught_up.get(each, 0.0) > lag}
            if late:
                effects += self._alter(tuple(m for m in self.state.isr if m not in late))
        elif self.state.leader and now >= self._fetch_due:
            effects += self._ask(now)
        return effects
