"""What happens to the servers: the same for every protocol, at the same times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from spark_ledger.lab.world import World

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


def _nothing(world: World, servers: tuple[str, ...]) -> None:
    """All is well."""


def _slow(world: World, servers: tuple[str, ...]) -> None:
    world.loop.at(3.0, None, world.slow, servers[1], 100.0)
    world.loop.at(8.0, None, world.slow, servers[1], 1.0)


def _dies(world: World, servers: tuple[str, ...]) -> None:
    _down(world, servers[1], 3.0, 8.0, power=True)


def _leader_dies(world: World, servers: tuple[str, ...]) -> None:
    _down(world, servers[0], 3.0, 8.0, power=True)


def _power(world: World, servers: tuple[str, ...]) -> None:
    for server in servers:
        _down(world, server, 3.0, 5.0, power=True)


def _two_die(world: World, servers: tuple[str, ...]) -> None:
    for server in servers[1:3]:
        _down(world, server, 3.0, 8.0, power=True)


def _down(world: World, name: str, at_s: float, back_s: float, *, power: bool) -> None:
    def kill() -> None:
        world.kill(name, power=power)

    world.loop.at(at_s, None, kill)
    world.loop.at(back_s, None, world.restart, name)


SCENARIOS: Final = {
    each.name: each
    for each in (
        Scenario("steady", "nothing goes wrong", _nothing),
        Scenario("slow-replica", "from 3 s to 8 s the second server is 100 times as slow", _slow),
        Scenario("replica-dies", "the second server has no power from 3 s to 8 s", _dies),
        Scenario("leader-dies", "the first server has no power from 3 s to 8 s", _leader_dies),
        Scenario("two-die", "the second and third servers have no power from 3 s to 8 s", _two_die),
        Scenario("power-cut", "no server has power from 3 s to 5 s", _power),
    )
}
