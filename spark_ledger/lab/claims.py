"""What is said about ways to replicate a log, each with the runs that support or refute it."""

from __future__ import annotations

import math
from typing import Final

from spark_ledger.lab.claims_of_isolation import CLAIMS_OF_ISOLATION
from spark_ledger.lab.claims_of_settings import CLAIMS_OF_SETTINGS
from spark_ledger.lab.experiments import Claim, Figure
from spark_ledger.lab.sources import (
    BK,
    BOOKKEEPER,
    DISSERTATION,
    DLEDGER,
    DURABILITY,
    INSIGHTS,
    KAFKA,
    RAFT,
    ROCKETMQ,
)

CLAIMS: Final = (
    Claim(
        "An ack quorum below the write quorum does not wait for a slow replica.",
        DURABILITY,
        (Figure("slow-replica", BK, "p99_ms", "<", 10),),
    ),
    Claim(
        "An ack quorum of all waits for a replica that is ten or a hundred times as slow.",
        INSIGHTS,
        (
            Figure("slow-replica-10", "bookkeeper-3-3-3", "p99_ms", ">", 20),
            Figure("slow-replica", "bookkeeper-3-3-3", "p99_ms", ">", 100),
            Figure("slow-replica-10", "bookkeeper-3-3-2", "p99_ms", "<", 10),
        ),
    ),
    Claim(
        "A majority does not wait for a slow follower.",
        RAFT,
        (Figure("slow-replica", "raft", "p99_ms", "<", 10),),
    ),
    Claim(
        "`acks=all` waits for a slow follower as long as it is in sync; `acks=1` does not.",
        KAFKA,
        (
            Figure("slow-replica", "kafka", "p99_ms", ">", 100),
            Figure("slow-replica", "kafka-acks-1", "p99_ms", "<", 10),
        ),
    ),
    Claim(
        "Synchronous replication to one of two slaves does not wait for a slow one.",
        ROCKETMQ,
        (Figure("slow-replica", "rocketmq-sync", "p99_ms", "<", 10),),
    ),
    Claim(
        "A dead replica holds up whoever waits for all, until it counts as dead (here one second); "
        "it holds up nobody who waits for fewer.",
        "DistributedLog: A High Performance Replicated Log Service (Guo, Dhamankar, Stewart)",
        (
            Figure("replica-dies", "bookkeeper-3-3-3", "longest_gap_ms", ">", 900),
            Figure("replica-dies", "kafka", "longest_gap_ms", ">", 900),
            Figure("replica-dies", BK, "longest_gap_ms", "<", 20),
            Figure("replica-dies", "raft", "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "Two copies stay available without one server if another one takes its place. A majority "
        "of two and `min.insync.replicas=2` stop until it is back.",
        INSIGHTS,
        (
            Figure("replica-dies", "bookkeeper-2-2-2", "longest_gap_ms", "<", 1_500),
            Figure("replica-dies", "raft-2", "longest_gap_ms", ">", 4_000),
            Figure("replica-dies", "kafka-2", "longest_gap_ms", ">", 4_000),
        ),
    ),
    Claim(
        "With two of its three servers away a majority stops; a ledger goes on if there are "
        "others, and stops if it is striped over all there are.",
        INSIGHTS,
        (
            Figure("two-die", "raft", "longest_gap_ms", ">", 4_500),
            Figure("two-die", BK, "longest_gap_ms", "<", 3_000),
            Figure("two-die", "bookkeeper-striped-5-3-2", "longest_gap_ms", ">", 4_500),
        ),
    ),
    Claim(
        "`acks=all` without a flush loses acknowledged values if all lose power at once.",
        KAFKA,
        (
            Figure("power-cut", "kafka", "lost", ">", 0),
            Figure("power-cut", "kafka-flush", "lost", "=", 0),
        ),
    ),
    Claim(
        "Who syncs before it answers loses nothing in a power cut of all.",
        DURABILITY,
        (
            Figure("power-cut", BK, "lost", "=", 0),
            Figure("power-cut", "raft", "lost", "=", 0),
            Figure("power-cut", "rocketmq-flush", "lost", "=", 0),
        ),
    ),
    Claim(
        "An answer from the page cache is faster than one from the disk.",
        KAFKA,
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
        ROCKETMQ,
        (
            Figure("leader-dies", "rocketmq", "lost", ">", 0),
            Figure("leader-dies", "rocketmq-flush", "lost", ">", 0),
            Figure("leader-dies", "rocketmq-sync", "lost", "=", 0),
        ),
    ),
    Claim(
        "Who decides: a majority elects (Raft), a controller names a leader (Kafka), a person "
        "names a master (RocketMQ), and a ledger's writer changes the ensemble.",
        f"{RAFT}; {KAFKA}; {ROCKETMQ}; {BOOKKEEPER}",
        (
            Figure("leader-dies", "raft", "election", "=", 2),
            Figure("leader-dies", "kafka", "leader", "=", 1),
            Figure("leader-dies", "rocketmq", "fail-over by hand", "=", 1),
            Figure("leader-dies", BK, "ensemble change", "=", 1),
        ),
    ),
    Claim(
        "No bookie leads, so any of them may die without a pause; the death of a leader stops "
        "writes until there is another one, and a person takes longer than a program.",
        BOOKKEEPER,
        (
            Figure("leader-dies", BK, "longest_gap_ms", "<", 20),
            Figure("leader-dies", "raft", "longest_gap_ms", ">", 500),
            Figure("leader-dies", "kafka", "longest_gap_ms", ">", 500),
            Figure("leader-dies", "rocketmq-sync", "longest_gap_ms", ">", 2_500),
        ),
    ),
    Claim(
        "A leader that followers do not hear, and everybody else does, is replaced in Raft; in "
        "Kafka it stays and refuses until they are back; bookies need not hear each other.",
        f"{RAFT}; {KAFKA}",
        (
            Figure("partition", "raft", "longest_gap_ms", "<", 2_000),
            Figure("partition", "raft", "lost", "=", 0),
            Figure("partition", "kafka", "longest_gap_ms", ">", 4_000),
            Figure("partition", BK, "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "A replica that returns is sent all that it missed; a bookie that returns is sent nothing, "
        "because others have taken its place.",
        INSIGHTS,
        (
            Figure("replica-dies", "kafka", "second_holds", ">", 1_000),
            Figure("replica-dies", "raft", "second_holds", ">", 1_000),
            Figure("replica-dies", BK, "second_holds", "<", 200),
        ),
    ),
    Claim(
        "A replica that lost its disk is sent the whole log; a bookie's entries are not sent by "
        "anybody until the bookie is repaired.",
        INSIGHTS,
        (
            Figure("disk-lost", "kafka", "second_holds", ">", 1_000),
            Figure("disk-lost", "raft", "second_holds", ">", 1_000),
            Figure("disk-lost", BK, "second_holds", "=", 0),
        ),
    ),
    Claim(
        "A partition has all its copies again when the replica is back and was sent what it "
        "missed. A ledger's new entries have theirs at once, in a new fragment; its old ones only "
        "when the lost bookie's entries are copied to another one, which need not wait for it.",
        INSIGHTS,
        (
            Figure("replica-dies", "kafka", "short_ms", ">", 5_000),
            Figure("replica-dies", "raft", "short_ms", ">", 5_000),
            Figure("replica-dies", BK, "short_ms", "=", math.inf),
            Figure("replica-dies", f"{BK}-repair", "short_ms", "<", 2_500),
            Figure("replica-dies", "kafka", "copied_bytes", ">", 500_000),
            Figure("replica-dies", f"{BK}-repair", "copied_bytes", "<", 250_000),
        ),
    ),
    Claim(
        "With a leader a client sends each value once, and the leader sends it again to each "
        "follower. A ledger's writer sends all copies itself, and no bookie sends any: the sum is "
        "the same.",
        f"DistributedLog: A High Performance Replicated Log Service (Guo, Dhamankar, Stewart); "
        f"{RAFT}",
        (
            Figure("steady", "raft", "client_bytes_per_entry", "=", 1_000),
            Figure("steady", "raft", "server_bytes_per_entry", "=", 2_000),
            Figure("steady", "kafka", "server_bytes_per_entry", "=", 2_000),
            Figure("steady", BK, "client_bytes_per_entry", "=", 3_000),
            Figure("steady", BK, "server_bytes_per_entry", "=", 0),
            Figure("steady", BK, "bytes_per_entry", "=", "raft"),
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
            Figure("partition", BK, "doubled", "=", 0),
        ),
    ),
    Claim(
        "A producer that sends again after a refusal or silence stores values twice and in another "
        "order. With ids, epochs and sequences a broker refuses both, also after a change of the "
        "leader, because they are in the log.",
        "KIP-98: Exactly Once Delivery and Transactional Messaging (Gustafson and others)",
        (
            Figure("deaf-leader", "kafka", "doubled", ">", 0),
            Figure("deaf-leader", "kafka-idempotent", "doubled", "=", 0),
            Figure("leader-dies", "kafka", "reordered", ">", 0),
            Figure("leader-dies", "kafka-idempotent", "reordered", "=", 0),
            Figure("rolling-restart", "kafka-idempotent", "doubled", "=", 0),
            Figure("rolling-restart", "kafka-idempotent", "reordered", "=", 0),
        ),
    ),
    Claim(
        "Idempotence is no flush: what a power cut of all takes from page caches is gone, and the "
        "producer goes on in another epoch.",
        "KIP-360: Improve reliability of idempotent/transactional producer (Gustafson)",
        (
            Figure("power-cut", "kafka-idempotent", "lost", ">", 0),
            Figure("power-cut", "kafka-idempotent", "doubled", "=", 0),
            Figure("power-cut", "kafka-idempotent-flush", "lost", "=", 0),
        ),
    ),
    Claim(
        "A leader that counts replicas of an entry of an older term commits what can still be "
        "overwritten (figure 8). One that counts only entries of its own term does not.",
        RAFT,
        (
            Figure("figure-8", "raft-count-older-terms", "lost", ">", 0),
            Figure("figure-8", "raft-one-by-one", "lost", "=", 0),
            Figure("figure-8", "raft", "lost", "=", 0),
        ),
    ),
    Claim(
        "Without numbers of clients in the state machine Raft takes a value twice that is sent "
        "again; with them it takes it once.",
        RAFT,
        (
            Figure("replica-dies", "raft-2", "doubled", ">", 0),
            Figure("figure-8", "raft", "doubled", ">", 0),
            Figure("figure-8", "raft-sessions", "doubled", "=", 0),
        ),
    ),
    Claim(
        "A leader may write to its own disk while it sends to its followers; one that writes first "
        "makes each value wait for two disks in turn.",
        DISSERTATION,
        (
            Figure("steady", "raft", "p50_ms", "<", "raft-writes-first"),
            Figure("steady", "raft-writes-first", "p50_ms", ">", 5),
            Figure("power-cut", "raft-writes-first", "lost", "=", 0),
        ),
    ),
    Claim(
        "A log that elects by majorities and does not sync loses acknowledged values when one "
        "server loses its page cache and another one dies. Kafka does not need to sync for that: "
        "who comes back is not in sync, and the last that is in sync is waited for.",
        "Why Apache Kafka doesn't need fsync to be safe (Vanlightly)",
        (
            Figure("one-forgets", "dledger", "lost", ">", 0),
            Figure("one-forgets", "dledger-flush", "lost", "=", 0),
            Figure("one-forgets", "raft", "lost", "=", 0),
            Figure("one-forgets", "kafka", "lost", "=", 0),
            Figure("one-forgets", "kafka", "longest_gap_ms", ">", 3_500),
        ),
    ),
    Claim(
        "A ledger whose ensemble is larger than its write quorum is striped: each bookie holds its "
        "share of the entries, and a replica of a partition all of them.",
        BOOKKEEPER,
        (
            Figure("steady", "bookkeeper-striped-5-3-2", "second_holds", "<", 610),
            Figure("steady", BK, "second_holds", "=", 1_001),
            Figure("steady", "kafka", "second_holds", "=", 1_001),
        ),
    ),
    Claim(
        "Servers that are restarted one after the other lose nothing; each change of the leader is "
        "a pause, and a ledger with AQ < WQ has none.",
        f"{KAFKA}; {BOOKKEEPER}",
        (
            Figure("rolling-restart", "kafka", "lost", "=", 0),
            Figure("rolling-restart", "raft", "lost", "=", 0),
            Figure("rolling-restart", "kafka", "longest_gap_ms", ">", 400),
            Figure("rolling-restart", BK, "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "A group of DLedger elects a leader by itself; a synchronous master waits for a person. "
        "Neither loses anything when it dies.",
        f"{DLEDGER}; {ROCKETMQ}",
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
        DLEDGER,
        (
            Figure("steady", "rocketmq", "p50_ms", "<", "dledger"),
            Figure("steady", "dledger", "p50_ms", "<", "raft"),
            Figure("slow-replica", "dledger", "p99_ms", "<", 10),
        ),
    ),
    Claim(
        "Page caches of a majority are no disks: DLedger without a flush loses acknowledged values "
        "in a power cut, also if two of three servers lose power and the third one dies later.",
        DLEDGER,
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
        f"{DLEDGER}; {ROCKETMQ}",
        (
            Figure("two-die", "dledger", "longest_gap_ms", ">", 4_500),
            Figure("two-die", "rocketmq-sync", "longest_gap_ms", ">", 4_500),
            Figure("two-die", "rocketmq", "longest_gap_ms", "<", 100),
        ),
    ),
    *CLAIMS_OF_ISOLATION,
    *CLAIMS_OF_SETTINGS,
)
