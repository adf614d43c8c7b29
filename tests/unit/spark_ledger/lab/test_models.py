"""The lab's machines do what their papers and documents say, one decision at a time."""

from __future__ import annotations

import random
from functools import partial

import pytest

from spark_ledger.lab.bookies import Add, Added, AskLast, Bookie
from spark_ledger.lab.elections import RequestVote, Vote
from spark_ledger.lab.kafka import (
    AlterIsr,
    Broker,
    EndOffset,
    Fetch,
    Heartbeat,
    KafkaOptions,
    LeaderAndIsr,
    OffsetForEpoch,
)
from spark_ledger.lab.kafka_controller import Controller
from spark_ledger.lab.machines import (
    NO_VALUE,
    Entry,
    Produce,
    Produced,
    Refused,
    Store,
    Sync,
    Synced,
    Tick,
)
from spark_ledger.lab.raft import AppendEntries, AppendReply, RaftNode
from spark_ledger.lab.rocketmq import (
    Alive,
    Follow,
    Operator,
    RocketBroker,
    RocketOptions,
    Role,
    Transferred,
)
from spark_ledger.lab.runs import run
from spark_ledger.lab.scenarios import Scenario
from spark_ledger.lab.world import World
from spark_ledger.types import BookieStatus
from tests.unit.spark_ledger.lab.telling import CLIENT, said, tell

# -- Raft ------------------------------------------------------------------------------------------


def raft(log: list[Entry], *, term: int) -> RaftNode:
    store = Store(list(log), len(log), {"term": term} if term else {})
    return RaftNode("n1", ("n0", "n2"), store, random.Random(1), 1.0)


def raft_leader(log: list[Entry], *, term: int) -> RaftNode:
    """Elected in the term behind this one, by n2."""
    node = raft(log, term=term)
    node.handle(Tick(), 10.0)
    tell(node, "n2", Vote(term + 1, True), 10.0)
    assert node.role == "leader"
    return node


def test_server_votes_once_in_a_term_also_after_a_restart() -> None:
    node = raft([], term=0)
    assert said(tell(node, "n0", RequestVote(1, 0, 0)), Vote) == [Vote(1, True)]
    assert said(tell(node, "n2", RequestVote(1, 0, 0)), Vote) == [Vote(1, False)]
    again = RaftNode("n1", ("n0", "n2"), node.store, random.Random(1), 2.0)
    assert said(tell(again, "n2", RequestVote(1, 0, 0)), Vote) == [Vote(1, False)]
    assert said(tell(again, "n0", RequestVote(1, 0, 0)), Vote) == [Vote(1, True)]


def test_server_does_not_vote_for_a_log_that_ends_in_an_older_term() -> None:
    node = raft([Entry(3, 0)], term=3)
    assert said(tell(node, "n0", RequestVote(4, 5, 2)), Vote) == [Vote(4, False)]
    assert said(tell(node, "n2", RequestVote(4, 1, 3)), Vote) == [Vote(4, True)]


def test_leader_commits_entries_of_older_terms_only_with_one_of_its_own() -> None:
    """Figure 8 of the paper: a majority alone does not make an older entry safe."""
    node = raft_leader([Entry(1, 5)], term=1)
    assert node.store.log == [Entry(1, 5), Entry(2, NO_VALUE)]
    tell(node, "n0", AppendReply(2, True, 1))
    assert node.commit == 0
    node.store.synced = 2
    node.handle(Synced(2), 10.0)
    tell(node, "n0", AppendReply(2, True, 2))
    assert node.commit == 2


def test_follower_answers_for_an_entry_when_it_is_synced() -> None:
    node = raft([], term=1)
    append = AppendEntries(1, 0, 0, (Entry(1, 7),), 0)
    assert tell(node, "n0", append) == [Sync()]
    node.store.synced = 1
    answer = node.handle(Synced(1), 0.0)
    assert said(answer, AppendReply) == [AppendReply(1, True, 1)]


