"""A run told step by step: each fault and decision, and what every server knew then."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_ledger.lab.runs import Outcome, run
from spark_ledger.lab.scenarios import Scenario
from spark_ledger.lab.world import World

TOGETHER_S: Final = 0.005
"""What happens within this long is one step: a power cut of all servers, an election."""


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
