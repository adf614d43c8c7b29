"""Claims about servers that are cut off, deaf, full or forgetful, and writers that are replaced."""

from __future__ import annotations

from typing import Final

from spark_ledger.lab.experiments import Claim, Figure
from spark_ledger.lab.sources import (
    BK,
    BOOKKEEPER,
    CONTROLLER,
    DISSERTATION,
    DLEDGER,
    KAFKA,
    RAFT,
    ROCKETMQ,
)

CLAIMS_OF_ISOLATION: Final = (
    Claim(
        "A follower that was cut off deposes a good leader, and so does one that cannot hear it; "
        "with pre-vote neither does.",
        DISSERTATION,
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
        f"{RAFT}; {DISSERTATION}",
        (
            Figure("partition", "raft-read-local", "stale", ">", 0),
            Figure("partition", "raft-read-index", "stale", "=", 0),
            Figure("leader-dies", "raft-read-index", "stale", "=", 0),
        ),
    ),
    Claim(
        "A follower that does not hear the leader holds up `acks=all` until it leaves the in-sync "
        "set; a ledger's bookies need not hear each other.",
        f"{KAFKA}; {BOOKKEEPER}",
        (
            Figure("one-way", "kafka", "longest_gap_ms", ">", 900),
            Figure("one-way", BK, "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "A replica whose disk is full holds up nobody who waits for fewer. Kafka's broker ends, "
        "and `acks=all` waits for its session; a bookie says that it is full, and its place is "
        "taken at once, also if all are waited for.",
        f"KIP-112: Handle disk failure for JBOD (Lin); {BOOKKEEPER}",
        (
            Figure("disk-full", "kafka", "longest_gap_ms", ">", 800),
            Figure("disk-full", "raft", "longest_gap_ms", "<", 20),
            Figure("disk-full", BK, "longest_gap_ms", "<", 20),
            Figure("disk-full", "bookkeeper-3-3-3", "longest_gap_ms", "<", 20),
        ),
    ),
    Claim(
        "A leader that ends when its disk is full is replaced. A master of RocketMQ and a leader "
        "of DLedger refuse what is to be written, live on, and so stay in office: nothing is "
        "written until there is room, also with a controller.",
        f"KIP-112: Handle disk failure for JBOD (Lin); {CONTROLLER}; {DLEDGER}",
        (
            Figure("leader-disk-full", "kafka", "longest_gap_ms", "<", 2_000),
            Figure("leader-disk-full", "raft", "longest_gap_ms", "<", 2_000),
            Figure("leader-disk-full", "rocketmq-controller-sync", "longest_gap_ms", ">", 4_500),
            Figure("leader-disk-full", "dledger", "longest_gap_ms", ">", 4_500),
            Figure("leader-disk-full", BK, "longest_gap_ms", "<", 20),
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
            Figure("deaf-leader", BK, "longest_gap_ms", "<", 20),
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
            Figure("last-loses-power", BK, "lost", "=", 0),
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
        CONTROLLER,
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
        f"{CONTROLLER}; {ROCKETMQ}",
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
            Figure("one-has-it", BK, "lost", "=", 0),
            Figure("one-has-it", BK, "longest_gap_ms", "<", 2_500),
        ),
    ),
    Claim(
        "A ledger whose writer dies is closed by the next one, also while a bookie is away; "
        "nothing that was acknowledged is missing, and no entry is there twice.",
        "Apache BookKeeper Insights Part 2: Closing Ledgers Safely (Vanlightly)",
        (
            Figure("writer-dies", BK, "recovery", "=", 1),
            Figure("writer-dies", BK, "longest_gap_ms", "<", 600),
            Figure("writer-dies", BK, "lost", "=", 0),
            Figure("writer-and-bookie-die", BK, "lost", "=", 0),
            Figure("writer-and-bookie-die", BK, "longest_gap_ms", "<", 2_000),
            Figure("writer-and-bookie-die", BK, "doubled", "=", 0),
        ),
    ),
    Claim(
        "A writer that was frozen while another one took over is fenced: it confirms nothing that "
        "is not in the ledger as it was closed.",
        "Apache BookKeeper Insights Part 2: Closing Ledgers Safely (Vanlightly)",
        (
            Figure("writer-freezes", BK, "recovery", ">", 0),
            Figure("writer-freezes", BK, "lost", "=", 0),
            Figure("writer-freezes", "bookkeeper-2-2-2", "lost", "=", 0),
        ),
    ),
)
