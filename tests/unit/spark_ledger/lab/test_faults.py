"""The lab's machines with full disks, controllers, lost majorities, and clients replaced."""

from __future__ import annotations

import random

import pytest

from spark_ledger.lab.bookies import Add, Added, Bookie
from spark_ledger.lab.dledger import DLedgerNode, Push
from spark_ledger.lab.elections import Vote
from spark_ledger.lab.kafka import (
    AlterIsr,
    Broker,
    Fetch,
    Heartbeat,
    KafkaOptions,
    LeaderAndIsr,
)
from spark_ledger.lab.kafka_controller import Controller
from spark_ledger.lab.machines import (
    Acknowledge,
    Ask,
    CarelessProducer,
    Entry,
    Load,
    NoSpaceError,
    Produce,
    Produced,
    Refused,
    Send,
    Shown,
    Store,
    Sync,
    Tick,
)
from spark_ledger.lab.raft import AppendEntries, AppendReply, RaftNode, RaftOptions
from spark_ledger.lab.rocketmq import (
    SYNC_TIMEOUT_S,
    Alive,
    Follow,
    RocketBroker,
    RocketOptions,
    Role,
    Transferred,
)
from spark_ledger.lab.rocketmq_controller import (
    AlterInSync,
    Epochs,
    Governed,
    GovernedBroker,
    Handshake,
    RocketController,
)
from spark_ledger.lab.runs import Outcome, run
from spark_ledger.lab.scenarios import SCENARIOS
from spark_ledger.lab.world import World
from spark_ledger.types import BookieStatus
from tests.unit.spark_ledger.lab.telling import CLIENT, said, tell

NAMES = ("n0", "n1", "n2")


def outcome(scenario: str, protocol: str) -> tuple[Outcome, World]:
    return run(SCENARIOS[scenario], protocol, 1)


# -- Kafka -----------------------------------------------------------------------------------------


def kafka(
    *isr: str, log: tuple[Entry, ...] = (), reads: str = "", eligible_leaders: bool = False
) -> Broker:
    """n0, which leads epoch 1 with these in-sync replicas."""
    settings = KafkaOptions(eligible_leaders=eligible_leaders, reads=reads)
    broker = Broker("n0", Store(list(log), len(log)), settings, 0.0)
    tell(broker, "controller", LeaderAndIsr(1, "n0", isr, 1))
    return broker


def test_follower_that_asks_for_all_there_was_at_its_last_fetch_stays_in_sync() -> None:
    """KIP-16: it may never be at the end, as long as it is not behind for long."""
    broker, at = kafka("n0", "n1", "n2"), 0.0
    for number in range(1, 41):  # each fetch of n1 comes after the next record, n2 fetches nothing
        tell(broker, CLIENT, Produce(number), at)
        tell(broker, "n1", Fetch(1, number - 1, number), at)
        at += 0.05
    asked = said(broker.handle(Tick(), at), AlterIsr)
    assert asked == [AlterIsr(1, ("n0", "n1"), 1)]


def test_follower_that_has_all_stays_in_sync_though_it_is_silent() -> None:
    broker = kafka("n0", "n1")
    tell(broker, CLIENT, Produce(7))
    tell(broker, "n1", Fetch(1, 1, 1))
    assert not said(broker.handle(Tick(), 9.0), AlterIsr)


def test_broker_that_starts_again_knows_its_last_checkpoint() -> None:
    broker = kafka("n0")
    broker.store.meta["high watermark"] = 2
    broker.store.log[:] = [Entry(1, 7)]
    assert Broker("n0", broker.store, KafkaOptions(), 9.0).high_watermark == 1


def test_producer_that_waits_for_nobody_counts_what_it_sends_and_sends_it_once() -> None:
    producer = CarelessProducer(("n0", "n1"), timeout_s=1.0, retry_s=0.1)
    effects = producer.handle(Load(7), 0.0)
    assert effects == [Acknowledge(7), Send("n0", Produce(7))]
    assert not producer.handle(Tick(), 1.0), "silence: it turns to another one"
    assert producer.handle(Load(8), 1.0)[1] == Send("n1", Produce(8))
    assert not tell(producer, "n1", Refused(8, "n0"), 1.1)
    assert producer.handle(Load(9), 1.2)[1] == Send("n0", Produce(9))
    assert not tell(producer, "n0", Produced(9), 1.3) and not producer.handle(Tick(), 9.0)


