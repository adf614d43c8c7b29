"""Every protocol with its settings: its servers and client, what it promises, and its log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from spark_ledger.lab.bookie_repair import AUDITOR, Auditor
from spark_ledger.lab.bookies import METADATA, Add, Bookie, Metadata
from spark_ledger.lab.bookkeeper import LedgerProducer
from spark_ledger.lab.dledger import DLedgerNode
from spark_ledger.lab.elections import Voter
from spark_ledger.lab.invariants import History, Leaders, LedgerPromises, LogMatching
from spark_ledger.lab.kafka import CONTROLLER, Broker, KafkaOptions
from spark_ledger.lab.kafka_controller import Controller
from spark_ledger.lab.kafka_idempotence import IdempotentProducer
from spark_ledger.lab.machines import NO_VALUE, CarelessProducer, Producer, Reader, Store
from spark_ledger.lab.raft import RaftNode, RaftOptions
from spark_ledger.lab.rocketmq import OPERATOR, Operator, RocketBroker, RocketOptions
from spark_ledger.lab.rocketmq_controller import GovernedBroker, RocketController
from spark_ledger.lab.world import CLIENT, READER, World
from spark_ledger.protocol.ensemble import fragment_of
from spark_ledger.protocol.quorum import write_set
from spark_ledger.types import EntryId, LedgerMetadata, Quorums

CLIENT_TIMEOUT_S: Final = 1.0
CLIENT_RETRY_S: Final = 0.1
READ_EVERY_S: Final = 0.1


class System(NamedTuple):
    """A protocol that was set up in a world."""

    servers: tuple[str, ...]
    copies: int
    """On how many servers each value is to be in the end."""
    final_log: Callable[[], list[int]]
    check: Callable[[], None]


MakeVoter = Callable[[str, tuple[str, ...], random.Random, Store, float], RaftNode | DLedgerNode]


def set_up_raft(world: World, *, servers: int = 3, options: RaftOptions | None = None) -> System:
    """Some servers, and a reader if the options name one."""
    chosen = options or RaftOptions()
    keeps = not chosen.counts_older_terms
    names = tuple(f"n{i}" for i in range(servers))
    system = _set_up_voters(world, names, partial(_raft_node, chosen), keeps=keeps)
    if chosen.reads:
        _read(world, names)
    if chosen.sessions:
        # The state machine takes a value once: it knows its client's numbers.
        return system._replace(final_log=lambda: list(dict.fromkeys(system.final_log())))
    return system


def _read(world: World, names: tuple[str, ...]) -> None:
    reader = Reader(names, every_s=READ_EVERY_S)
    world.add(READER, lambda _store, _now: reader)


def _raft_node(
    options: RaftOptions,
    name: str,
    peers: tuple[str, ...],
    draw: random.Random,
    store: Store,
    now: float,
) -> RaftNode | DLedgerNode:
    return RaftNode(name, peers, store, draw, now, options)


def set_up_dledger(world: World, *, flush_each: bool = False) -> System:
    """Three servers of a DLedger group."""
    names = ("n0", "n1", "n2")
    return _set_up_voters(world, names, partial(_dledger_node, flush_each), keeps=flush_each)


def _dledger_node(
    flush_each: bool,
    name: str,
    peers: tuple[str, ...],
    draw: random.Random,
    store: Store,
    now: float,
) -> RaftNode | DLedgerNode:
    return DLedgerNode(name, peers, store, draw, now, flush_each=flush_each)


def _set_up_voters(world: World, names: tuple[str, ...], make: MakeVoter, *, keeps: bool) -> System:
    """Servers that elect a leader. ``keeps``: what is committed is on disks, and stays."""
    for name in names:
        peers = tuple(each for each in names if each != name)
        world.add(name, partial(make, name, peers, world.random_for(name)))
    history, leaders, matching = History(), Leaders(), LogMatching()

    def nodes() -> list[Voter]:
        hosts = [world.hosts[name] for name in names]
        machines = [host.machine for host in hosts if host.process.alive]
        return [node for node in machines if isinstance(node, Voter)]

    def check() -> None:
        for node in nodes():
            matching.look(node.name, node.store)
            is_new = node.role == "leader" and leaders.is_new(node.term, node.name)
            if keeps:
                history.note(node, node.commit)
                if is_new:
                    history.is_in(node)

    def final() -> list[int]:
        node = max(nodes(), key=lambda node: node.commit)
        return [entry.value for entry in node.store.log[: node.commit] if entry.value != NO_VALUE]

    _produce(world, names)
    return System(names, len(names), final, check)


def set_up_kafka(options: KafkaOptions, world: World, *, servers: int = 3) -> System:
    """Some brokers and a controller."""
    names = tuple(f"n{i}" for i in range(servers))
    controller = Controller(names, options)
    world.add(CONTROLLER, lambda _store, _now: controller)
    for name in names:
        world.add(name, partial(_broker, name, options))

    history, leaders, matching = History(), Leaders(), LogMatching()
    matches = options.truncate_by_epoch
    keeps = options.flush_each and matches and not options.unclean_leader_election

    def check() -> None:
        hosts = [world.hosts[name] for name in names]
        for broker in (host.machine for host in hosts if host.process.alive):
            assert isinstance(broker, Broker)
            if matches:
                matching.look(broker.name, broker.store)
            is_new = broker.is_leader and leaders.is_new(broker.state.epoch, broker.name)
            if keeps:
                history.note(broker, broker.high_watermark)
                if is_new:
                    history.is_in(broker)

    def final() -> list[int]:
        leader = controller.state.leader or (*controller.state.isr, names[0])[0]
        return [entry.value for entry in world.hosts[leader].store.log]

    if options.idempotent:
        world.add(CLIENT, lambda _store, _now: _idempotent(names))
    else:
        _produce(world, names, CarelessProducer if options.acks == "0" else Producer)
    if options.reads:
        _read(world, names)
    return System(names, len(names), final, check)


def _idempotent(names: tuple[str, ...]) -> IdempotentProducer:
    timeout_s, retry_s = CLIENT_TIMEOUT_S, CLIENT_RETRY_S
    return IdempotentProducer(names, CONTROLLER, timeout_s=timeout_s, retry_s=retry_s)


def _broker(name: str, options: KafkaOptions, store: Store, now: float) -> Broker:
    return Broker(name, store, options, now)


def set_up_rocketmq(options: RocketOptions, world: World, *, governed: bool = False) -> System:
    """A master, two slaves, and an operator; if ``governed`` a controller."""
    names = ("n0", "n1", "n2")
    operator, controller = Operator(names), RocketController(names)
    if governed:
        world.add(CONTROLLER, lambda _store, _now: controller)
    else:
        world.add(OPERATOR, lambda _store, _now: operator)
    kind = GovernedBroker if governed else RocketBroker
    for name in names:
        world.add(name, partial(_rocket_broker, kind, name, options))

    matching = LogMatching()

    def brokers() -> dict[str, RocketBroker]:
        hosts = [world.hosts[name] for name in names]
        machines = [host.machine for host in hosts if host.process.alive]
        return {each.name: each for each in machines if isinstance(each, RocketBroker)}

    def check() -> None:
        live = brokers()
        for broker in live.values():
            matching.look(broker.name, broker.store)
            master, log = live.get(broker.role.master), broker.store.log
            if broker.follows and log and master is not None and master.role == broker.role:
                place = len(log)
                assert master.store.log[place - 1 : place] == log[-1:], "A slave's log differs."

    def final() -> list[int]:
        master = operator.role.master
        if governed:
            master = controller.state.master or controller.state.in_sync[0]
        return [entry.value for entry in world.hosts[master].store.log]

    _produce(world, names)
    if options.slaves_read:
        _read(world, names)
    return System(names, len(names), final, check)


def _rocket_broker(
    kind: type[RocketBroker], name: str, options: RocketOptions, store: Store, now: float
) -> RocketBroker:
    return kind(name, store, options, now)


def set_up_bookkeeper(quorums: Quorums, world: World, *, repairs: bool = False) -> System:
    """Five bookies and ZooKeeper; the client is the ledgers' writer. ``repairs``: an auditor has
    the entries of a lost bookie copied."""
    names = ("n0", "n1", "n2", "n3", "n4")
    metadata = Metadata()
    world.add(METADATA, lambda _store, _now: metadata)
    journals: dict[str, list[Add]] = {name: [] for name in names}
    for name in names:
        world.add(name, partial(_bookie, journals[name]))
    if repairs:
        world.add(AUDITOR, lambda _store, now: Auditor(names, now))
    world.add(CLIENT, lambda _store, now: LedgerProducer(names, quorums, now))

    def final() -> list[int]:
        return [
            value
            for ledger, _version in metadata.nodes.values()
            for value in _entries(world, ledger)
        ]

    promises = LedgerPromises(quorums, journals, metadata)
    return System(names, quorums.write_quorum, final, partial(promises.look, world))


def _bookie(records: list[Add], store: Store, _now: float) -> Bookie:
    return Bookie(store, records)


def _entries(world: World, ledger: LedgerMetadata) -> Iterator[int]:
    """The values of a ledger: up to its end, or to the first entry that no member has."""
    entry = EntryId(0)
    while not ledger.is_closed or entry <= ledger.last_entry_id:
        bookies = fragment_of(ledger, entry).bookies
        members = (world.hosts[bookies[i]].machine for i in write_set(entry, ledger.quorums))
        held = (m.entries.get((ledger.ledger_id, entry)) for m in members if isinstance(m, Bookie))
        found = next((each for each in held if each is not None), None)
        if found is None:
            return
        yield found.value
        entry = EntryId(entry + 1)


def _produce(world: World, names: tuple[str, ...], kind: type[Producer] = Producer) -> None:
    world.add(
        CLIENT,
        lambda _store, _now: kind(names, timeout_s=CLIENT_TIMEOUT_S, retry_s=CLIENT_RETRY_S),
    )


PROTOCOLS: Final[dict[str, Callable[[World], System]]] = {
    "bookkeeper-3-3-2": partial(set_up_bookkeeper, Quorums(3, 3, 2)),
    "bookkeeper-3-3-2-repair": partial(set_up_bookkeeper, Quorums(3, 3, 2), repairs=True),
    "bookkeeper-3-3-3": partial(set_up_bookkeeper, Quorums(3, 3, 3)),
    "bookkeeper-3-3-1": partial(set_up_bookkeeper, Quorums(3, 3, 1)),
    "bookkeeper-2-2-2": partial(set_up_bookkeeper, Quorums(2, 2, 2)),
    "bookkeeper-striped-5-3-2": partial(set_up_bookkeeper, Quorums(5, 3, 2)),
    "raft": set_up_raft,
    "raft-2": partial(set_up_raft, servers=2),
    "raft-5": partial(set_up_raft, servers=5),
    "raft-pre-vote": partial(set_up_raft, options=RaftOptions(pre_vote=True)),
    "raft-check-quorum": partial(
        set_up_raft, options=RaftOptions(pre_vote=True, check_quorum=True)
    ),
    "raft-writes-first": partial(set_up_raft, options=RaftOptions(writes_first=True)),
    "raft-sessions": partial(set_up_raft, options=RaftOptions(sessions=True)),
    "raft-one-by-one": partial(set_up_raft, options=RaftOptions(sessions=True, batch_max=1)),
    "raft-count-older-terms": partial(
        set_up_raft,
        options=RaftOptions(sessions=True, batch_max=1, counts_older_terms=True),
    ),
    "raft-read-index": partial(set_up_raft, options=RaftOptions(reads="index")),
    "raft-read-local": partial(set_up_raft, options=RaftOptions(reads="local")),
    "kafka": partial(set_up_kafka, KafkaOptions()),
    "kafka-2": partial(set_up_kafka, KafkaOptions(), servers=2),
    "kafka-acks-0": partial(set_up_kafka, KafkaOptions(acks="0")),
    "kafka-acks-1": partial(set_up_kafka, KafkaOptions(acks="1")),
    "kafka-flush": partial(set_up_kafka, KafkaOptions(flush_each=True)),
    "kafka-idempotent": partial(set_up_kafka, KafkaOptions(idempotent=True)),
    "kafka-idempotent-flush": partial(set_up_kafka, KafkaOptions(idempotent=True, flush_each=True)),
    "kafka-min-1": partial(set_up_kafka, KafkaOptions(min_insync_replicas=1)),
    "kafka-unclean": partial(
        set_up_kafka, KafkaOptions(min_insync_replicas=1, unclean_leader_election=True)
    ),
    "kafka-eligible": partial(set_up_kafka, KafkaOptions(eligible_leaders=True)),
    "kafka-read-leader": partial(set_up_kafka, KafkaOptions(reads="leader")),
    "kafka-read-follower": partial(set_up_kafka, KafkaOptions(reads="follower")),
    "kafka-by-high-watermark": partial(set_up_kafka, KafkaOptions(truncate_by_epoch=False)),
    "rocketmq": partial(set_up_rocketmq, RocketOptions()),
    "rocketmq-flush": partial(set_up_rocketmq, RocketOptions(sync_flush=True)),
    "rocketmq-sync": partial(set_up_rocketmq, RocketOptions(sync_replication=True)),
    "rocketmq-sync-flush": partial(
        set_up_rocketmq, RocketOptions(sync_replication=True, sync_flush=True)
    ),
    "rocketmq-sync-timeout": partial(
        set_up_rocketmq, RocketOptions(sync_replication=True, takes_timeouts=True)
    ),
    "rocketmq-read-slave": partial(set_up_rocketmq, RocketOptions(slaves_read=True)),
    "rocketmq-controller": partial(set_up_rocketmq, RocketOptions(), governed=True),
    "rocketmq-controller-flush": partial(
        set_up_rocketmq, RocketOptions(sync_flush=True), governed=True
    ),
    "rocketmq-controller-sync": partial(
        set_up_rocketmq, RocketOptions(sync_replication=True), governed=True
    ),
    "rocketmq-controller-sync-flush": partial(
        set_up_rocketmq, RocketOptions(sync_replication=True, sync_flush=True), governed=True
    ),
    "dledger": set_up_dledger,
    "dledger-flush": partial(set_up_dledger, flush_each=True),
}
"""Every protocol with its settings, by the name that the command takes."""

LOSE_NOTHING: Final = frozenset(
    {
        "bookkeeper-3-3-2",
        "bookkeeper-3-3-2-repair",
        "bookkeeper-3-3-3",
        "bookkeeper-2-2-2",
        "bookkeeper-striped-5-3-2",
        "raft",
        "raft-2",
        "raft-5",
        "raft-pre-vote",
        "raft-check-quorum",
        "raft-writes-first",
        "raft-sessions",
        "raft-one-by-one",
        "raft-read-index",
        "raft-read-local",
        "kafka-flush",
        "kafka-idempotent-flush",
        "rocketmq-sync-flush",
        "dledger-flush",
    }
)
"""Those that promise to keep what they acknowledged, whichever server dies, and if all lose power:
they sync on enough servers first. The others are known to lose something then."""

ONCE_IN_ORDER: Final = frozenset({"kafka-idempotent", "kafka-idempotent-flush"})
"""Those whose values stand in the log once, in the order in which one client added them."""

READ_WHAT_IS_THERE: Final = frozenset({"raft-read-index"})
"""Those whose reads see all that was acknowledged before they began."""