def test_follower_refuses_entries_behind_one_of_another_term() -> None:
    node = raft([Entry(1, 7)], term=2)
    answer = tell(node, "n0", AppendEntries(2, 1, 2, (Entry(2, 8),), 0))
    assert said(answer, AppendReply) == [AppendReply(2, False, 0)]
    assert node.store.log == [Entry(1, 7)]


# -- Kafka -----------------------------------------------------------------------------------------


def kafka(*isr: str, log: tuple[Entry, ...] = (), flush_each: bool = False) -> Broker:
    """n0, which leads epoch 1 with these in-sync replicas."""
    settings = KafkaOptions(min_insync_replicas=min(2, len(isr)), flush_each=flush_each)
    broker = Broker("n0", Store(list(log), len(log)), settings, 0.0)
    tell(broker, "controller", LeaderAndIsr(1, "n0", isr, 1))
    return broker


def test_leader_answers_when_all_in_sync_replicas_have_a_record() -> None:
    broker = kafka("n0", "n1")
    assert not said(tell(broker, CLIENT, Produce(7)), Produced)
    assert said(tell(broker, "n1", Fetch(1, 1, 1)), Produced) == [Produced(7)]


def test_leader_with_too_few_in_sync_replicas_refuses() -> None:
    broker = kafka("n0", "n1")
    tell(broker, "controller", LeaderAndIsr(1, "n0", ("n0",), 2))
    assert said(tell(broker, CLIENT, Produce(7)), Refused) == [Refused(7, "n0")]


def test_leader_waits_for_a_replica_that_it_asked_to_be_in_sync() -> None:
    """KIP-497: the controller may have taken it in already."""
    broker = kafka("n0")
    assert said(tell(broker, CLIENT, Produce(7)), Produced) == [Produced(7)]
    asked = said(tell(broker, "n1", Fetch(1, 1, 1)), AlterIsr)
    assert asked == [AlterIsr(1, ("n0", "n1"), 1)]
    assert not said(tell(broker, CLIENT, Produce(8)), Produced)
    assert said(tell(broker, "n1", Fetch(1, 2, 2)), Produced) == [Produced(8)]


def test_leader_that_flushes_answers_when_the_record_is_synced() -> None:
    broker = kafka("n0", flush_each=True)
    for value in (7, 8):
        assert tell(broker, CLIENT, Produce(value)) == [Sync()]
    broker.store.synced = 1
    assert said(broker.handle(Synced(1), 0.0), Produced) == [Produced(7)]


def test_follower_of_a_new_leader_asks_where_its_epoch_ends_before_it_cuts() -> None:
    log = [Entry(1, 7), Entry(1, 8)]
    broker = Broker("n1", Store(list(log), 2), KafkaOptions(), 0.0)
    effects = tell(broker, "controller", LeaderAndIsr(2, "n0", ("n0", "n1"), 2))
    assert said(effects, OffsetForEpoch) == [OffsetForEpoch(2, 1)]
    assert broker.store.log == log


def test_follower_cuts_entries_of_an_epoch_that_its_leader_never_had() -> None:
    """KIP-279: the leader's earlier epoch goes further than the follower's."""
    log = [Entry(1, 1), Entry(1, 2), Entry(2, 3), Entry(2, 4)]
    broker = Broker("n1", Store(log, 4), KafkaOptions(), 0.0)
    tell(broker, "controller", LeaderAndIsr(3, "n0", ("n0", "n1"), 2))
    effects = tell(broker, "n0", EndOffset(3, 1, 4))
    assert broker.store.log == [Entry(1, 1), Entry(1, 2)]
    assert said(effects, Fetch) == [Fetch(3, 2, 2)]


def test_controller_without_a_live_in_sync_replica_elects_nobody() -> None:
    controller = Controller(("n0", "n1", "n2"), KafkaOptions())
    for name in ("n0", "n1", "n2"):
        tell(controller, name, Heartbeat(0.0), 0.0)
    tell(controller, "n0", AlterIsr(1, ("n0",), 1), 0.5)
    tell(controller, "n1", Heartbeat(0.0), 2.0)
    controller.handle(Tick(), 2.0)
    assert (controller.state.leader, controller.state.isr) == ("", ("n0",))
    tell(controller, "n0", Heartbeat(0.0), 2.5)
    assert controller.state.leader == "n0"


