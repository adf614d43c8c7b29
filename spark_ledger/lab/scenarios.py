"""What happens to the servers: the same for every protocol, at the same times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from spark_ledger.lab.world import CLIENT, READER, Pace, World

FROM_S: Final = 2.0
"""By then somebody leads."""
LOAD_S: Final = 12.0
EVERY_S: Final = 0.01
"""A hundred values a second."""
UNTIL_S: Final = 20.0
"""Time to end what is in flight, and for servers that came back to catch up."""


class Scenario(NamedTuple):
    """``begin`` sets faults for later. ``servers``: the first one leads, where somebody does."""

    name: str
    what: str
    begin: Callable[[World, tuple[str, ...]], None]
    pace: Pace = Pace(FROM_S, LOAD_S, EVERY_S, UNTIL_S)


def _nothing(world: World, servers: tuple[str, ...]) -> None:
    """All is well."""


def _slow(place: int, factor: float, world: World, servers: tuple[str, ...]) -> None:
    world.loop.at(3.0, None, world.slow, servers[place], factor)
    world.loop.at(8.0, None, world.slow, servers[place], 1.0)


def _full(place: int, world: World, servers: tuple[str, ...]) -> None:
    world.loop.at(3.0, None, world.fill, servers[place])
    world.loop.at(8.0, None, world.clear, servers[place])


def _leader_apart(world: World, servers: tuple[str, ...]) -> None:
    for other in world.hosts:
        if other not in (servers[0], CLIENT, READER):
            apart(world, servers[0], other, 3.0, 8.0)


def _deaf_leader(world: World, servers: tuple[str, ...]) -> None:
    for other in servers[1:]:
        apart(world, other, servers[0], 3.0, 8.0, one_way=True)


def _last_loses_power(world: World, servers: tuple[str, ...]) -> None:
    # the kernel writes every five seconds: what is acknowledged from 5 s on is in page caches
    for server, at in zip(servers[2:0:-1], (5.5, 6.5), strict=False):
        world.loop.at(at, None, world.stop, server)
        world.loop.at(10.0, None, world.restart, server)
    down(world, servers[0], 8.5, 9.0, power=True)


def _one_has_it(world: World, servers: tuple[str, ...]) -> None:
    for server in servers:
        if server != servers[1]:
            apart(world, CLIENT, server, 3.0, 4.0, one_way=True)
    down(world, servers[1], 3.5, 8.0, power=True)
    world.loop.at(3.5, None, replace_disk, world, servers[1])
    down(world, CLIENT, 3.5, 4.0, power=False)


def _writer_dies(world: World, servers: tuple[str, ...]) -> None:
    # 3.001: what was added at 3.0 s is on its way
    down(world, CLIENT, 3.001, 3.5, power=False)


def _both_die(world: World, servers: tuple[str, ...]) -> None:
    _dies(world, servers)
    _writer_dies(world, servers)


def _writer_freezes(world: World, servers: tuple[str, ...]) -> None:
    world.loop.at(3.001, None, world.freeze_client)
    world.loop.at(3.5, None, world.replace_client)
    world.loop.at(6.0, None, world.thaw_client)


def _dies(world: World, servers: tuple[str, ...]) -> None:
    down(world, servers[1], 3.0, 8.0, power=True)


def _leader_dies(world: World, servers: tuple[str, ...]) -> None:
    down(world, servers[0], 3.0, 8.0, power=True)


def _power(world: World, servers: tuple[str, ...]) -> None:
    for server in servers:
        down(world, server, 3.0, 5.0, power=True)


def _two_die(world: World, servers: tuple[str, ...]) -> None:
    for server in servers[1:3]:
        down(world, server, 3.0, 8.0, power=True)


def _partition(world: World, servers: tuple[str, ...]) -> None:
    for other in servers[1:]:
        apart(world, servers[0], other, 3.0, 8.0)


def _follower_apart(world: World, servers: tuple[str, ...]) -> None:
    for other in servers:
        if other != servers[1]:
            apart(world, servers[1], other, 3.0, 8.0)


def _one_way(world: World, servers: tuple[str, ...]) -> None:
    apart(world, servers[0], servers[1], 3.0, 8.0, one_way=True)


def _rolling(world: World, servers: tuple[str, ...]) -> None:
    for place, server in enumerate(servers):
        down(world, server, 3.0 + place * 1.5, 3.5 + place * 1.5, power=False)


def _last_dies(world: World, servers: tuple[str, ...]) -> None:
    for server in servers[1:3]:
        down(world, server, 3.0, 7.0, power=True)
    down(world, servers[0], 6.0, 10.0, power=False)


def _in_turn(world: World, servers: tuple[str, ...]) -> None:
    # 3.005: what was added at 3.0 s is acknowledged, and followers have not heard of that
    down(world, servers[0], 3.005, 8.0, power=False)
    down(world, servers[1], 4.5, 8.0, power=False)
    for other in servers[2:3]:
        apart(world, servers[1], other, 3.005, 8.0)


def _figure_8(world: World, servers: tuple[str, ...]) -> None:
    """Figure 8 of the Raft paper, with three servers instead of five."""
    first = servers[0]
    for other in servers[1:]:  # what it adds last is in its own log only
        apart(world, first, other, 3.0, 3.06)
    down(world, first, 3.05, 5.0, power=False)
    second: list[str] = []

    def stands(who: str) -> None:
        """It is elected, and nobody hears what it says then."""
        second.append(who)
        for other in servers:
            if other != who:
                world.network.cut(who, other, holds=False)
        world.fault("unheard", who)

    def leads_again(who: str) -> None:
        """A part of what it added last is on another server; then it is cut off, and at last the
        second leader is back instead of it."""
        now = world.loop.now
        for other in servers:
            if other != who:
                apart(world, who, other, now, 11.0)
        down(world, who, now + 2.0, 11.0, power=False)
        world.loop.at(now + 2.0, None, returns)

    def returns() -> None:
        for other in servers:
            if second and other != second[0]:
                world.network.mend(second[0], other)
        for each in second:
            world.restart(each)

    _at_next(world, "election", servers[1:], 3.06, 0.0001, stands)
    _at_next(world, "leader", servers[1:], 3.06, 0.005, lambda who: world.kill(who, power=False))
    _at_next(world, "leader", servers[:1], 5.0, 0.014, leads_again)


def _at_next(
    world: World,
    what: str,
    servers: tuple[str, ...],
    from_s: float,
    after_s: float,
    do: Callable[[str], None],
) -> None:
    """So long after the first decision of this kind that one of these servers takes."""
    before, found = world.on_event, list[str]()

    def on_event() -> None:
        before()
        event = world.events[-1]
        if event.at >= from_s and event.what == what and event.who in servers and not found:
            found.append(event.who)
            world.loop.later(after_s, None, do, event.who)

    world.on_event = on_event


def _one_forgets(world: World, servers: tuple[str, ...]) -> None:
    for other in servers[:2]:
        for third in servers[2:3]:
            apart(world, other, third, 3.0, 5.1)
    down(world, servers[1], 5.0, 5.1, power=True)
    down(world, servers[0], 5.05, 9.0, power=False)


def _disk_lost(world: World, servers: tuple[str, ...]) -> None:
    _dies(world, servers)
    world.loop.at(7.0, None, replace_disk, world, servers[1])


def replace_disk(world: World, server: str) -> None:
    """What a dead server had is gone."""
    store = world.hosts[server].store
    store.truncate(0)
    store.meta.clear()
    world.fault("has a new disk", server)


def _drawn(world: World, servers: tuple[str, ...]) -> None:
    """One server at a time dies, is slow, full or cut off, or all lose power, for a while that is
    drawn. All faults are over when no more values come."""
    draw, at = world.random_for("faults"), _DRAWN.from_s
    while (at := at + draw.uniform(0.1, 1.5)) < _DRAWN.load_s:
        server, until = draw.choice(servers), at + draw.choice((0.2, 1.0, 4.0)) * draw.random()
        until = min(until, _DRAWN.load_s)
        match draw.choice(("killed", "power", "power of all", "slow", "full", "apart", "one way")):
            case "killed":
                down(world, server, at, until, power=False)
            case "power":
                down(world, server, at, until, power=True)
            case "power of all":
                for each in servers:
                    down(world, each, at, until, power=True)
            case "slow":
                world.loop.at(at, None, world.slow, server, draw.choice((10.0, 100.0)))
                world.loop.at(until, None, world.slow, server, 1.0)
            case "full":
                world.loop.at(at, None, world.fill, server)
                world.loop.at(until, None, world.clear, server)
            case kind:
                for other in servers:
                    if other != server:
                        apart(world, server, other, at, until, one_way=kind == "one way")
        at = until + 0.5  # by then it has everything again, or another one would be a second


def apart(
    world: World, one: str, other: str, from_s: float, to_s: float, *, one_way: bool = False
) -> None:
    """Two servers do not hear each other, or only the second not the first; everybody else hears
    both."""
    directions = ((one, other),) if one_way else ((one, other), (other, one))

    def cut() -> None:
        for source, target in directions:
            world.network.cut(source, target, holds=False)
        world.fault("unheard" if one_way else "apart", f"{one} {other}")

    def mend() -> None:
        for source, target in directions:
            world.network.mend(source, target)
        world.fault("connected again", f"{one} {other}")

    world.loop.at(from_s, None, cut)
    world.loop.at(to_s, None, mend)


def down(world: World, name: str, at_s: float, back_s: float, *, power: bool) -> None:
    """A server or client is dead for a while; with ``power`` it loses what was not synced."""

    def kill() -> None:
        world.kill(name, power=power)

    world.loop.at(at_s, None, kill)
    world.loop.at(back_s, None, world.restart, name)


_DRAWN: Final = Pace(1.0, 11.0, 0.02, 20.0, tick_s=0.02, quiet_s=12.5)
"""Fewer values and ticks than in ``SCENARIOS``, and no more than it takes to settle: a seed that
costs half as much leaves time for twice as many."""

SCENARIOS: Final = {
    each.name: each
    for each in (
        Scenario("steady", "nothing goes wrong", _nothing),
        Scenario(
            "slow-replica-10",
            "from 3 s to 8 s the second server is 10 times as slow",
            partial(_slow, 1, 10.0),
        ),
        Scenario(
            "slow-replica",
            "from 3 s to 8 s the second server is 100 times as slow",
            partial(_slow, 1, 100.0),
        ),
        Scenario(
            "slow-leader",
            "from 3 s to 8 s the first server is 100 times as slow",
            partial(_slow, 0, 100.0),
        ),
        Scenario("replica-dies", "the second server has no power from 3 s to 8 s", _dies),
        Scenario("leader-dies", "the first server has no power from 3 s to 8 s", _leader_dies),
        Scenario(
            "writer-dies",
            "the client dies at 3.001 s with a value on its way; another one begins at 3.5 s",
            _writer_dies,
        ),
        Scenario(
            "writer-and-bookie-die",
            "the same, and the second server has no power from 3 s to 8 s",
            _both_die,
        ),
        Scenario(
            "writer-freezes",
            "the client stands still from 3.001 s to 6 s; at 3.5 s another one takes its place",
            _writer_freezes,
        ),
        Scenario("two-die", "the second and third servers have no power from 3 s to 8 s", _two_die),
        Scenario("power-cut", "no server has power from 3 s to 5 s", _power),
        Scenario(
            "partition",
            "from 3 s to 8 s the first server and the other servers do not hear each other; "
            "clients, controller and operator hear all",
            _partition,
        ),
        Scenario(
            "leader-apart",
            "from 3 s to 8 s nobody but clients hears the first server, and it hears nobody else",
            _leader_apart,
        ),
        Scenario(
            "deaf-leader",
            "from 3 s to 8 s the first server does not hear the other servers, which hear it",
            _deaf_leader,
        ),
        Scenario(
            "follower-apart",
            "from 3 s to 8 s the second server and the other servers do not hear each other; "
            "clients, controller and operator hear all",
            _follower_apart,
        ),
        Scenario(
            "one-way",
            "from 3 s to 8 s the second server does not hear the first one, which hears it",
            _one_way,
        ),
        Scenario("rolling-restart", "one server after the other is away for 0.5 s", _rolling),
        Scenario(
            "disk-lost",
            "the second server dies at 3 s, and comes back at 8 s with an empty disk",
            _disk_lost,
        ),
        Scenario(
            "disk-full",
            "from 3 s to 8 s the second server's disk is full; if it ends, it is back at 8 s",
            partial(_full, 1),
        ),
        Scenario(
            "leader-disk-full",
            "from 3 s to 8 s the first server's disk is full; if it ends, it is back at 8 s",
            partial(_full, 0),
        ),
        Scenario(
            "one-has-it",
            "from 3 s to 4 s the second server alone hears the client; at 3.5 s both die, it with "
            "its disk; another client begins at 4 s, and the server is back at 8 s",
            _one_has_it,
        ),
        Scenario(
            "last-loses-power",
            "the third server is stopped in order at 5.5 s and the second at 6.5 s, both are back "
            "at 10 s; the first has no power from 8.5 s to 9 s",
            _last_loses_power,
        ),
        Scenario(
            "last-dies",
            "the second and third servers have no power from 3 s to 7 s, the first one is killed "
            "at 6 s and back at 10 s",
            _last_dies,
        ),
        Scenario(
            "die-in-turn",
            "the first server is killed at 3.005 s, the second at 4.5 s, and the second and third "
            "do not hear each other meanwhile; all are back at 8 s",
            _in_turn,
        ),
        Scenario(
            "figure-8",
            "the first server is cut off at 3 s and killed at 3.05 s, back at 5 s; who is elected "
            "meanwhile is cut off and dies at once; when the first leads again, it is cut off "
            "14 ms later and killed after 2 s, and the second leader is back; the first returns at "
            "11 s",
            _figure_8,
        ),
        Scenario(
            "one-forgets",
            "the third server does not hear the first and second from 3 s to 5.1 s; the second has "
            "no power from 5 s to 5.1 s, and the first is killed at 5.05 s and back at 9 s",
            _one_forgets,
        ),
    )
}

DRAWN: Final = Scenario(
    "drawn",
    "one server at a time dies, is slow, full or cut off, or all lose power, as the seed draws it",
    _drawn,
    _DRAWN,
)
"""Not one of ``SCENARIOS``: each seed is another one."""
