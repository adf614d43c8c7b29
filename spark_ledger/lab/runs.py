"""One protocol in one scenario: builds the world, runs it, and says what came of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from spark_ledger.lab.bookkeeper import METADATA, Add, Bookie, LedgerProducer, Metadata
from spark_ledger.lab.dledger import DLedgerNode
from spark_ledger.lab.elections import Voter
from spark_ledger.lab.kafka import CONTROLLER, Broker, Controller, KafkaOptions
from spark_ledger.lab.machines import NO_VALUE, Entry, Producer, Reader, Store
from spark_ledger.lab.raft import RaftNode, RaftOptions
from spark_ledger.lab.rocketmq import OPERATOR, Operator, RocketBroker, RocketOptions
from spark_ledger.lab.scenarios import EVERY_S, FROM_S, LOAD_S, UNTIL_S, Scenario
from spark_ledger.lab.world import CLIENT, World
from spark_ledger.protocol.ensemble import fragment_of
from spark_ledger.protocol.quorum import write_set
from spark_ledger.types import EntryId, LedgerMetadata, Quorums

CLIENT_TIMEOUT_S: Final = 1.0
CLIENT_RETRY_S: Final = 0.05
READER: Final = "reader"
READ_EVERY_S: Final = 0.1


class Outcome(NamedTuple):
    """What was measured. Times are milliseconds of the simulated clock."""

    scenario: str
    protocol: str
    seed: int
    sent: int
    acknowledged: int
    lost: int
    """Acknowledged, and not in the log at the end."""
    doubled: int
    reordered: int
    """Acknowledged values that stand behind a later one."""
    p50_ms: float
    p99_ms: float
    max_ms: float
    longest_gap_ms: float
    """The longest time without an acknowledgement, while values were added."""
    messages_per_entry: float
    truncated: int
    second_holds: int
    """Entries on the second server's disk at the end."""
    reads: int
    """Answers to reads, in those protocols that have a reader."""
    stale: int
    """Of these, those that lacked what was acknowledged before the read began."""
    decisions: dict[str, int]
    """Elections, ensemble changes, and the like."""


class System(NamedTuple):
    """A protocol that was set up in a world."""

    servers: tuple[str, ...]
    final_log: Callable[[], list[int]]
    check: Callable[[], None]