# -- RocketMQ --------------------------------------------------------------------------------------


def rocket(log: tuple[Entry, ...] = (), **options: bool) -> RocketBroker:
    """n0, which is master and has the slave n1."""
    broker = RocketBroker("n0", Store(list(log), len(log)), RocketOptions(**options), 0.0)
    tell(broker, "operator", Role(2, "n0"))
    tell(broker, "n1", Follow(2, len(log), log[-1] if log else None))
    return broker


def test_synchronous_master_answers_when_a_slave_has_the_value() -> None:
    broker = rocket(sync_replication=True)
    sent = tell(broker, CLIENT, Produce(7))
    assert not said(sent, Produced)
    assert said(sent, Transferred) == [Transferred(2, 0, (Entry(2, 7),), True)]
    assert not tell(broker, CLIENT, Produce(8))  # it goes when the slave asks again
    assert said(tell(broker, "n1", Follow(2, 1, Entry(2, 7))), Produced) == [Produced(7)]


def test_master_that_flushes_answers_when_the_value_is_synced() -> None:
    broker = rocket(sync_flush=True)
    assert tell(broker, CLIENT, Produce(7)) == [Sync()]
    broker.store.synced = 1
    assert said(broker.handle(Synced(1), 0.0), Produced) == [Produced(7)]


def test_master_says_to_a_slave_with_another_tail_that_it_does_not_fit() -> None:
    broker = rocket((Entry(1, 7), Entry(1, 8)))
    for slave in (Follow(2, 2, Entry(1, 9)), Follow(2, 3, Entry(1, 9))):
        answer = said(tell(broker, "n2", slave), Transferred)
        assert answer == [Transferred(2, slave.offset, (), False)]


def test_operator_names_the_slave_with_the_longest_log() -> None:
    operator = Operator(("n0", "n1", "n2"))
    tell(operator, "n0", Alive(0.0, 9), 0.0)
    for name, length in (("n1", 3), ("n2", 5)):
        tell(operator, name, Alive(0.0, length), 3.5)
    operator.handle(Tick(), 3.5)
    assert operator.role == Role(2, "n2")


# -- BookKeeper ------------------------------------------------------------------------------------


def test_bookie_answers_for_what_is_synced() -> None:
    bookie = Bookie(Store(), [])
    for entry in (0, 1):
        assert tell(bookie, CLIENT, Add(1, 0, entry, 7, -1, False)) == [Sync()]
    assert said(bookie.handle(Synced(1), 0.0), Added) == [Added(1, 0, 0, BookieStatus.OK, 0)]


def test_fenced_bookie_takes_adds_of_a_recovery_only() -> None:
    bookie = Bookie(Store(), [])
    tell(bookie, "other", AskLast(1, 0))
    refused = said(tell(bookie, CLIENT, Add(1, 0, 0, 7, -1, False)), Added)
    assert refused == [Added(1, 0, 0, BookieStatus.FENCED, 0)]
    assert tell(bookie, "other", Add(1, 0, 0, 7, -1, True)) == [Sync()]


def _gap_then_lost_disk(world: World, servers: tuple[str, ...]) -> None:
    """The second bookie misses entries and is back before anybody gives it up; later the first one
    loses its disk, so what the second one missed is nowhere, if it was acknowledged."""
    world.loop.at(3.0005, None, partial(world.kill, servers[1], power=False))
    world.loop.at(3.3, None, world.restart, servers[1])
    world.loop.at(6.0, None, partial(world.kill, servers[0], power=True))
    world.loop.at(6.5, None, world.hosts[servers[0]].store.truncate, 0)
    world.loop.at(7.0, None, world.restart, servers[0])


@pytest.mark.parametrize("seed", (1, 2))
def test_writer_takes_no_answer_for_entries_that_a_bookie_never_got(seed: int) -> None:
    scenario = Scenario("gap", "", _gap_then_lost_disk)
    result = run(scenario, "bookkeeper-2-2-2", seed)[0]
    assert (result.acknowledged, result.lost) == (result.sent, 0)