def test_record_that_counts_by_a_set_that_became_too_small_is_refused() -> None:
    broker = kafka("n0", "n1")
    tell(broker, CLIENT, Produce(7))
    effects = tell(broker, "controller", LeaderAndIsr(1, "n0", ("n0",), 2))
    assert said(effects, Refused) == [Refused(7, "n0")]
    assert not said(effects, Produced)
    assert broker.store.log == [Entry(1, 7)], "it stays"


def test_leader_takes_in_who_has_all_that_was_there_when_it_became_leader() -> None:
    """What an earlier leader acknowledged may lie above the new one's high watermark."""
    broker = kafka("n0", "n1", log=(Entry(0, 1), Entry(0, 2)))
    assert broker.high_watermark == 0
    assert not said(tell(broker, "n2", Fetch(1, 1, 1)), AlterIsr)
    assert said(tell(broker, "n2", Fetch(1, 2, 2)), AlterIsr) == [AlterIsr(1, NAMES, 1)]


def eligible() -> Controller:
    """n2 and then n1 were stopped in order, and left the set; n0 is its last member."""
    controller = Controller(NAMES, KafkaOptions(eligible_leaders=True))
    for name in NAMES:
        tell(controller, name, Heartbeat(0.0))
    tell(controller, "n0", AlterIsr(1, ("n0", "n1"), 1))
    assert not controller.eligible, "two are enough for writes"
    tell(controller, "n0", AlterIsr(1, ("n0",), 2))
    assert controller.eligible == ("n1",)
    return controller


def test_eligible_replica_leads_when_the_last_in_sync_one_lost_its_tail() -> None:
    controller = eligible()
    tell(controller, "n0", Heartbeat(5.0), 5.0)
    assert (controller.state.leader, controller.state.isr) == ("", ())
    tell(controller, "n2", Heartbeat(6.0, True), 6.0)
    assert controller.state.leader == "", "it left while others could still write"
    tell(controller, "n1", Heartbeat(6.0, True), 6.0)
    assert (controller.state.leader, controller.state.isr) == ("n1", ("n1",))


def test_eligible_replica_that_was_not_stopped_in_order_does_not_lead() -> None:
    controller = eligible()
    tell(controller, "n1", Heartbeat(5.0, False), 5.0)
    assert controller.eligible == ()
    tell(controller, "n0", Heartbeat(6.0), 6.0)
    assert controller.state.leader == "n0", "nobody is left: the last leader leads again"


def test_leader_with_eligible_replicas_commits_nothing_in_too_small_a_set() -> None:
    broker = kafka("n0", log=(Entry(0, 1),), eligible_leaders=True)
    assert broker.high_watermark == 0
    tell(broker, "controller", LeaderAndIsr(1, "n0", ("n0", "n1"), 2))
    tell(broker, "n1", Fetch(1, 1, 1))
    assert broker.high_watermark == 1


def test_consumer_sees_what_is_below_the_high_watermark() -> None:
    broker = kafka("n0", "n1", reads="leader")
    tell(broker, CLIENT, Produce(7))
    assert said(tell(broker, "reader", Ask(1)), Shown) == [Shown(1, 0)]
    tell(broker, "n1", Fetch(1, 1, 1))
    assert said(tell(broker, "reader", Ask(2)), Shown) == [Shown(2, 1)]
    tell(broker, "controller", LeaderAndIsr(2, "n1", ("n0", "n1"), 2))
    assert not tell(broker, "reader", Ask(3)), "only leaders are asked"


# -- RocketMQ --------------------------------------------------------------------------------------


