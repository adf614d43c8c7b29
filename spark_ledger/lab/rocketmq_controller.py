"""RocketMQ with a controller: it names another master by itself, from the slaves that are in sync.

After RIP-44 and the pages on automatic fail-over of RocketMQ 5. The controller keeps the master,
its epoch and the *sync state set*. The master asks it to take in a slave that has all that is
confirmed, and to leave out one that was behind for long; a new master begins with a set of itself
alone. With synchronous replication a value waits for the whole set (``allAckInSyncStateSet``), of
two brokers at least (``minInSyncReplicas``). A slave first compares epochs with its new master, and
cuts what that one never had. Slaves answer from their page caches, as without a controller.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_ledger.lab.machines import (
    Effect,
    Event,
    Note,
    Received,
    Refused,
    Send,
    Store,
    Tick,
)
from spark_ledger.lab.rocketmq import Alive, Follow, RocketBroker, RocketOptions, Role

CONTROLLER: Final = "controller"
SESSION_S: Final = 1.0
"""A broker that is silent for so long is dead to the controller."""
BEHIND_S: Final = 1.0
"""A slave that had not all for so long leaves the set (``haMaxTimeSlaveNotCatchup``)."""
IN_SYNC_MIN: Final = 2


class Governed(NamedTuple):
    """The group's state, from the controller. ``version`` grows with each change of it."""

    epoch: int
    master: str
    in_sync: tuple[str, ...]
    version: int


class AlterInSync(NamedTuple):
    """The master asks for another set."""

    epoch: int
    in_sync: tuple[str, ...]
    version: int


class Handshake(NamedTuple):
    """A slave asks which epochs its master's log has."""

    epoch: int


class Epochs(NamedTuple):
    """Each epoch of the master's log, with its first entry's place and the place behind it."""

    epoch: int
    spans: tuple[tuple[int, int, int], ...]


class RocketController:
    """Names masters. It does not fail."""

    def __init__(self, brokers: tuple[str, ...]) -> None:
        self._brokers = brokers
        self.state = Governed(1, brokers[0], brokers, 1)
        self._seen: dict[str, tuple[float, Alive]] = {}
        """When a broker was last heard, and what it said."""

    def knows(self) -> str:
        state = self.state
        leads = f"epoch {state.epoch}, master {state.master or 'none'}"
        return f"{leads}, in sync {' '.join(state.in_sync)}"

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(source, Alive() as alive):
                known = self._seen.get(source)
                self._seen[source] = (now, alive)
                effects: list[Effect] = []
                is_new = known is not None and known[1].incarnation != alive.incarnation
                if is_new and source == self.state.master:
                    effects = self._change(source, self.state.in_sync)
                return [*effects, Send(source, self.state), *self._elect_if_needed(now)]
            case Received(source, AlterInSync(epoch, in_sync, version)):
                current = (epoch, version) == (self.state.epoch, self.state.version)
                if current and source == self.state.master:
                    return self._change(None, in_sync)
                return [Send(source, self.state)]
            case Tick():
                master = self.state.master
                if master in self._seen and not self._is_live(master, now):
                    gone = self._change("", self.state.in_sync)
                    return [*gone, *self._elect_if_needed(now)]
                return []
            case _:
                return []

    def _is_live(self, broker: str, now: float) -> bool:
        return broker in self._seen and now - self._seen[broker][0] < SESSION_S

    def _elect_if_needed(self, now: float) -> list[Effect]:
        """Of the set, who lives and has the most."""
        if self.state.master:
            return []
        live = [broker for broker in self.state.in_sync if self._is_live(broker, now)]
        if not live:
            return []
        said = {broker: self._seen[broker][1] for broker in live}
        most = max(live, key=lambda broker: (said[broker].last_epoch, said[broker].length))
        return [Note("fail-over by controller"), *self._change(most, (most,))]

    def _change(self, master: str | None, in_sync: tuple[str, ...]) -> list[Effect]:
        """``master``: None if it stays in office."""
        state = self.state
        epoch = state.epoch + (master is not None)
        master = state.master if master is None else master
        self.state = Governed(epoch, master, in_sync, state.version + 1)
        assert in_sync, "The set is never empty."
        return [Send(broker, self.state) for broker in self._brokers]


