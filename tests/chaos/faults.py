"""Faults: their kinds and mixes, and the plan that a seed gives. A plan is pure and repeatable."""

from __future__ import annotations

import random
from typing import NamedTuple

KILL_PAUSE = (
    "kill-bookie",
    "restart-bookie",
    "pause-bookie",
    "power-cut",
    "kill-client",
    "pause-client",
    "zombie-writer",
    "recover-behind",
    "pause-two-bookies",
    "clock-jump",
)
PARTITION = (
    "cut-bookie",
    "hold-bookie",
    "hold-requests",
    "hold-replies",
    "drop-bookie",
    "drop-replies",
    "split-view",
    "recover-behind",
    "swizzle",
    "delay",
    "throttle",
    "kill-zookeeper",
    "pause-zookeeper",
    "client-without-zookeeper",
    "bookies-without-zookeeper",
    "expire-session",
)
"""Both contain ``recover-behind``: a bookie misses a writer's last entries, then the writer is
paused and another client recovers its ledgers."""

DISK = (
    "full-disk",
    "disk-hangs-at-syncs",
    "disk-hangs-at-reads",
    "slow-disk",
    "older-copy",
    "kill-bookie",
    "restart-bookie",
    "power-cut",
    "kill-client",
    "zombie-writer",
    "recover-behind",
    "kill-zookeeper",
)
"""Disks, and what meets them. ``older-copy``: a bookie's directories of an earlier start come in
place of the newest, and start; they have to be refused."""

MIXES = {
    "kill": KILL_PAUSE,
    "partition": PARTITION,
    "disk": DISK,
    "all": tuple(dict.fromkeys(KILL_PAUSE + PARTITION + DISK)),
}

_SECONDS = {
    "restart-bookie": (0.1, 0.5),
    "power-cut": (0.0, 1.0),
    "expire-session": (0.0, 0.1),
    "kill-client": (0.2, 1.5),
    "delay": (2.0, 6.0),
    "throttle": (2.0, 6.0),
    "bookies-without-zookeeper": (2.0, 8.0),
}
_SECONDS_DEFAULT = (1.0, 5.0)
_REST_S = (0.2, 1.5)

_TARGET = {
    "full-disk": "disk",
    "disk-hangs-at-syncs": "disk",
    "disk-hangs-at-reads": "disk",
    "slow-disk": "disk",
    "clock-jump": "clock",
    "power-cut": "all",
    "kill-zookeeper": "zookeeper",
    "pause-zookeeper": "zookeeper",
    "client-without-zookeeper": "zookeeper",
    "bookies-without-zookeeper": "zookeeper",
    "kill-client": "client",
    "pause-client": "client",
    "zombie-writer": "client",
    "recover-behind": "client",
    "expire-session": "client",
}


class Fault(NamedTuple):
    """One fault: from ``start_s`` on for ``seconds``, then healed.

    ``bookies`` and ``clients`` are its targets, in the order in which they are hit. ``amount`` is
    for some kinds: a delay or a clock jump in seconds, or a share of the bandwidth.
    """

    kind: str
    track: int
    start_s: float
    seconds: float
    bookies: tuple[int, ...]
    clients: tuple[int, ...]
    amount: float

    @property
    def target(self) -> str:
        """What it hits: two faults at the same time never hit the same. A bookie's disk is not the
        bookie: one is killed, and starts, while its disk is full or hangs."""
        return _TARGET.get(self.kind, "bookie")


def plan(
    seed: int, seconds: float, mix: str, *, bookies: int, clients: int, tracks: int = 2
) -> list[Fault]:
    """Faults for so many seconds, one after the other in each track, with the tracks in parallel.

    Faults that overlap hit different servers in different ways: a paused bookie is not killed too.
    Kinds come in a shuffled order, each of them once before any comes again.
    """
    rng = random.Random(seed)
    made: list[Fault] = []
    deck: list[str] = []
    clocks = [0.3 * track for track in range(tracks)]
    while min(clocks) < seconds:
        track = clocks.index(min(clocks))
        if not deck:
            deck = rng.sample(MIXES[mix], len(MIXES[mix]))
        fault = _draw(rng, deck.pop(), track, clocks[track], bookies, clients)
        at_once = [f for f in made if f.start_s + f.seconds > fault.start_s and f.track != track]
        if any(_collide(fault, other) for other in at_once):
            deck.insert(0, fault.kind)
            clocks[track] += 0.25
            continue
        if fault.start_s + fault.seconds > seconds:
            break
        made.append(fault)
        clocks[track] += fault.seconds + rng.uniform(*_REST_S)
    return sorted(made, key=lambda fault: fault.start_s)


def _draw(
    rng: random.Random, kind: str, track: int, start_s: float, bookies: int, clients: int
) -> Fault:
    low, high = _SECONDS.get(kind, _SECONDS_DEFAULT)
    chosen = rng.sample(range(bookies), bookies)
    who = rng.sample(range(clients), clients)
    several = kind in ("swizzle", "split-view", "power-cut")
    count = bookies if several else 2 if kind == "pause-two-bookies" else 1
    everybody = rng.random() < 0.5
    one_client = kind in _TARGET and _TARGET[kind] == "client"
    if one_client or (kind == "client-without-zookeeper" or not everybody):
        clients_hit = tuple(who[:1])
    else:
        clients_hit = tuple(who)
    if kind == "split-view":
        clients_hit = tuple(who)
    amount = rng.uniform(0.02, 0.4) if kind == "delay" else rng.uniform(30_000, 300_000)
    if kind == "clock-jump":
        amount = rng.choice((-1, 1)) * rng.choice((2.0, 3600.0, 86_400.0))
    seconds = rng.uniform(low, high)
    return Fault(kind, track, start_s, seconds, tuple(chosen[:count]), clients_hit, amount)


def _collide(one: Fault, other: Fault) -> bool:
    if "all" in (one.target, other.target):
        return not {"client", "disk"} & {one.target, other.target}
    if one.target != other.target:
        return False
    if one.target == "client":
        return bool(set(one.clients) & set(other.clients))
    if one.target in ("bookie", "disk"):
        return bool(set(one.bookies) & set(other.bookies))
    return True
