"""RocketMQ's master and slaves: who answers when, and an operator who fails over by hand.

After the pages on master and slave, flushing and high availability in RocketMQ's documentation; a
controller instead of the operator is in ``rocketmq_controller.py``. One broker group. With
asynchronous replication the master sends its slaves what is new only when its transfer wakes up,
ten times a second; with synchronous replication it sends at once, and answers when one slave has
the value in its page cache (slaves are never asked to flush). Nobody elects: a person looks, and
names the slave with the longest log. A slave whose log is not the beginning of its master's is
emptied and copied anew, as that person would do it. A broker whose disk is full refuses what is to
be written, and stays what it is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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

OPERATOR: Final = "operator"
HEARTBEAT_S: Final = 0.1
OPERATOR_S: Final = 3.0
"""A person takes longer than a program to see that a master is gone: minutes, scaled down."""
TRANSFER_S: Final = 0.1
"""How long the transfer to a slave sleeps, if nobody waits for it."""
WRITE_BACK_S: Final = 0.5
"""How often an asynchronous flush syncs the log."""
SLAVE_S: Final = 1.0
"""A slave that asks nothing for so long is not connected."""
BATCH_MAX: Final = 200


SYNC_TIMEOUT_S: Final = 0.5
"""How long a synchronous master waits for a slave before it says so (``syncFlushTimeout``)."""


class RocketOptions(NamedTuple):
    """``brokerRole`` (SYNC_MASTER or ASYNC_MASTER) and ``flushDiskType`` of the master."""

    sync_replication: bool = False
    sync_flush: bool = False
    takes_timeouts: bool = False
    """The application takes FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE for success: they are no
    exceptions, and the master has the value. The others send such a value again."""
    slaves_read: bool = False
    """Consumers ask slaves, as a master with much in memory tells them to. A slave shows all that
    it has: it knows nothing of what was acknowledged."""


class Alive(NamedTuple):
    """A broker lives, and its log has this length. ``incarnation`` is new after each start."""

    incarnation: float
    length: int
    last_epoch: int = 0


class Role(NamedTuple):
    """Who is master. ``epoch`` grows with each start and each change of the master."""

    epoch: int
    master: str


class Follow(NamedTuple):
    """A slave has ``offset`` entries, of which this is the last one."""

    epoch: int
    offset: int
    last: Entry | None


class Transferred(NamedTuple):
    """The entries from ``offset`` on; not ``fits``: the slave's log is not the master's."""

    epoch: int
    offset: int
    entries: tuple[Entry, ...]
    fits: bool

    @property
    def carries(self) -> tuple[int, ...]:
        return values_of(self.entries)


class Operator:
    """The person with a console: who is master, and when that changes."""

    def __init__(self, brokers: tuple[str, ...]) -> None:
        self.role = Role(1, brokers[0])
        self._seen: dict[str, tuple[float, Alive]] = {}
        """When a broker was last heard, and what it said."""

    def knows(self) -> str:
        return f"epoch {self.role.epoch}, master {self.role.master}"

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(source, Alive() as alive):
                known = self._seen.get(source)
                self._seen[source] = (now, alive)
                is_new = known is not None and known[1].incarnation != alive.incarnation
                if is_new and source == self.role.master:
                    self.role = Role(self.role.epoch + 1, source)
                return [Send(source, self.role)]
            case Tick():
                return self._look(now)
            case _:
                return []

    def _look(self, now: float) -> list[Effect]:
        """Name another master, if this one has been silent for long and a slave lives."""
        seen = self._seen.get(self.role.master)
        if seen is None or now - seen[0] < OPERATOR_S:
            return []
        live = {name: alive for name, (at, alive) in self._seen.items() if now - at < SLAVE_S}
        if not live:
            return []
        longest = max(live, key=lambda name: live[name].length)
        self.role = Role(self.role.epoch + 1, longest)
        return [Note("fail-over by hand"), *(Send(broker, self.role) for broker in live)]


class RocketBroker:
    """One broker of the group: the master, or a slave."""

    _governor = OPERATOR

    def __init__(self, name: str, store: Store, options: RocketOptions, now: float) -> None:
        self.name, self.store, self._options = name, store, options
        self.role = Role(0, "")
        self.follows = False
        """Whether this slave's log is the beginning of its master's, by the master's answer."""
        self._incarnation = now
        self._heartbeat_at = 0.0
        self._write_back_at = now + WRITE_BACK_S
        self._transfer_at = 0.0
        self._asked_at = 0.0
        self._offsets: dict[str, int] = {}
        self._heard: dict[str, float] = {}
        self._parked: dict[str, int] = {}
        """Slaves that have everything up to here, and wait for more."""
        self._waiting: dict[int, tuple[str, float]] = {}
        """Who waits for an entry, since when."""

    @property
    def is_master(self) -> bool:
        return self.role.master == self.name

    def knows(self) -> str:
        master = self.role.master
        role = "master" if master == self.name else f"slave of {master or '?'}"
        return f"{role} in epoch {self.role.epoch}"

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Tick():
                return self._on_tick(now)
            case Synced():
                return self._answer() if self.is_master else []
            case Received(_, Role() as role):
                return self._on_role(role, now)
            case Received(source, Produce(value)):
                return self._on_produce(source, value, now)
            case Received(source, Ask(number)):
                shows = self._options.slaves_read and not self.is_master
                return [Send(source, Shown(number, len(self.store.log)))] if shows else []
            case Received(source, Follow() as follow):
                is_mine = self.is_master and follow.epoch == self.role.epoch
                return self._on_follow(source, follow, now) if is_mine else []
            case Received(_, Transferred() as answer):
                is_current = not self.is_master and answer.epoch == self.role.epoch
                return self._on_transferred(answer, now) if is_current else []
            case _:
                return []

    def _on_role(self, role: Role, now: float) -> list[Effect]:
        if role.epoch <= self.role.epoch:
            return []
        self.role, self.follows = role, False
        for known in (self._offsets, self._heard, self._parked, self._waiting):
            known.clear()
        return [] if self.is_master else self._follow(now)

    # -- the master --------------------------------------------------------------------------------

    def _on_produce(self, source: str, value: int, now: float) -> list[Effect]:
        if not self.is_master:
            return [Send(source, Refused(value, self.role.master))]
        must_copy = self._options.sync_replication and not self._options.takes_timeouts
        # A client that is refused asks the name server, which may know another master.
        if must_copy and not self._is_followed(now):
            return [Send(source, Refused(value, ""))]
        if self.store.is_full:
            return [Send(source, Refused(value, ""))]  # it goes on being master
        self.store.append(Entry(self.role.epoch, value))
        self._waiting[len(self.store.log)] = source, now
        effects: list[Effect] = [Sync()] if self._options.sync_flush else []
        if self._options.takes_timeouts and not self._is_followed(now):
            return [*effects, *self._answer_up_to(len(self.store.log))]  # SLAVE_NOT_AVAILABLE
        if self._options.sync_replication:
            return [*effects, *self._transfer(now)]
        return [*effects, *self._answer()]

    def _is_followed(self, now: float) -> bool:
        return any(now - at < SLAVE_S for at in self._heard.values())

    def _answer(self) -> list[Effect]:
        """Tell clients whose values are as safe as the settings promise."""
        options, end = self._options, len(self.store.log)
        flushed = self.store.synced if options.sync_flush else end
        return self._answer_up_to(min(flushed, self._copied()))

    def _copied(self) -> int:
        """How much is on as many slaves as the settings ask for."""
        options, end = self._options, len(self.store.log)
        return max(self._offsets.values(), default=0) if options.sync_replication else end

    def _answer_up_to(self, end: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._waiting and (first := next(iter(self._waiting))) <= end:
            source, _since = self._waiting.pop(first)
            effects.append(Send(source, Produced(self.store.log[first - 1].value)))
        return effects

    def _answer_late(self, now: float) -> list[Effect]:
        """Those who have waited for a slave for so long that they are told."""
        late = [at for at, (_, since) in self._waiting.items() if now - since >= SYNC_TIMEOUT_S]
        return self._answer_up_to(max(late, default=0))

    def _on_follow(self, source: str, follow: Follow, now: float) -> list[Effect]:
        self._heard[source] = now
        log, offset = self.store.log, follow.offset
        if offset and (offset > len(log) or log[offset - 1] != follow.last):
            return [Send(source, Transferred(self.role.epoch, offset, (), False))]
        self._offsets[source] = self._parked[source] = offset
        is_behind = len(log) - offset >= BATCH_MAX  # a copy does not sleep between its batches
        wakes = self._options.sync_replication or is_behind
        return [*self._answer(), *(self._transfer(now) if wakes else [])]

    def _transfer(self, now: float, *, also_empty: bool = False) -> list[Effect]:
        """Send slaves that wait what they lack."""
        effects: list[Effect] = []
        for slave, offset in list(self._parked.items()):
            entries = tuple(self.store.log[offset : offset + BATCH_MAX])
            if entries or also_empty:
                del self._parked[slave]
                answer = Transferred(self.role.epoch, offset, entries, True)
                effects.append(Send(slave, answer))
        return effects

    # -- a slave -----------------------------------------------------------------------------------

    def _follow(self, now: float) -> list[Effect]:
        self._asked_at = now
        log = self.store.log
        return [Send(self.role.master, Follow(self.role.epoch, len(log), log[-1] if log else None))]

    def _on_transferred(self, answer: Transferred, now: float) -> list[Effect]:
        if answer.offset != len(self.store.log):
            return []  # an answer to an earlier question
        self.follows = answer.fits
        if not answer.fits:
            return [Note("truncated", self.store.truncate(0)), *self._follow(now)]
        if self.store.is_full and answer.entries:
            return []  # it asks again when it has been silent for long
        self.store.append(*answer.entries)
        return self._follow(now)

    # -- time --------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if now >= self._write_back_at:
            self._write_back_at = now + WRITE_BACK_S
            effects.append(Sync())
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + HEARTBEAT_S
            log = self.store.log
            alive = Alive(self._incarnation, len(log), log[-1].epoch if log else 0)
            effects.append(Send(self._governor, alive))
        if self.is_master and self._options.takes_timeouts:
            effects += self._answer_late(now)
        if self.is_master and now >= self._transfer_at:
            self._transfer_at = now + TRANSFER_S
            effects += self._transfer(now, also_empty=True)
        is_silent = now - self._asked_at >= SLAVE_S / 2
        if self.role.master and not self.is_master and is_silent:
            effects += self._follow(now)
        return effects
