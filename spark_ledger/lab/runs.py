"""One protocol in one scenario: builds the world, runs it, and says what came of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from spark_ledger.lab.protocols import PROTOCOLS, READ_WHAT_IS_THERE
from spark_ledger.lab.scenarios import Scenario
from spark_ledger.lab.world import World


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


def run(
    scenario: Scenario,
    protocol: str,
    seed: int,
    follow: Callable[[World], None] = lambda _world: None,
    watch: Callable[[World], None] = lambda _world: None,
    *,
    traced: bool = False,
) -> tuple[Outcome, World]:
    """Run one protocol in one scenario; ``follow`` is called after each of its events,
    and ``watch`` at each tick. ``traced``: the world keeps all messages.

    Raises AssertionError if it breaks a promise of its own."""
    world = World(seed)
    world.on_event = partial(follow, world)
    world.trace = [] if traced else None
    system = PROTOCOLS[protocol](world)

    def check() -> None:
        system.check()
        watch(world)

    world.check = check
    scenario.begin(world, system.servers)
    world.run(scenario.pace)
    outcome = judge(world, scenario, protocol, system.final_log())
    if protocol in READ_WHAT_IS_THERE:
        assert not outcome.stale, "A read lacks what was acknowledged before it began."
    return outcome, world


def judge(world: World, scenario: Scenario, protocol: str, log: list[int]) -> Outcome:
    """Compare what was acknowledged with what is there."""
    places: dict[int, int] = {}
    pace = scenario.pace
    for place, value in enumerate(log):
        places.setdefault(value, place)
    kept = sorted(value for value in world.acknowledged if value in places)
    world.lost = frozenset(world.acknowledged.keys() - places.keys())
    furthest, reordered = -1, 0
    for value in kept:
        reordered += places[value] < furthest
        furthest = max(furthest, places[value])
    waits = sorted(at - world.sent[value] for value, at in world.acknowledged.items())
    times = sorted(at for at in world.acknowledged.values() if at <= pace.load_s)
    stale = _stale(world, places)
    edges = [pace.from_s, *times, pace.load_s]
    notes = dict(world.notes)
    return Outcome(
        scenario=scenario.name,
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
