"""A run told step by step: each fault and decision, and what every server knew then."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_ledger.lab.runs import Outcome, run
from spark_ledger.lab.scenarios import Scenario
from spark_ledger.lab.world import World

TOGETHER_S: Final = 0.005
"""What happens within this long is one step: a power cut of all servers, an election."""


class Story(NamedTuple):
    """A run that shows one rule, and what to look for in it."""

    scenario: str
    protocol: str
    look: str


STORIES: Final = {
    "kafka.truncation": Story(
        "die-in-turn",
        "kafka-by-high-watermark",
        "A follower knows the high watermark one fetch late, so it cuts a value that was "
        "acknowledged (at 3.9 s n2 has 100 entries of 101). Then the only other broker that has it "
        "dies too, n2 leads, and the others cut the value as well. With leader epochs n2 asks "
        "first, and cuts nothing: add --protocol kafka.",
    ),
    "kafka.unclean": Story(
        "last-dies",
        "kafka-unclean",
        "The last in-sync broker dies. One that is not in sync leads instead, and what only the "
        "last one had is cut when it is back. Without unclean election (--protocol kafka-min-1) "
        "everybody waits for it.",
    ),
    "raft.commit": Story(
        "figure-8",
        "raft-count-older-terms",
        "A leader counts replicas of an entry of an older term, and acknowledges it; a later "
        "leader overwrites it (figure 8 of the paper). With the rule of the own term (--protocol "
        "raft-one-by-one) it is not acknowledged before.",
    ),
    "raft.pre-vote": Story(
        "follower-apart",
        "raft",
        "A follower that is cut off stands for election again and again; when it is back, its term "
        "is later than the leader's, who has to go. With --protocol raft-pre-vote it asks first.",
    ),
    "rocketmq.tail": Story(
        "leader-dies",
        "rocketmq",
        "The master dies with values that no slave had fetched. A person names a slave three "
        "seconds later; when the former master is back, its log is emptied and copied anew.",
    ),
    "bookkeeper.ensemble-change": Story(
        "replica-dies",
        "bookkeeper-3-3-2",
        "A bookie dies, and the writer waits for the other two; after a second another bookie "
        "takes its place for the entries that come next (zookeeper: a new fragment).",
    ),
    "bookkeeper.fencing": Story(
        "writer-freezes",
        "bookkeeper-3-3-2",
        "A writer stands still. The next one fences the bookies, reads what may lie behind the "
        "last add confirmed, closes the ledger and begins another. When the first one goes on, "
        "bookies refuse it.",
    ),
}
"""By the name that ``ledger lab explain`` takes."""


class Known(NamedTuple):
    """One server or client at a moment."""

    name: str
    alive: bool
    entries: int
    synced: int
    """Of these entries: what a power cut leaves."""
    knows: str


class Moment(NamedTuple):
    """Something happened, and this is how all stood right after it."""

    at: float
    what: tuple[str, ...]
    acknowledged: int
    hosts: tuple[Known, ...]


def moments(scenario: Scenario, protocol: str, seed: int) -> tuple[list[Moment], Outcome]:
    """Every step of a run, and what came of it. A step is as it stood at its last event."""
    found: list[Moment] = []

    def follow(world: World) -> None:
        at, who, what, _ = world.events[-1]
        happened: tuple[str, ...] = (f"{who}: {what}",)
        if found and at - found[-1].at < TOGETHER_S:
            before = found.pop()
            happened = tuple(dict.fromkeys(before.what + happened))
            at = before.at
        found.append(Moment(at, happened, len(world.acknowledged), _known(world)))

    outcome, world = run(scenario, protocol, seed, follow)
    found.append(Moment(world.loop.now, ("end",), len(world.acknowledged), _known(world)))
    return found, outcome


def _known(world: World) -> tuple[Known, ...]:
    return tuple(
        Known(
            host.name,
            host.process.alive,
            len(host.store.log),
            host.store.synced,
            host.machine.knows(),
        )
        for host in world.hosts.values()
        if hasattr(host, "machine")
    )