def test_master_tells_an_application_that_waited_for_a_slave_for_long() -> None:
    options = RocketOptions(sync_replication=True, takes_timeouts=True)
    broker = RocketBroker("n0", Store(), options, 0.0)
    tell(broker, "operator", Role(2, "n0"))
    assert said(tell(broker, CLIENT, Produce(6)), Produced) == [Produced(6)], "no slave is there"
    tell(broker, "n1", Follow(2, 1, Entry(2, 6)))
    assert not said(tell(broker, CLIENT, Produce(7), 0.1), Produced)
    assert not said(broker.handle(Tick(), 0.05 + SYNC_TIMEOUT_S), Produced)
    assert said(broker.handle(Tick(), 0.11 + SYNC_TIMEOUT_S), Produced) == [Produced(7)]


def test_broker_with_a_full_disk_refuses_and_stays_master() -> None:
    broker = RocketBroker("n0", Store(), RocketOptions(), 0.0)
    tell(broker, "operator", Role(2, "n0"))
    broker.store.is_full = True
    assert said(tell(broker, CLIENT, Produce(7)), Refused) == [Refused(7, "")]
    assert broker.is_master and not broker.store.log
    tell(broker, "operator", Role(3, "n1"))
    tell(broker, "n1", Transferred(3, 0, (Entry(3, 8),), True))
    assert not broker.store.log


def governed(log: tuple[Entry, ...] = (), *, in_sync: tuple[str, ...] = NAMES) -> GovernedBroker:
    """n0, which is master in epoch 2 and waits for the set."""
    options = RocketOptions(sync_replication=True)
    broker = GovernedBroker("n0", Store(list(log), len(log)), options, 0.0)
    tell(broker, "controller", Governed(2, "n0", in_sync, 2))
    return broker


def test_governed_master_waits_for_the_whole_set_and_whom_it_asked_for() -> None:
    broker = governed(in_sync=("n0", "n1"))
    assert said(tell(broker, "n2", Follow(2, 0, None)), AlterInSync) == [AlterInSync(2, NAMES, 2)]
    tell(broker, CLIENT, Produce(7))
    assert not said(tell(broker, "n1", Follow(2, 1, Entry(2, 7))), Produced), "n2 may be in it"
    assert said(tell(broker, "n2", Follow(2, 1, Entry(2, 7))), Produced) == [Produced(7)]


def test_governed_master_alone_in_its_set_refuses() -> None:
    broker = governed(in_sync=("n0",))
    assert said(tell(broker, CLIENT, Produce(7)), Refused) == [Refused(7, "")]


def test_governed_master_takes_in_a_slave_that_has_what_it_began_with() -> None:
    log = (Entry(1, 5), Entry(1, 6))
    broker = governed(log, in_sync=("n0", "n1"))
    for offset in (0, 1):
        last = log[offset - 1] if offset else None
        assert not said(tell(broker, "n2", Follow(2, offset, last)), AlterInSync)
    assert said(tell(broker, "n2", Follow(2, 2, log[1])), AlterInSync)


def test_governed_slave_cuts_what_its_master_never_had() -> None:
    log = [Entry(1, 5), Entry(1, 6), Entry(1, 7), Entry(2, 8)]
    broker = GovernedBroker("n1", Store(list(log), 4), RocketOptions(), 0.0)
    effects = tell(broker, "controller", Governed(3, "n2", ("n2",), 3))
    assert said(effects, Handshake) == [Handshake(3)]
    effects = tell(broker, "n2", Epochs(3, ((1, 0, 2), (3, 2, 5))))
    assert broker.store.log == log[:2]
    assert said(effects, Follow) == [Follow(3, 2, Entry(1, 6))]


def test_rocketmq_controller_names_the_longest_log_of_the_set_only() -> None:
    controller = RocketController(NAMES)
    for name, length in zip(NAMES, (9, 3, 5), strict=True):
        tell(controller, name, Alive(0.0, length, 1))
    tell(controller, "n1", Alive(0.0, 3, 1), 1.5)
    tell(controller, "n2", Alive(0.0, 5, 1), 1.5)
    controller.handle(Tick(), 1.5)
    assert (controller.state.master, controller.state.in_sync) == ("n2", ("n2",))
    tell(controller, "n1", Alive(0.0, 3, 1), 3.0)
    controller.handle(Tick(), 3.0)
    assert controller.state.master == "", "n1 is not in the set"


# -- Raft, DLedger and bookies ---------------------------------------------------------------------


