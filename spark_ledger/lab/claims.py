"""What is said about ways to replicate a log, each with the runs that support or refute it."""

from __future__ import annotations

import math
from typing import Final

from spark_ledger.lab.experiments import Claim, Figure

_BK: Final = "bookkeeper-3-3-2"
_BOOKKEEPER: Final = "The BookKeeper protocol (Apache BookKeeper's documentation)"
_DURABILITY: Final = "Durability with BookKeeper (Junqueira, Kelly, Reed)"
_INSIGHTS: Final = (
    "Apache BookKeeper Insights Part 1: External Consensus and Dynamic Membership (Vanlightly)"
)
_RAFT: Final = "In Search of an Understandable Consensus Algorithm (Ongaro, Ousterhout)"
_KAFKA: Final = "Design: Replication (Apache Kafka's documentation)"
_DISSERTATION: Final = "Consensus: Bridging Theory and Practice (Ongaro)"
_DLEDGER: Final = "DLedgerEntryPusher (source of openmessaging/dledger)"
_CONTROLLER: Final = "RIP-44: Support DLedger Controller (Apache RocketMQ)"
_ROCKETMQ: Final = "Deployment: Master and Slave (Apache RocketMQ's documentation)"

CLAIMS: Final = (
    Claim(
        "An ack quorum below the write quorum does not wait for a slow replica.",
        _DURABILITY,
        (Figure("slow-replica", _BK, "p99_ms", "<", 10),),
    ),
    Claim(
        "An ack quorum of all waits for a replica that is ten or a hundred times as slow.",
        _INSIGHTS,
        (
            Figure("slow-replica-10", "bookkeeper-3-3-3", "p99_ms", ">", 20),
            Figure("slow-replica", "bookkeeper-3-3-3", "p99_ms", ">", 100),
            Figure("slow-replica-10", "bookkeeper-3-3-2", "p99_ms", "<", 10),
        ),
    ),
    Claim(
        "A majority does not wait for a slow follower.",
        _RAFT,
        (Figure("slow-replica", "raft", "p99_ms", "<", 10),),
    ),
    Claim(
        "`acks=all` waits for a slow follower as long as it is in sync; `acks=1` does not.",
        _KAFKA,
        (
            Figure("slow-replica", "kafka", "p99_ms", ">", 100),
            Figure("slow-replica", "kafka-acks-1", "p99_ms", "<", 10),
        ),
    ),
    Claim(
        "Synchronous replication to one of two slaves does not wait for a slow one.",
        _ROCKETMQ,
        (Figure("slow-replica", "rocketmq-sync", "p99_ms", "<", 10),),
    ),
    Claim(
        "A dead replica holds up whoever waits for all, until it counts as dead (here one second); "
        "it holds up nobody who waits for fewer.",
        "DistributedLog: A High Performance Replicated Log Service (Guo, Dhamankar, Stewart)",
        (
            Figure("replica-dies", "bookkeeper-3-3-3", "longest_gap_ms", ">", 900),
            Figure("replica-dies", "kafka", "longest_gap_ms", ">", 900),
            Figure("replica-dies", _BK, "longest_gap_ms", "<", 20),
            Figure("replica-dies", "raft", "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "Two copies stay available without one server if another one takes its place. A majority "
        "of two and `min.insync.replicas=2` stop until it is back.",
        _INSIGHTS,
        (
            Figure("replica-dies", "bookkeeper-2-2-2", "longest_gap_ms", "<", 1_500),
            Figure("replica-dies", "raft-2", "longest_gap_ms", ">", 4_000),
            Figure("replica-dies", "kafka-2", "longest_gap_ms", ">", 4_000),
        ),
    ),
    Claim(
        "With two of its three servers away a majority stops; a ledger goes on if there are "
        "others, and stops if it is striped over all there are.",
        _INSIGHTS,
        (
            Figure("two-die", "raft", "longest_gap_ms", ">", 4_500),
            Figure("two-die", _BK, "longest_gap_ms", "<", 3_000),
            Figure("two-die", "bookkeeper-striped-5-3-2", "longest_gap_ms", ">", 4_500),
        ),
    ),
    Claim(
        "`acks=all` without a flush loses acknowledged values if all lose power at once.",
        _KAFKA,
        (
            Figure("power-cut", "kafka", "lost", ">", 0),
            Figure("power-cut", "kafka-flush", "lost", "=", 0),
        ),
    ),
    Claim(
        "Who syncs before it answers loses nothing in a power cut of all.",
        _DURABILITY,
        (
            Figure("power-cut", _BK, "lost", "=", 0),
            Figure("power-cut", "raft", "lost", "=", 0),
            Figure("power-cut", "rocketmq-flush", "lost", "=", 0),
        ),
    ),
    Claim(
        "An answer from the page cache is faster than one from the disk.",
        _KAFKA,
        (
            Figure("steady", "kafka", "p50_ms", "<", "kafka-flush"),
            Figure("steady", "rocketmq", "p50_ms", "<", "rocketmq-flush"),
        ),
    ),
    Claim(
        "An unclean election loses acknowledged values. A clean one loses none, and waits for the "
        "last in-sync replica.",
        "KIP-106: Change Default unclean.leader.election.enabled from True to False (Stopford)",
        (
            Figure("last-dies", "kafka-unclean", "lost", ">", 0),
            Figure("last-dies", "kafka-unclean", "longest_gap_ms", "<", 2_000),
            Figure("last-dies", "kafka-min-1", "lost", "=", 0),
            Figure("last-dies", "kafka-min-1", "longest_gap_ms", ">", 3_500),
        ),
    ),
    Claim(
        "A follower that truncates by its high watermark can lose what was acknowledged, if it is "
        "elected next; one that truncates by leader epochs does not.",
        "KIP-101: Alter Replication Protocol to use Leader Epoch rather than High Watermark for "
        "Truncation (Stopford)",
        (
            Figure("die-in-turn", "kafka-by-high-watermark", "lost", ">", 0),
            Figure("die-in-turn", "kafka", "lost", "=", 0),
        ),
    ),
    Claim(
        "A master that does not wait for its slaves loses the tail when it dies, also if it "
        "flushes; one that waits for a slave does not.",
        _ROCKETMQ,
        (
            Figure("leader-dies", "rocketmq", "lost", ">", 0),
            Figure("leader-dies", "rocketmq-flush", "lost", ">", 0),
            Figure("leader-dies", "rocketmq-sync", "lost", "=", 0),
        ),
    ),
    Claim(
        "Who decides: a majority elects (Raft), a controller names a leader (Kafka), a person "
        "names a master (RocketMQ), and a ledger's writer changes the ensemble.",
        f"{_RAFT}; {_KAFKA}; {_ROCKETMQ}; {_BOOKKEEPER}",
        (
            Figure("leader-dies", "raft", "election", "=", 2),
            Figure("leader-dies", "kafka", "leader", "=", 1),
            Figure("leader-dies", "rocketmq", "fail-over by hand", "=", 1),
            Figure("leader-dies", _BK, "ensemble change", "=", 1),
        ),
    ),
    Claim(
        "No bookie leads, so any of them may die without a pause; the death of a leader stops "
        "writes until there is another one, and a person takes longer than a program.",
        _BOOKKEEPER,
        (
            Figure("leader-dies", _BK, "longest_gap_ms", "<", 20),
            Figure("leader-dies", "raft", "longest_gap_ms", ">", 500),
            Figure("leader-dies", "kafka", "longest_gap_ms", ">", 500),
            Figure("leader-dies", "rocketmq-sync", "longest_gap_ms", ">", 2_500),
        ),
    ),
    Claim(
        "A leader that followers do not hear, and everybody else does, is replaced in Raft; in "
        "Kafka it stays and refuses until they are back; bookies need not hear each other.",
        f"{_RAFT}; {_KAFKA}",
        (
            Figure("partition", "raft", "longest_gap_ms", "<", 2_000),
            Figure("partition", "raft", "lost", "=", 0),
            Figure("partition", "kafka", "longest_gap_ms", ">", 4_000),
            Figure("partition", _BK, "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "A replica that returns is sent all that it missed; a bookie that returns is sent nothing, "
        "because others have taken its place.",
        _INSIGHTS,
        (
            Figure("replica-dies", "kafka", "second_holds", ">", 1_000),
            Figure("replica-dies", "raft", "second_holds", ">", 1_000),
            Figure("replica-dies", _BK, "second_holds", "<", 200),
        ),
    ),
    Claim(
        "A replica that lost its disk is sent the whole log; a bookie's entries are not sent by "
        "anybody until the bookie is repaired.",
        _INSIGHTS,
        (
            Figure("disk-lost", "kafka", "second_holds", ">", 1_000),
            Figure("disk-lost", "raft", "second_holds", ">", 1_000),
            Figure("disk-lost", _BK, "second_holds", "=", 0),
        ),
    ),
    Claim(
        "A partition has all its copies again when the replica is back and was sent what it "
        "missed. A ledger's new entries have theirs at once, in a new fragment; its old ones only "
        "when the lost bookie's entries are copied to another one, which need not wait for it.",
        _INSIGHTS,
        (
            Figure("replica-dies", "kafka", "short_ms", ">", 5_000),
            Figure("replica-dies", "raft", "short_ms", ">", 5_000),
            Figure("replica-dies", _BK, "short_ms", "=", math.inf),
            Figure("replica-dies", f"{_BK}-repair", "short_ms", "<", 2_500),
            Figure("replica-dies", "kafka", "copied_bytes", ">", 500_000),
            Figure("replica-dies", f"{_BK}-repair", "copied_bytes", "<", 250_000),
        ),
    ),
    Claim(
        "With a leader a client sends each value once, and the leader sends it again to each "
        "follower. A ledger's writer sends all copies itself, and no bookie sends any: the sum is "
        "the same.",
        f"DistributedLog: A High Performance Replicated Log Service (Guo, Dhamankar, Stewart); "
        f"{_RAFT}",
        (
            Figure("steady", "raft", "client_bytes_per_entry", "=", 1_000),
            Figure("steady", "raft", "server_bytes_per_entry", "=", 2_000),
            Figure("steady", "kafka", "server_bytes_per_entry", "=", 2_000),
            Figure("steady", _BK, "client_bytes_per_entry", "=", 3_000),
            Figure("steady", _BK, "server_bytes_per_entry", "=", 0),
            Figure("steady", _BK, "bytes_per_entry", "=", "raft"),
        ),
    ),
    Claim(
        "A producer that sends again after silence, without idempotence, can store a value twice; "
        "a ledger's writer cannot, because it chose the entry's number.",
        "KIP-98: Exactly Once Delivery and Transactional Messaging (Gustafson and others)",
        (
            Figure("partition", "rocketmq-sync", "doubled", ">", 0),
            Figure("replica-dies", "raft-2", "doubled", ">", 0),
            Figure("replica-dies", "bookkeeper-2-2-2", "doubled", "=", 0),
            Figure("partition", _BK, "doubled", "=", 0),
        ),
    ),
    Claim(
        "Servers that are restarted one after the other lose nothing; each change of the leader is "
        "a pause, and a ledger with AQ < WQ has none.",
        f"{_KAFKA}; {_BOOKKEEPER}",
        (
            Figure("rolling-restart", "kafka", "lost", "=", 0),
            Figure("rolling-restart", "raft", "lost", "=", 0),
            Figure("rolling-restart", "kafka", "longest_gap_ms", ">", 400),
            Figure("rolling-restart", _BK, "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "A group of DLedger elects a leader by itself; a synchronous master waits for a person. "
        "Neither loses anything when it dies.",
        f"{_DLEDGER}; {_ROCKETMQ}",
        (
            Figure("leader-dies", "dledger", "longest_gap_ms", "<", 2_000),
            Figure("leader-dies", "rocketmq-sync", "longest_gap_ms", ">", 2_500),
            Figure("leader-dies", "dledger", "lost", "=", 0),
            Figure("leader-dies", "rocketmq-sync", "lost", "=", 0),
        ),
    ),
    Claim(
        "DLedger waits for the page caches of a majority: longer than a master that waits for "
        "nobody, shorter than Raft, which waits for disks; a slow follower holds up nobody.",
        _DLEDGER,
        (
            Figure("steady", "rocketmq", "p50_ms", "<", "dledger"),
            Figure("steady", "dledger", "p50_ms", "<", "raft"),
            Figure("slow-replica", "dledger", "p99_ms", "<", 10),
        ),
    ),
    Claim(
        "Page caches of a majority are no disks: DLedger without a flush loses acknowledged values "
        "in a power cut, also if two of three servers lose power and the third one dies later.",
        _DLEDGER,
        (
            Figure("power-cut", "dledger", "lost", ">", 0),
            Figure("last-dies", "dledger", "lost", ">", 0),
            Figure("power-cut", "dledger-flush", "lost", "=", 0),
            Figure("last-dies", "dledger-flush", "lost", "=", 0),
        ),
    ),
    Claim(
        "Two of three servers away: a group of DLedger stops, as a synchronous master does; an "
        "asynchronous master goes on alone.",
        f"{_DLEDGER}; {_ROCKETMQ}",
        (
            Figure("two-die", "dledger", "longest_gap_ms", ">", 4_500),
            Figure("two-die", "rocketmq-sync", "longest_gap_ms", ">", 4_500),
            Figure("two-die", "rocketmq", "longest_gap_ms", "<", 100),
        ),
    ),
    Claim(
        "A follower that was cut off deposes a good leader, and so does one that cannot hear it; "
        "with pre-vote neither does.",
        _DISSERTATION,
        (
            Figure("follower-apart", "raft", "leader", "=", 2),
            Figure("follower-apart", "raft", "longest_gap_ms", ">", 500),
            Figure("follower-apart", "raft-pre-vote", "leader", "=", 1),
            Figure("follower-apart", "raft-pre-vote", "longest_gap_ms", "<", 20),
            Figure("one-way", "raft", "leader", "=", 2),
            Figure("one-way", "raft-pre-vote", "leader", "=", 1),
        ),
    ),
    Claim(
        "A leader that answers reads alone shows old data when another one was elected behind its "
        "back; one that asks a majority first does not.",
        f"{_RAFT}; {_DISSERTATION}",
        (
            Figure("partition", "raft-read-local", "stale", ">", 0),
            Figure("partition", "raft-read-index", "stale", "=", 0),
            Figure("leader-dies", "raft-read-index", "stale", "=", 0),
        ),
    ),
    Claim(
        "A follower that does not hear the leader holds up `acks=all` until it leaves the in-sync "
        "set; a ledger's bookies need not hear each other.",
        f"{_KAFKA}; {_BOOKKEEPER}",
        (
            Figure("one-way", "kafka", "longest_gap_ms", ">", 900),
            Figure("one-way", _BK, "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "A replica whose disk is full holds up nobody who waits for fewer. Kafka's broker ends, "
        "and `acks=all` waits for its session; a bookie says that it is full, and its place is "
        "taken at once, also if all are waited for.",
        f"KIP-112: Handle disk failure for JBOD (Lin); {_BOOKKEEPER}",
        (
            Figure("disk-full", "kafka", "longest_gap_ms", ">", 800),
            Figure("disk-full", "raft", "longest_gap_ms", "<", 20),
            Figure("disk-full", _BK, "longest_gap_ms", "<", 20),
            Figure("disk-full", "bookkeeper-3-3-3", "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "A leader that ends when its disk is full is replaced. A master of RocketMQ and a leader "
        "of DLedger refuse what is to be written, live on, and so stay in office: nothing is "
        "written until there is room, also with a controller.",
        f"KIP-112: Handle disk failure for JBOD (Lin); {_CONTROLLER}; {_DLEDGER}",
        (
            Figure("leader-disk-full", "kafka", "longest_gap_ms", "<", 2_000),
            Figure("leader-disk-full", "raft", "longest_gap_ms", "<", 2_000),
            Figure("leader-disk-full", "rocketmq-controller-sync", "longest_gap_ms", ">", 4_500),
            Figure("leader-disk-full", "dledger", "longest_gap_ms", ">", 4_500),
            Figure("leader-disk-full", _BK, "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "A leader that only clients hear goes on acknowledging if it waits for nobody, and its "
        "successor has none of that. One that waits for others can change neither its in-sync set "
        "nor anybody's mind, and acknowledges nothing.",
        "Jepsen: Kafka (Kingsbury); KIP-497: Add inter-broker API to alter ISR (Arthur)",
        (
            Figure("leader-apart", "kafka-acks-1", "lost", ">", 400),
            Figure("leader-apart", "rocketmq-controller-flush", "lost", ">", 400),
            Figure("leader-apart", "kafka", "lost", "=", 0),
            Figure("leader-apart", "rocketmq-controller-sync", "lost", "=", 0),
            Figure("leader-apart", "raft", "lost", "=", 0),
        ),
    ),
    Claim(
        "A leader that is heard and hears nobody keeps its office and commits nothing, in Kafka as "
        "in Raft with pre-vote; one that looks for a majority (check quorum) steps down. Bookies "
        "need not hear each other.",
        "Raft does not Guarantee Liveness in the face of Network Faults (Howard, Abraham)",
        (
            Figure("deaf-leader", "raft-pre-vote", "longest_gap_ms", ">", 4_500),
            Figure("deaf-leader", "kafka", "longest_gap_ms", ">", 4_500),
            Figure("deaf-leader", "raft-check-quorum", "longest_gap_ms", "<", 2_000),
            Figure("deaf-leader", "raft-check-quorum", "leader", "=", 2),
            Figure("deaf-leader", _BK, "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "The last in-sync replica is elected again also if it has lost its page cache, and the "
        "others cut what it lost. With eligible leader replicas one is elected that was stopped in "
        "order before.",
        "Kafka KIP-966: Fixing the Last Replica Standing issue (Vanlightly)",
        (
            Figure("last-loses-power", "kafka", "lost", ">", 100),
            Figure("last-loses-power", "kafka-eligible", "lost", "=", 0),
            Figure("last-loses-power", "raft", "lost", "=", 0),
            Figure("last-loses-power", _BK, "lost", "=", 0),
        ),
    ),
    Claim(
        "Eligible leader replicas are no flush: in a power cut of all they lose what the in-sync "
        "set does.",
        "Kafka KIP-966: Fixing the Last Replica Standing issue (Vanlightly)",
        (
            Figure("power-cut", "kafka-eligible", "lost", ">", 0),
            Figure("power-cut", "kafka-flush", "lost", "=", 0),
        ),
    ),
    Claim(
        "A consumer that asks a follower sees what is committed later than one that asks the "
        "leader; and who asks a leader that was replaced without knowing it sees old data.",
        "KIP-392: Allow consumers to fetch from closest replica (Gustafson)",
        (
            Figure("steady", "kafka-read-follower", "stale", ">", 0),
            Figure("steady", "kafka-read-leader", "stale", "=", 0),
            Figure("leader-apart", "kafka-read-leader", "stale", ">", 0),
        ),
    ),
    Claim(
        "A synchronous master says so when no slave has a value in time, and keeps the value. An "
        "application that takes this answer for success loses it with the master; one that sends "
        "again loses no more than what was in page caches.",
        "Best Practice For Producer (Apache RocketMQ's documentation)",
        (
            Figure("last-dies", "rocketmq-sync-timeout", "lost", ">", 300),
            Figure("last-dies", "rocketmq-sync-timeout", "longest_gap_ms", "<", 4_500),
            Figure("last-dies", "rocketmq-sync", "lost", "<", 100),
        ),
    ),
    Claim(
        "A controller names another master sooner than a person. It loses the same tail if the "
        "master did not wait for the sync state set, and nothing if it did.",
        _CONTROLLER,
        (
            Figure("leader-dies", "rocketmq-controller", "longest_gap_ms", "<", 2_000),
            Figure("leader-dies", "rocketmq", "longest_gap_ms", ">", 2_500),
            Figure("leader-dies", "rocketmq-controller", "lost", ">", 0),
            Figure("leader-dies", "rocketmq-controller-flush", "lost", ">", 0),
            Figure("leader-dies", "rocketmq-controller-sync", "lost", "=", 0),
            Figure("leader-dies", "rocketmq-controller-sync-flush", "lost", "=", 0),
        ),
    ),
    Claim(
        "Waiting for the whole sync state set waits for a slow slave until it leaves the set; "
        "waiting for one slave does not.",
        f"{_CONTROLLER}; {_ROCKETMQ}",
        (
            Figure("slow-replica", "rocketmq-controller-sync", "p99_ms", ">", 50),
            Figure("slow-replica", "rocketmq-sync", "p99_ms", "<", 10),
        ),
    ),
    Claim(
        "With AQ = 1 an acknowledged entry may be on one bookie alone: without it a ledger cannot "
        "be recovered, and with its disk the entry is lost. With AQ = 2 neither is so.",
        "Apache BookKeeper Insights Part 2: Closing Ledgers Safely (Vanlightly)",
        (
            Figure("one-has-it", "bookkeeper-3-3-1", "lost", ">", 0),
            Figure("one-has-it", "bookkeeper-3-3-1", "longest_gap_ms", ">", 4_000),
            Figure("one-has-it", _BK, "lost", "=", 0),
            Figure("one-has-it", _BK, "longest_gap_ms", "<", 2_500),
        ),
    ),
    Claim(
        "A ledger whose writer dies is closed by the next one, also while a bookie is away; "
        "nothing that was acknowledged is missing, and no entry is there twice.",
        "Apache BookKeeper Insights Part 2: Closing Ledgers Safely (Vanlightly)",
        (
            Figure("writer-dies", _BK, "recovery", "=", 1),
            Figure("writer-dies", _BK, "longest_gap_ms", "<", 600),
            Figure("writer-dies", _BK, "lost", "=", 0),
            Figure("writer-and-bookie-die", _BK, "lost", "=", 0),
            Figure("writer-and-bookie-die", _BK, "longest_gap_ms", "<", 2_000),
            Figure("writer-and-bookie-die", _BK, "doubled", "=", 0),
        ),
    ),
    Claim(
        "A writer that was frozen while another one took over is fenced: it confirms nothing that "
        "is not in the ledger as it was closed.",
        "Apache BookKeeper Insights Part 2: Closing Ledgers Safely (Vanlightly)",
        (
            Figure("writer-freezes", _BK, "recovery", ">", 0),
            Figure("writer-freezes", _BK, "lost", "=", 0),
            Figure("writer-freezes", "bookkeeper-2-2-2", "lost", "=", 0),
        ),
    ),
)
