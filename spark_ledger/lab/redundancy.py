"""How long a fault leaves acknowledged values on fewer servers than the protocol keeps copies."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from spark_ledger.lab.machines import NO_VALUE
from spark_ledger.lab.world import SETTLED_S, World


class Redundancy:
    """Counts the copies of every acknowledged value. ``look`` is called at each tick.

    A copy is an entry in the log of a server that lives, also in its page cache: what the server
    itself would count. Values that were acknowledged less than ``SETTLED_S`` ago are not looked at.
    """

    def __init__(self, world: World, servers: tuple[str, ...], copies: int) -> None:
        self._world, self._servers, self._copies = world, servers, copies
        self._held: dict[str, set[int]] = {name: set() for name in servers}
        self._count: Counter[int] = Counter()
        """How many servers hold each value."""
        self._known: dict[str, tuple[int, int, int]] = {}
        """Of each server: its start, how often its log was cut, and how much of it was seen."""
        self._settled = 0
        """So many acknowledged values were looked at."""
        self._short: set[int] = set()
        self._full_at = 0.0

    def look(self) -> None:
        """Count again what may have changed."""
        world, now = self._world, self._world.loop.now
        is_less = False
        for name in self._servers:
            is_less |= self._read(name)
        fresh = islice(world.acknowledged.items(), 0 if is_less else self._settled, None)
        was_short, values = bool(self._short), set() if is_less else self._short
        self._settled = 0 if is_less else self._settled
        for value, at in fresh:
            if at > now - SETTLED_S:
                break
            self._settled += 1
            values.add(value)
        count, copies = self._count, self._copies
        self._short = {each for each in values if count[each] < copies}
        if was_short and not self._short:
            self._full_at = now

    def _read(self, name: str) -> bool:
        """Take in what is new in a server's log. True: something is no longer there."""
        host = self._world.hosts[name]
        start = host.starts if host.process.alive else 0
        log, seen = host.store.log, self._known.get(name, (1, 0, 0))
        self._known[name] = (start, host.store.cuts, len(log))
        is_less = seen[:2] != (start, host.store.cuts)
        if is_less:
            self._count.subtract(self._held[name])
            self._held[name] = set()
        if start:
            entries = log if is_less else log[seen[2] :]
            new = {each.value for each in entries if each.value != NO_VALUE} - self._held[name]
            self._held[name] |= new
            self._count.update(new)
        return is_less

    def short_s(self) -> tuple[float, float] | None:
        """How long values were short of copies: since the first fault, and since the last event of
        the faults, which in the scenarios is that all is well again. None: some still are."""
        if self._short:
            return None
        faults = [each.at for each in self._world.events if each.is_fault]
        if not faults or not self._full_at:
            return 0.0, 0.0
        return max(0.0, self._full_at - faults[0]), max(0.0, self._full_at - faults[-1])