@pytest.mark.parametrize("answers", [True, False])
def test_leader_that_looks_for_a_majority_steps_down_without_one(answers: bool) -> None:
    options = RaftOptions(check_quorum=True)
    node = RaftNode("n1", ("n0", "n2"), Store(), random.Random(1), 1.0, options)
    node.handle(Tick(), 10.0)
    tell(node, "n2", Vote(1, True), 10.0)
    assert node.role == "leader"
    node.handle(Tick(), 10.2)
    if answers:
        tell(node, "n0", AppendReply(1, True, 0), 10.2)
    node.handle(Tick(), 10.6)
    assert node.role == ("leader" if answers else "follower")


def test_server_that_does_not_expect_a_full_disk_ends() -> None:
    follower = RaftNode("n1", ("n0", "n2"), Store(meta={"term": 1}), random.Random(1), 1.0)
    leader = kafka("n0", "n1")
    follower.store.is_full = leader.store.is_full = True
    tell(follower, "n0", AppendEntries(1, 0, 0, (), 0))
    with pytest.raises(NoSpaceError):
        tell(follower, "n0", AppendEntries(1, 0, 0, (Entry(1, 7),), 0))
    with pytest.raises(NoSpaceError):
        tell(leader, CLIENT, Produce(7))
    assert not follower.store.log and not leader.store.log


@pytest.mark.parametrize("protocol", ["raft", "kafka"])
def test_server_that_ended_for_lack_of_room_is_back_when_there_is_some(protocol: str) -> None:
    result, world = outcome("disk-full", protocol)
    happened = [(each.who, each.what) for each in world.events if each.who == "n1"]
    whats = [what for _, what in happened if what != "truncated"]
    assert whats == ["disk full", "ends: no room", "disk has room", "started again"]
    assert (result.lost, result.acknowledged) == (0, result.sent)
    assert result.second_holds >= 1_000, "it has caught up"


def test_dledger_servers_with_full_disks_store_nothing_and_lead_on() -> None:
    node = DLedgerNode("n1", ("n0", "n2"), Store(), random.Random(1), 1.0)
    node.store.is_full = True
    node.handle(Tick(), 10.0)
    tell(node, "n2", Vote(1, True), 10.0)
    assert said(tell(node, CLIENT, Produce(7)), Refused) == [Refused(7, "n1")]
    assert (node.role, node.store.log) == ("leader", [])
    assert not tell(node, "n0", Push(2, 1, 1, Entry(2, 8), 0), 10.1)
    assert not node.store.log


def test_bookie_with_a_full_disk_takes_adds_of_a_recovery_only() -> None:
    bookie = Bookie(Store(), [])
    bookie.store.is_full = True
    refused = said(tell(bookie, CLIENT, Add(1, 0, 0, 7, -1, False)), Added)
    assert refused == [Added(1, 0, 0, BookieStatus.READ_ONLY, 0)]
    assert tell(bookie, CLIENT, Add(1, 0, 0, 7, -1, True)) == [Sync()]


# -- clients that are replaced ---------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["bookkeeper-3-3-2", "bookkeeper-2-2-2"])
def test_next_client_recovers_the_ledger_that_a_dead_one_left(protocol: str) -> None:
    result, world = outcome("writer-dies", protocol)
    read = result.decisions.pop("recovery read")
    assert result.decisions == {"ledger created": 2, "recovery": 1}
    assert 0 < read < 10, "what lies behind the last add confirmed, and not the whole ledger"
    assert (result.lost, result.doubled) == (0, 0)
    assert result.sent - 1 <= result.acknowledged <= result.sent, "one value was on its way"
    assert max(world.sent) == 1_000 and len(world.sent) < 1_000, "nobody adds values meanwhile"


def test_frozen_client_confirms_nothing_that_is_not_there() -> None:
    result, world = outcome("writer-freezes", "bookkeeper-3-3-2")
    former = world.hosts["client-1"]
    assert former.process.alive and result.lost == 0
    ledgers = [what.who for what in world.events if what.what == "ledger created"]
    assert ledgers[:2] == ["client", "client"], "the second one did not wait for the first"