class GovernedBroker(RocketBroker):
    """A broker that does what the controller says."""

    _governor = CONTROLLER

    def __init__(self, name: str, store: Store, options: RocketOptions, now: float) -> None:
        super().__init__(name, store, options, now)
        self.state = Governed(0, "", (), 0)
        self._altering: tuple[str, ...] = ()
        self._epoch_start = 0
        """Of a master: how long its log was when it became one."""
        self._sent: dict[str, tuple[int, float]] = {}
        """Of a master: how long its log was when it sent a slave something, and when that was."""
        self._caught_up: dict[str, float] = {}
        self._compared = False
        """Of a slave: whether it has cut what its master never had."""

    def knows(self) -> str:
        return f"{super().knows()}, in sync {' '.join(self.state.in_sync) or '?'}"

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(_, Governed() as state):
                return self._on_governed(state, now)
            case Received(source, Handshake(epoch)):
                if not self.is_master or epoch != self.role.epoch:
                    return []
                return [Send(source, Epochs(epoch, self._spans()))]
            case Received(_, Epochs(epoch, spans)):
                is_current = not self.is_master and epoch == self.role.epoch
                return self._on_epochs(spans, now) if is_current else []
            case _:
                return super().handle(event, now)

    def _on_governed(self, state: Governed, now: float) -> list[Effect]:
        if state.version <= self.state.version:
            return []
        is_new_epoch = state.epoch != self.state.epoch
        self.state, self._altering = state, ()
        if not is_new_epoch:
            return self._answer() if self.is_master else []
        self._sent.clear()
        self._caught_up = dict.fromkeys(state.in_sync, now)
        self._epoch_start, self._compared = len(self.store.log), False
        return self._on_role(Role(state.epoch, state.master), now) if state.master else []

    # -- the master --------------------------------------------------------------------------------

    def _on_produce(self, source: str, value: int, now: float) -> list[Effect]:
        must_copy = self._options.sync_replication
        if self.is_master and must_copy and len(self.state.in_sync) < IN_SYNC_MIN:
            return [Send(source, Refused(value, ""))]
        return super()._on_produce(source, value, now)

    def _is_followed(self, now: float) -> bool:
        return True  # who does not follow leaves the set

    def _copied(self) -> int:
        """What the whole set has, with those that were asked for."""
        end = len(self.store.log)
        if not self._options.sync_replication:
            return end
        members = {*self.state.in_sync, *self._altering} - {self.name}
        return min([end, *(self._offsets.get(each, 0) for each in members)])

    def _on_follow(self, source: str, follow: Follow, now: float) -> list[Effect]:
        end, at = self._sent.get(source, (len(self.store.log), now))
        effects, offset = super()._on_follow(source, follow, now), follow.offset
        if offset >= end:
            self._caught_up[source] = at
        members = {*self.state.in_sync} - {self.name}
        confirmed = min((self._offsets.get(each, 0) for each in members), default=end)
        if source not in self.state.in_sync and offset >= max(confirmed, self._epoch_start):
            effects += self._alter((*self.state.in_sync, source))
        return effects

    def _transfer(self, now: float, *, also_empty: bool = False) -> list[Effect]:
        effects = super()._transfer(now, also_empty=also_empty)
        for effect in effects:
            if isinstance(effect, Send):
                self._sent[effect.target] = len(self.store.log), now
        return effects

    def _alter(self, in_sync: tuple[str, ...]) -> list[Effect]:
        if self._altering:
            return []
        self._altering = in_sync
        return [Send(CONTROLLER, AlterInSync(self.state.epoch, in_sync, self.state.version))]

    def _spans(self) -> tuple[tuple[int, int, int], ...]:
        spans: list[tuple[int, int, int]] = []
        for place, entry in enumerate(self.store.log):
            if spans and spans[-1][0] == entry.epoch:
                spans[-1] = (entry.epoch, spans[-1][1], place + 1)
            else:
                spans.append((entry.epoch, place, place + 1))
        return tuple(spans)

    # -- a slave -----------------------------------------------------------------------------------

    def _follow(self, now: float) -> list[Effect]:
        if self._compared:
            return super()._follow(now)
        self._asked_at = now
        return [Send(self.role.master, Handshake(self.role.epoch))]

    def _on_epochs(self, spans: tuple[tuple[int, int, int], ...], now: float) -> list[Effect]:
        """Cut behind the last place up to which both logs are the same."""
        if self._compared:
            return []
        self._compared = True
        starts = {(epoch, start): end for epoch, start, end in spans}
        same = 0
        for epoch, start, end in self._spans():
            same = max(same, min(end, starts.get((epoch, start), 0)))
        return [Note("truncated", self.store.truncate(same)), *self._follow(now)]

    # -- time --------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[Effect]:
        is_due = now >= self._heartbeat_at
        effects = super()._on_tick(now)
        if not self.is_master:
            return effects
        if is_due and self._altering:
            wanted, self._altering = self._altering, ()
            effects += self._alter(wanted)
        members = [each for each in self.state.in_sync if each != self.name]
        late = {each for each in members if now - self._caught_up.get(each, 0.0) > BEHIND_S}
        if late:
            effects += self._alter(tuple(m for m in self.state.in_sync if m not in late))
        return effects
