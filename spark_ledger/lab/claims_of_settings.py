"""Claims about what a setting costs and keeps: answers, counts of servers, minimums, and reads."""

from __future__ import annotations

from typing import Final

from spark_ledger.lab.experiments import Claim, Figure
from spark_ledger.lab.sources import (
    BK,
    BOOKKEEPER,
    DISSERTATION,
    DURABILITY,
    KAFKA,
    RAFT,
    ROCKETMQ,
)

CLAIMS_OF_SETTINGS: Final = (
    Claim(
        "`acks=0` waits for nothing, and learns nothing: what is sent to a dead leader is lost. "
        "`acks=1` sends it again, and loses no more than what no follower had fetched.",
        KAFKA,
        (
            Figure("steady", "kafka-acks-0", "p50_ms", "<", "kafka-acks-1"),
            Figure("leader-dies", "kafka-acks-0", "lost", ">", 90),
            Figure("leader-dies", "kafka-acks-1", "lost", "<", 2),
            Figure("leader-dies", "kafka", "lost", "=", 0),
        ),
    ),
    Claim(
        "With `min.insync.replicas=1` also `acks=all` goes on with the last broker alone; what "
        "only that one has is lost with its page cache. With 2 nothing is taken meanwhile.",
        KAFKA,
        (
            Figure("two-die", "kafka-min-1", "longest_gap_ms", "<", 2_000),
            Figure("two-die", "kafka", "longest_gap_ms", ">", 4_500),
            Figure("last-loses-power", "kafka-min-1", "lost", ">", "kafka"),
        ),
    ),
    Claim(
        "A follower that is slow, and keeps asking for all that there was a moment ago, stays in "
        "sync: `acks=all` waits for it all the time, and not for `replica.lag.time.max.ms`.",
        "KIP-16: Automated Replica Lag Tuning (Auradkar)",
        (
            Figure("slow-replica", "kafka", "p99_ms", ">", 100),
            Figure("slow-replica", "kafka", "longest_gap_ms", "<", 500),
            Figure("one-way", "kafka", "longest_gap_ms", ">", 900),
        ),
    ),
    Claim(
        "Idempotence costs a producer no round trip.",
        "KIP-679: Producer will enable the strongest delivery guarantee by default (Tan)",
        (
            Figure("steady", "kafka-idempotent", "p50_ms", "<", 3),
            Figure("steady", "kafka", "p50_ms", "<", 3),
            Figure("steady", "kafka-idempotent", "bytes_per_entry", "=", "kafka"),
        ),
    ),
    Claim(
        "Five servers go on without two, where three stop; their leader sends twice as much, and a "
        "value waits no longer.",
        RAFT,
        (
            Figure("two-die", "raft-5", "longest_gap_ms", "<", 20),
            Figure("two-die", "raft", "longest_gap_ms", ">", 4_500),
            Figure("steady", "raft-5", "server_bytes_per_entry", "=", 4_000),
            Figure("steady", "raft", "server_bytes_per_entry", "=", 2_000),
            Figure("steady", "raft-5", "p99_ms", "<", 10),
        ),
    ),
    Claim(
        "A leader that is slow, and not dead, stays leader, and everybody waits for it: nobody "
        "waits for one slow bookie, whichever it is.",
        "Fail-Slow at Scale: Evidence of Hardware Performance Faults in Large Production Systems "
        f"(Gunawi and others); {BOOKKEEPER}",
        (
            Figure("slow-leader", "raft", "leader", "=", 1),
            Figure("slow-leader", "raft", "p99_ms", ">", 100),
            Figure("slow-leader", "kafka", "p99_ms", ">", 100),
            Figure("slow-leader", "rocketmq-sync", "p99_ms", ">", 100),
            Figure("slow-leader", "dledger", "p99_ms", ">", 100),
            Figure("slow-leader", BK, "p99_ms", "<", 10),
        ),
    ),
    Claim(
        "A leader that is cut off from a majority steps down by itself, if it looks for one; else "
        "it takes values, which it never commits, until another one is heard.",
        DISSERTATION,
        (
            Figure("partition", "raft-check-quorum", "stepped down", "=", 1),
            Figure("partition", "raft-check-quorum", "longest_gap_ms", "<", "raft"),
            Figure("partition", "raft-check-quorum", "truncated", "<", "raft"),
            Figure("follower-apart", "raft-check-quorum", "leader", "=", 1),
        ),
    ),
    Claim(
        "One disk that is lost takes nothing that an ack quorum of two, a majority or all in-sync "
        "replicas confirmed.",
        f"{DURABILITY}; {RAFT}; {KAFKA}",
        (
            Figure("disk-lost", BK, "lost", "=", 0),
            Figure("disk-lost", "bookkeeper-2-2-2", "lost", "=", 0),
            Figure("disk-lost", "raft", "lost", "=", 0),
            Figure("disk-lost", "kafka", "lost", "=", 0),
        ),
    ),
    Claim(
        "A recovery reads what lies behind the last add confirmed that bookies know, and not the "
        "ledger: here two or three of a hundred entries.",
        "Apache BookKeeper Insights Part 2: Closing Ledgers Safely (Vanlightly)",
        (
            Figure("writer-dies", BK, "recovery read", ">", 0),
            Figure("writer-dies", BK, "recovery read", "<", 10),
            Figure("writer-dies", "bookkeeper-striped-5-3-2", "recovery read", "<", 10),
        ),
    ),
    Claim(
        "A consumer that reads from a slave sees late what an asynchronous master acknowledged, "
        "as it is sent.",
        ROCKETMQ,
        (
            Figure("steady", "rocketmq-read-slave", "stale", ">", 50),
            Figure("steady", "kafka-read-leader", "stale", "=", 0),
        ),
    ),
)
