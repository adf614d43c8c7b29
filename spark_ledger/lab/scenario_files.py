"""Scenarios that people write themselves: small TOML files, beside those of ``scenarios.py``."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from spark_ledger.errors import ConfigurationError
from spark_ledger.lab.scenarios import (
    DRAWN,
    FROM_S,
    LOAD_S,
    SCENARIOS,
    Scenario,
    apart,
    down,
    replace_disk,
)
from spark_ledger.lab.world import World

SERVERS_MAX: Final = 5


class Fault(NamedTuple):
    """One ``[[fault]]`` of a file. ``servers`` and ``others`` are places: 0 leads, where somebody
    does. A place that a protocol has no server for is left out."""

    kind: str
    at: float
    until: float
    servers: tuple[int, ...]
    others: tuple[int, ...] = ()
    factor: float = 100.0


def find(name: str) -> Scenario:
    """A scenario by its name, or by the path of its file. Raises ConfigurationError."""
    if name.endswith(".toml"):
        return _read(Path(name))
    known = {**SCENARIOS, DRAWN.name: DRAWN}
    if name not in known:
        raise ConfigurationError(
            f"no scenario {name!r}: choose from {', '.join(SCENARIOS)}, or name a .toml file"
        )
    return known[name]


def _read(path: Path) -> Scenario:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    faults = found.pop("fault", [])
    what = found.pop("what", "")
    if found or not isinstance(faults, list) or not isinstance(what, str):
        strange = ", ".join(found) or "fault" * (not isinstance(faults, list)) or "what"
        raise ConfigurationError(
            f'{path} has a wrong {strange}: it takes what = "..." and [[fault]] tables'
        )
    read = [_fault(f"fault {number} of {path}", each) for number, each in enumerate(faults, 1)]
    return Scenario(path.stem, what or f"the {len(read)} faults of {path}", partial(_begin, read))


def _fault(where: str, table: object) -> Fault:
    if not isinstance(table, dict) or "kind" not in table:
        raise ConfigurationError(f"{where} has no kind: choose from {', '.join(_KINDS)}")
    wrong = [name for name in table if name not in Fault._fields]
    if wrong:
        raise ConfigurationError(
            f"{where} has no setting {wrong[0]!r}: choose from {', '.join(Fault._fields)}"
        )
    if table["kind"] not in _KINDS:
        raise ConfigurationError(
            f"{where} has no kind {table['kind']!r}: choose from {', '.join(_KINDS)}"
        )
    at, until, factor = (
        _number(where, table, *each) for each in (("at", None), ("until", LOAD_S), ("factor", 100))
    )
    if not FROM_S <= at < until <= LOAD_S:
        raise ConfigurationError(
            f"{where} is from {at:g} s to {until:g} s: it has to begin and end between "
            f"{FROM_S:g} and {LOAD_S:g}, while values are added"
        )
    if factor < 1:
        raise ConfigurationError(f"{where} has factor {factor:g}: it is 1 or more")
    servers, others = (_places(where, table, name) for name in ("servers", "others"))
    if not servers:
        raise ConfigurationError(f"{where} names no servers: servers = [0] is the leader")
    return Fault(table["kind"], at, until, servers, others, factor)


def _number(where: str, table: dict[str, object], name: str, default: float | None) -> float:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{where} needs a number for {name}, such as {name} = 3.5")
    return float(value)


def _places(where: str, table: dict[str, object], name: str) -> tuple[int, ...]:
    places = table.get(name, [])
    if not isinstance(places, list) or any(each not in range(SERVERS_MAX) for each in places):
        raise ConfigurationError(
            f"{where} takes {name} by their places, 0 to {SERVERS_MAX - 1}: {name} = [0, 1]"
        )
    return tuple(map(int, places))


def _begin(faults: list[Fault], world: World, servers: tuple[str, ...]) -> None:
    for fault in faults:
        mine = [servers[place] for place in fault.servers if place < len(servers)]
        others = [servers[place] for place in fault.others if place < len(servers)]
        others = others or [name for name in servers if name not in mine]
        for server in mine:
            _KINDS[fault.kind](world, server, others, fault)


def _killed(world: World, server: str, _others: list[str], fault: Fault) -> None:
    down(world, server, fault.at, fault.until, power=False)


def _power(world: World, server: str, _others: list[str], fault: Fault) -> None:
    down(world, server, fault.at, fault.until, power=True)


def _disk(world: World, server: str, _others: list[str], fault: Fault) -> None:
    down(world, server, fault.at, fault.until, power=True)
    world.loop.at(fault.at, None, replace_disk, world, server)


def _slow(world: World, server: str, _others: list[str], fault: Fault) -> None:
    world.loop.at(fault.at, None, world.slow, server, fault.factor)
    world.loop.at(fault.until, None, world.slow, server, 1.0)


def _full(world: World, server: str, _others: list[str], fault: Fault) -> None:
    world.loop.at(fault.at, None, world.fill, server)
    world.loop.at(fault.until, None, world.clear, server)


def _apart(world: World, server: str, others: list[str], fault: Fault) -> None:
    for other in others:
        apart(world, server, other, fault.at, fault.until)


def _unheard(world: World, server: str, others: list[str], fault: Fault) -> None:
    for other in others:
        apart(world, server, other, fault.at, fault.until, one_way=True)


def _deaf(world: World, server: str, others: list[str], fault: Fault) -> None:
    for other in others:
        apart(world, other, server, fault.at, fault.until, one_way=True)


_KINDS: Final[dict[str, Callable[[World, str, list[str], Fault], None]]] = {
    "killed": _killed,
    "power": _power,
    "disk": _disk,
    "slow": _slow,
    "full": _full,
    "apart": _apart,
    "unheard": _unheard,
    "deaf": _deaf,
}