class History:
    """The entries that were committed, in order: no later state may differ from them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._compared: dict[Voter, int] = {}

    def note(self, node: Voter) -> None:
        """A server takes some entries of its log for committed. What it took so before was
        compared then; it asserts that it never truncates that."""
        known, log, committed = self.entries, node.store.log, node.commit
        before = self._compared.get(node, max(0, min(committed, len(known)) - 50))
        if committed == before:
            return
        self._compared[node] = committed
        for place in range(before, committed):
            if place < len(known):
                assert log[place] == known[place], f"Entry {place + 1} is committed twice."
            else:
                known.append(log[place])


MakeVoter = Callable[[str, tuple[str, ...], random.Random, Store, float], RaftNode | DLedgerNode]


def set_up_raft(world: World, *, servers: int = 3, options: RaftOptions | None = None) -> System:
    """Some servers, and a reader if the options name one."""
    chosen = options or RaftOptions()
    names = tuple(f"n{i}" for i in range(servers))
    system = _set_up_voters(world, names, partial(_raft_node, chosen), keeps=True)
    if chosen.reads:
        reader = Reader(names, every_s=READ_EVERY_S)
        world.add(READER, lambda _store, _now: reader)
    return system


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
    history, leaders = History(), dict[int, str]()

    def nodes() -> list[Voter]:
        hosts = [world.hosts[name] for name in names]
        machines = [host.machine for host in hosts if host.process.alive]
        return [node for node in machines if isinstance(node, Voter)]

    def check() -> None:
        for node in nodes():
            if node.role == "leader":
                other = leaders.setdefault(node.term, node.name)
                assert other == node.name, f"Term {node.term} has two leaders (election safety)."
            if keeps:
                history.note(node)

    def final() -> list[int]:
        node = max(nodes(), key=lambda node: node.commit)
        return [entry.value for entry in node.store.log[: node.commit] if entry.value != NO_VALUE]

    _produce(world, names)
    return System(names, final, check)


def set_up_kafka(options: KafkaOptions, world: World, *, servers: int = 3) -> System:
    """Some brokers and a controller."""
    names = tuple(f"n{i}" for i in range(servers))
    controller = Controller(names, options)
    world.add(CONTROLLER, lambda _store, _now: controller)
    for name in names:
        world.add(name, partial(_broker, name, options))

    def check() -> None:
        assert controller.state.isr, "The in-sync set is never empty."

    def final() -> list[int]:
        leader = controller.state.leader or controller.state.isr[0]
        return [entry.value for entry in world.hosts[leader].store.log]

    _produce(world, names)
    return System(names, final, check)


def _broker(name: str, options: KafkaOptions, store: Store, now: float) -> Broker:
    return Broker(name, store, options, now)


def set_up_rocketmq(options: RocketOptions, world: World) -> System:
    """A master, two slaves, and an operator."""
    names = ("n0", "n1", "n2")
    operator = Operator(names)
    world.add(OPERATOR, lambda _store, _now: operator)
    for name in names:
        world.add(name, partial(_rocket_broker, name, options))

    def brokers() -> dict[str, RocketBroker]:
        hosts = [world.hosts[name] for name in names]
        machines = [host.machine for host in hosts if host.process.alive]
        return {each.name: each for each in machines if isinstance(each, RocketBroker)}

    def check() -> None:
        live = brokers()
        for broker in live.values():
            master, log = live.get(broker.role.master), broker.store.log
            if broker.follows and log and master is not None and master.role == broker.role:
                place = len(log)
                assert master.store.log[place - 1 : place] == log[-1:], "A slave's log differs."

    def final() -> list[int]:
        return [entry.value for entry in world.hosts[operator.role.master].store.log]

    _produce(world, names)
    return System(names, final, check)


def _rocket_broker(name: str, options: RocketOptions, store: Store, now: float) -> RocketBroker:
    return RocketBroker(name, store, options, now)


def set_up_bookkeeper(quorums: Quorums, world: World) -> System:
    """Five bookies and ZooKeeper; the client is the ledgers' writer."""
    names = ("n0", "n1", "n2", "n3", "n4")
    metadata = Metadata()
    world.add(METADATA, lambda _store, _now: metadata)
    journals: dict[str, list[Add]] = {name: [] for name in names}
    for name in names:
        world.add(name, partial(_bookie, journals[name]))
    world.add(CLIENT, lambda _store, _now: LedgerProducer(names, quorums))

    def final() -> list[int]:
        return [
            value
            for ledger, _version in metadata.nodes.values()
            for value in _entries(world, ledger)
        ]

    return System(names, final, lambda: None)


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


def _produce(world: World, names: tuple[str, ...]) -> None:
    client = Producer(names, timeout_s=CLIENT_TIMEOUT_S, retry_s=CLIENT_RETRY_S)
    world.add(CLIENT, lambda _store, _now: client)


PROTOCOLS: Final[dict[str, Callable[[World], System]]] = {
    "bookkeeper-3-3-2": partial(set_up_bookkeeper, Quorums(3, 3, 2)),
    "bookkeeper-3-3-3": partial(set_up_bookkeeper, Quorums(3, 3, 3)),
    "bookkeeper-2-2-2": partial(set_up_bookkeeper, Quorums(2, 2, 2)),
    "bookkeeper-striped-5-3-2": partial(set_up_bookkeeper, Quorums(5, 3, 2)),
    "raft": set_up_raft,
    "raft-2": partial(set_up_raft, servers=2),
    "raft-pre-vote": partial(set_up_raft, options=RaftOptions(pre_vote=True)),
    "raft-read-index": partial(set_up_raft, options=RaftOptions(reads="index")),
    "raft-read-local": partial(set_up_raft, options=RaftOptions(reads="local")),
    "kafka": partial(set_up_kafka, KafkaOptions()),
    "kafka-2": partial(set_up_kafka, KafkaOptions(), servers=2),
    "kafka-acks-1": partial(set_up_kafka, KafkaOptions(acks_all=False)),
    "kafka-flush": partial(set_up_kafka, KafkaOptions(flush_each=True)),
    "kafka-min-1": partial(set_up_kafka, KafkaOptions(min_insync_replicas=1)),
    "kafka-unclean": partial(
        set_up_kafka, KafkaOptions(min_insync_replicas=1, unclean_leader_election=True)
    ),
    "kafka-by-high-watermark": partial(set_up_kafka, KafkaOptions(truncate_by_epoch=False)),
    "rocketmq": partial(set_up_rocketmq, RocketOptions()),
    "rocketmq-flush": partial(set_up_rocketmq, RocketOptions(sync_flush=True)),
    "rocketmq-sync": partial(set_up_rocketmq, RocketOptions(sync_replication=True)),
    "rocketmq-sync-flush": partial(
        set_up_rocketmq, RocketOptions(sync_replication=True, sync_flush=True)
    ),
    "dledger": set_up_dledger,
    "dledger-flush": partial(set_up_dledger, flush_each=True),
}
"""Every protocol with its settings, by the name that the command takes."""

