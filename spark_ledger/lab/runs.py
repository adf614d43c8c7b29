"""One protocol in one scenario: builds the world, runs it, and says what came of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from spark_ledger.lab.protocols import PROTOCOLS, READ_WHAT_IS_THERE
from spark_ledger.lab.redundancy import Redundancy
from spark_ledger.lab.scenarios import Scenario
from spark_ledger.lab.world import CLIENT, FORMER_CLIENT, World

VALUE_BYTES: Final = 1_000
"""What one value counts for."""


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
    bytes_per_entry: int
    """Payload that crossed links, for each acknowledged value of ``VALUE_BYTES``."""
    client_bytes_per_entry: int
    """Of these, what clients sent."""
    server_bytes_per_entry: int
    """Of these, what that server sent which sent most."""
    short_ms: float | None
    """From the first fault until every acknowledged value was, and stayed, on as many live servers
    as the protocol keeps copies. 0: always; None: not by the end, or some are lost."""
    rebuild_ms: float | None
    """The same, from the end of the last fault."""
    copied_bytes: int
    """Payload that came to a server long after it was acknowledged: what it had missed or lost."""
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
    counts_copies: bool = True,
) -> tuple[Outcome, World]:
    """Run one protocol in one scenario; ``follow`` is called after each of its events,
    and ``watch`` at each tick. ``traced``: the world keeps all messages. Not ``counts_copies``: the
    outcome says nothing of redundancy, and the run is shorter.

    Raises AssertionError if it breaks a promise of its own."""
    world = World(seed)
    world.on_event = partial(follow, world)
    world.trace = [] if traced else None
    system = PROTOCOLS[protocol](world)
    world.servers, world.counts_copies = system.servers, counts_copies
    redundancy = Redundancy(world, system.servers, system.copies)

    def check() -> None:
        system.check()
        if counts_copies:
            redundancy.look()
        watch(world)

    world.check = check
    scenario.begin(world, system.servers)
    world.run(scenario.pace)
    log, short_s = system.final_log(), redundancy.short_s()
    outcome = judge(world, scenario, protocol, log)
    if short_s is not None:
        outcome = outcome._replace(short_ms=_ms(short_s[0]), rebuild_ms=_ms(short_s[1]))
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
    carried, count = world.carried, max(1, len(waits))
    by_clients = carried[CLIENT] + carried[FORMER_CLIENT]
    by_server = [carried[name] for name in world.servers]
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
        messages_per_entry=round(world.messages / count, 1),
        bytes_per_entry=round(VALUE_BYTES * carried.total() / count),
        client_bytes_per_entry=round(VALUE_BYTES * by_clients / count),
        server_bytes_per_entry=round(VALUE_BYTES * max(by_server) / count),
        short_ms=None,
        rebuild_ms=None,
        copied_bytes=VALUE_BYTES * world.copied,
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
