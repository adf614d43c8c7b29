"""What is said about ways to replicate a log, each with the runs that support or refute it."""

from __future__ import annotations

import operator
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from spark_ledger.lab.kafka import SESSION_S
from spark_ledger.lab.runs import Outcome, run
from spark_ledger.lab.scenarios import SCENARIOS

SEED: Final = 1

_TEXT_WIDTH: Final = 108
"""Of the page, in characters."""

_SIGNS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "=": operator.eq,
    ">": operator.gt,
}


class Figure(NamedTuple):
    """One figure of one run, and what the claim says of it.

    ``name``: a field of ``Outcome``, or a kind of its decisions. ``bound``: a number, or a protocol
    whose same figure in the same scenario is the bound.
    """

    scenario: str
    protocol: str
    name: str
    sign: str
    bound: float | str

    @property
    def expected(self) -> str:
        """What the claim says, for people."""
        what = self.bound if isinstance(self.bound, str) else f"{self.bound:g}"
        return f"{self.name} {self.sign} {what}"

    def measure(self) -> float:
        """The figure of the run."""
        return _figure(self.scenario, self.protocol, self.name)

    def holds(self) -> bool:
        """Whether it is what the claim says."""
        bound = self.bound
        if isinstance(bound, str):
            bound = _figure(self.scenario, bound, self.name)
        return _SIGNS[self.sign](self.measure(), bound)


class Claim(NamedTuple):
    """``source``: where it is said, by title and author."""

    statement: str
    source: str
    figures: tuple[Figure, ...]

    def holds(self) -> bool:
        """Whether every figure is as the claim says."""
        return all(figure.holds() for figure in self.figures)


@cache
def outcome(scenario: str, protocol: str) -> Outcome:
    """What came of a run with ``SEED``. A run repeats itself, so one is enough."""
    return run(SCENARIOS[scenario], protocol, SEED)[0]


def _figure(scenario: str, protocol: str, name: str) -> float:
    result = outcome(scenario, protocol)
    if name in Outcome._fields:
        return float(getattr(result, name))
    return float(result.decisions.get(name, 0))


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
_ROCKETMQ: Final = "Deployment: Master and Slave (Apache RocketMQ's documentation)"

CLAIMS: Final = (
    Claim(
        "An ack quorum below the write quorum does not wait for a slow replica.",
        _DURABILITY,
        (Figure("slow-replica", _BK, "p99_ms", "<", 10),),
    ),
    Claim(
        "An ack quorum of all waits for a slow replica.",
        _INSIGHTS,
        (Figure("slow-replica", "bookkeeper-3-3-3", "p99_ms", ">", 100),),
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
)


class Real(NamedTuple):
    """A server of a real cluster was killed under load, and the run of the lab that is like it."""

    what: str
    protocol: str
    gap_ms: float
    """The longest time without an acknowledgement, by ``python -m benchmarks raw --peers``."""
    timeout_s: float | None
    """How long it has to be silent until it is given up; None: nobody waits for it."""


REAL: Final = (
    Real("leader of a Kafka partition, `acks=all`", "kafka", 11_800, 9.0),
    Real("bookie of Apache BookKeeper, AQ < WQ", _BK, 109, None),
    Real("bookie of this system, AQ < WQ", _BK, 14, None),
)


def _beside_real_servers() -> list[str]:
    text = (
        "`python -m benchmarks raw --peers` kills a server under 100 appends in flight "
        "([2026-11-21](../benchmarks/README.md), loopback, default timeouts). The lab's run is "
        "`leader-dies`, where a broker is given up after one second. The shape is the same: Kafka "
        "is silent for its session and the election, and a ledger that waits for AQ < WQ bookies "
        "goes on. In the lab values come 10 ms apart, so that is its shortest gap. Only this "
        "failure was measured on both sides: no real peer ran with a slow replica, a partition or "
        "a power cut."
    )
    lines = [
        "",
        "## Beside real servers",
        "",
        *textwrap.wrap(text, _TEXT_WIDTH),
        "",
        "| killed | real gap, ms | its timeout, ms | lab's gap, ms | its timeout, ms |",
        "|---|---|---|---|---|",
    ]
    for real in REAL:
        waits = ("none", "none")
        if real.timeout_s is not None:
            waits = (f"{1e3 * real.timeout_s:g}", f"{1e3 * SESSION_S:g}")
        gap = outcome("leader-dies", real.protocol).longest_gap_ms
        lines.append(f"| {real.what} | {real.gap_ms:g} | {waits[0]} | {gap:g} | {waits[1]} |")
    return lines


def page() -> str:
    """The page of all claims, in Markdown."""
    lines = [
        "# Claims about replication, and the runs that test them",
        "",
        "Written by `ledger lab claims --write docs/replication.md`: do not edit it. Every row is",
        f"a run of the [lab](../spark_ledger/lab/README.md) with seed {SEED}, on simulated",
        "servers: `ledger lab run SCENARIO --protocols PROTOCOL` shows all its figures. Times are",
        "those of the simulated clock, scaled down: compare them with each other.",
        "",
        "| scenario | what happens |",
        "|---|---|",
        *(f"| `{each.name}` | {each.what} |" for each in SCENARIOS.values()),
    ]
    for number, claim in enumerate(CLAIMS, 1):
        lines += [
            "",
            f"## {number}. {claim.statement}",
            "",
            "| scenario | protocol | claimed | measured | holds |",
            "|---|---|---|---|---|",
        ]
        for each in claim.figures:
            holds = "yes" if each.holds() else "NO"
            row = (f"`{each.scenario}`", f"`{each.protocol}`", each.expected)
            lines.append(f"| {' | '.join(row)} | {each.measure():g} | {holds} |")
        lines += ["", *textwrap.wrap(f"Said in: {claim.source}.", _TEXT_WIDTH)]
    return "\n".join([*lines, *_beside_real_servers()]) + "\n"