LOSE_NOTHING: Final = frozenset(
    {
        "bookkeeper-3-3-2",
        "bookkeeper-3-3-3",
        "bookkeeper-2-2-2",
        "bookkeeper-striped-5-3-2",
        "raft",
        "raft-2",
        "raft-pre-vote",
        "raft-read-index",
        "raft-read-local",
        "kafka-flush",
        "rocketmq-sync-flush",
        "dledger-flush",
    }
)
"""Those that promise to keep what they acknowledged, whichever server dies, and if all lose power:
they sync on enough servers first. The others are known to lose something then."""

READ_WHAT_IS_THERE: Final = frozenset({"raft-read-index"})
"""Those whose reads see all that was acknowledged before they began."""


def run(
    scenario: Scenario,
    protocol: str,
    seed: int,
    follow: Callable[[World], None] = lambda _world: None,
    watch: Callable[[World], None] = lambda _world: None,
) -> tuple[Outcome, World]:
    """Run one protocol in one scenario; ``follow`` is called after each of its events,
    and ``watch`` at each tick.

    Raises AssertionError if it breaks a promise of its own."""
    world = World(seed)
    world.on_event = partial(follow, world)
    system = PROTOCOLS[protocol](world)

    def check() -> None:
        system.check()
        watch(world)

    world.check = check
    scenario.begin(world, system.servers)
    world.run(from_s=FROM_S, load_s=LOAD_S, every_s=EVERY_S, until_s=UNTIL_S)
    outcome = judge(world, scenario.name, protocol, system.final_log())
    if protocol in READ_WHAT_IS_THERE:
        assert not outcome.stale, "A read lacks what was acknowledged before it began."
    return outcome, world


def judge(world: World, scenario: str, protocol: str, log: list[int]) -> Outcome:
    """Compare what was acknowledged with what is there."""
    places: dict[int, int] = {}
    for place, value in enumerate(log):
        places.setdefault(value, place)
    kept = sorted(value for value in world.acknowledged if value in places)
    world.lost = frozenset(world.acknowledged.keys() - places.keys())
    furthest, reordered = -1, 0
    for value in kept:
        reordered += places[value] < furthest
        furthest = max(furthest, places[value])
    waits = sorted(at - world.sent[value] for value, at in world.acknowledged.items())
    times = sorted(at for at in world.acknowledged.values() if at <= LOAD_S)
    stale = _stale(world, places)
    edges = [FROM_S, *times, LOAD_S]
    notes = dict(world.notes)
    return Outcome(
        scenario=scenario,
        protocol=protocol,
        seed=world.seed,
        sent=len(world.sent),
        acknowledged=len(waits),
        lost=len(waits) - len(kept),
        doubled=len(log) - len(places),
        reordered=reordered,
        p50_ms=_ms(waits[len(waits) // 2]) if waits else 0.0,
        p99_ms=_ms(waits[len(waits) * 99 // 100]) if waits else 0.0,
        max_ms=_ms(waits[-1]) if waits else 0.0,
        longest_gap_ms=_ms(max(b - a for a, b in pairwise(edges))),
        messages_per_entry=round(world.messages / max(1, len(waits)), 1),
        truncated=notes.pop("truncated", 0),
        reads=len(world.seen),
        stale=stale,
        second_holds=len(world.hosts["n1"].store.log),
        decisions={kind: count for kind, count in notes.items() if count},
    )


def _stale(world: World, places: dict[int, int]) -> int:
    """How many reads lack something that was acknowledged before they began."""
    known = sorted((at, places[v]) for v, at in world.acknowledged.items() if v in places)
    stale, furthest, place = 0, -1, 0
    for since, values in sorted(world.seen):
        while place < len(known) and known[place][0] < since:
            furthest = max(furthest, known[place][1])
            place += 1
        stale += values <= furthest
    return stale


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
