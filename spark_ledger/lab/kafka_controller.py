"""Kafka's controller: it elects a partition's leaders, and stores the in-sync set.

After the replication design in Kafka's documentation, KIP-497, and KIP-966 without its unclean
recovery. It is one server that does not fail; there is no return to a preferred leader. It also
gives producers their ids.
"""

from __future__ import annotations

from spark_ledger.lab.kafka import (
    SESSION_S,
    AlterIsr,
    Heartbeat,
    KafkaOptions,
    LeaderAndIsr,
)
from spark_ledger.lab.kafka_idempotence import InitProducer, ProducerGiven
from spark_ledger.lab.machines import Effect, Event, Note, Received, Send, Tick


class Controller:
    """Elects leaders from the in-sync set, and stores that set.

    The last member of the set stays in it, also if it dies and comes back without what was in its
    page cache. With eligible leader replicas (KIP-966) it does not. Whoever leaves a set that is
    then too small for writes stays eligible, because nothing is acknowledged without it; and who
    comes back without having been stopped in order is not, since its tail may be gone. If nobody
    is left so, the last leader is waited for.
    """

    def __init__(self, brokers: tuple[str, ...], options: KafkaOptions) -> None:
        self._options = options
        self._brokers = brokers
        self._seen: dict[str, tuple[float, float]] = {}
        """When a broker was last heard, and its incarnation."""
        self.state = LeaderAndIsr(1, brokers[0], brokers, 1)
        self.eligible: tuple[str, ...] = ()
        """May lead, and are not in sync."""
        self._last_leader = brokers[0]
        self._producers: list[int] = []
        """The epoch of each producer's id; the first id is 1."""

    def knows(self) -> str:
        state = self.state
        eligible = f", eligible {' '.join(self.eligible)}" if self.eligible else ""
        leads = f"epoch {state.epoch}, leader {state.leader or 'none'}"
        return f"{leads}, in sync {' '.join(state.isr) or 'nobody'}{eligible}"

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(source, Heartbeat(incarnation, is_whole)):
                known = self._seen.get(source)
                self._seen[source] = (now, incarnation)
                effects: list[Effect] = []
                if known is not None and known[1] != incarnation:
                    effects = self._lost(source, now, is_whole=is_whole)  # it died and came back
                return [*effects, Send(source, self.state), *self._elect_if_needed(now)]
            case Received(source, AlterIsr(epoch, isr, version)):
                current = (epoch, version) == (self.state.epoch, self.state.version)
                if current and source == self.state.leader:
                    return self._change(isr=isr)
                return [Send(source, self.state)]
            case Received(source, InitProducer(producer)):
                return [Send(source, self._give(producer))]
            case Tick():
                effects = []
                for broker in self._brokers:
                    if broker in self._seen and not self._is_live(broker, now):
                        effects += self._lost(broker, now)
                return effects
            case _:
                return []

    def _give(self, producer: int) -> ProducerGiven:
        """A new id, or the next epoch of this one."""
        if not producer:
            self._producers.append(0)
            return ProducerGiven(len(self._producers), 0)
        self._producers[producer - 1] += 1
        return ProducerGiven(producer, self._producers[producer - 1])

    def _is_live(self, broker: str, now: float) -> bool:
        seen = self._seen.get(broker)
        return seen is not None and now - seen[0] < SESSION_S

    def _lost(self, broker: str, now: float, *, is_whole: bool = True) -> list[Effect]:
        """It is silent, or was started again; not ``is_whole``: its tail may be gone."""
        state, effects = self.state, list[Effect]()
        left = tuple(member for member in state.isr if member != broker)
        # Without eligible replicas the last member stays: nobody else has it all.
        if broker in state.isr and (left or self._options.eligible_leaders):
            effects = self._change(isr=left, leader="" if broker == state.leader else None)
        elif broker == state.leader:
            effects = self._change(leader="")
        if not is_whole:
            self.eligible = tuple(each for each in self.eligible if each != broker)
        return [*effects, *self._elect_if_needed(now)] if effects else []

    def _elect_if_needed(self, now: float) -> list[Effect]:
        if self.state.leader:
            return []
        live = [broker for broker in self.state.isr if self._is_live(broker, now)]
        if live:
            return [Note("leader"), *self._change(leader=live[0])]
        live = [broker for broker in self.eligible if self._is_live(broker, now)]
        if live:
            return [Note("leader"), *self._change(leader=live[0], isr=(live[0],))]
        is_nobody_left = not self.state.isr and not self.eligible
        if is_nobody_left and self._is_live(self._last_leader, now):
            last = self._last_leader  # all have lost their page caches: it had the most
            return [Note("last leader"), *self._change(leader=last, isr=(last,))]
        others = [broker for broker in self._brokers if self._is_live(broker, now)]
        if self._options.unclean_leader_election and others:
            change = self._change(leader=others[0], isr=(others[0],))
            return [Note("unclean election"), *change]
        return []

    def _change(
        self, *, isr: tuple[str, ...] | None = None, leader: str | None = None
    ) -> list[Effect]:
        state, options = self.state, self._options
        self._last_leader = leader or self._last_leader
        self.state = LeaderAndIsr(
            state.epoch + (leader is not None),
            state.leader if leader is None else leader,
            state.isr if isr is None else isr,
            state.version + 1,
        )
        assert self.state.isr or options.eligible_leaders, "The in-sync set is never empty."
        if options.eligible_leaders:
            known = dict.fromkeys((*state.isr, *self.eligible))
            is_small = len(self.state.isr) < options.min_insync_replicas
            left = [broker for broker in known if broker not in self.state.isr]
            self.eligible = tuple(left) if is_small else ()
        return [Send(broker, self.state) for broker in self._brokers]
