"""Runs that are not in the entry log yet, by ledger, in two generations.

The active generation takes runs. ``freeze`` makes it the frozen one, which a flush stores, and
which is only read until ``drop_frozen``. Lookups see both (rule S7). Two runs may hold the same
entry, when a client sent it again; an entry never changes, so any of them will do (rule S8).
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Final, NamedTuple

from bookie_server.storage.blocks import Block
from bookie_server.storage.journal.waiting import RunPlace
from bookie_server.storage.ledgers.slicing import holds
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId

_RUN_BYTES: Final = 640
"""What a run of one small entry takes in memory beside its block (tracemalloc: 490 to 640)."""

_ENTRY_BYTES: Final = 36
"""What each entry of a run adds to that: its size, as an item of a list and an object."""

_LEDGER_BYTES: Final = 600
"""What a ledger with runs takes: its lists, and its record, which has changed (270 and 310)."""


class CachedRun(NamedTuple):
    """A run with its encoded form."""

    run: EntryRun
    last_add_confirmed: EntryId
    block: Block
    place: RunPlace | None = None
    """Of a run that is written once."""


class LedgerRuns:
    """Runs of one ledger: ``ordered`` ascending and disjoint, ``overlapping`` the few others, by
    their first entries."""

    __slots__ = (
        "_firsts",
        "_last",
        "_overlapping_firsts",
        "_overlapping_span",
        "ordered",
        "overlapping",
    )

    def __init__(self) -> None:
        self.ordered: list[CachedRun] = []
        self.overlapping: list[CachedRun] = []
        self._firsts: list[EntryId] = []
        self._last = -1
        self._overlapping_firsts: list[EntryId] = []
        self._overlapping_span = 0
        """From the first to the last entry of the longest of them."""

    def add(self, cached: CachedRun) -> None:
        """Keep a run: among the ordered ones if it shares no entry and no gap with another."""
        run = cached.run
        last = run.last_entry
        assert len(self._firsts) == len(self.ordered), "the ordered runs are found by their firsts"
        if run.first_entry > self._last:
            self.ordered.append(cached)
            self._firsts.append(run.first_entry)
            self._last = last
            return
        number = bisect_right(self._firsts, run.first_entry)
        before_ends = self.ordered[number - 1].run.last_entry if number > 0 else -1
        after_begins = self._firsts[number] if number < len(self._firsts) else last + 1
        if before_ends < run.first_entry and last < after_begins:
            self.ordered.insert(number, cached)
            self._firsts.insert(number, run.first_entry)
        else:
            number = bisect_right(self._overlapping_firsts, run.first_entry)
            self.overlapping.insert(number, cached)
            self._overlapping_firsts.insert(number, run.first_entry)
            self._overlapping_span = max(self._overlapping_span, last - run.first_entry)

    def all(self) -> Iterator[CachedRun]:
        """All runs, in no order."""
        return chain(self.ordered, self.overlapping)

    def find(self, entry_id: EntryId) -> EntryRun | None:
        """A run that holds the entry."""
        number = bisect_right(self._firsts, entry_id) - 1
        if number >= 0 and holds(self.ordered[number].run, entry_id):
            return self.ordered[number].run
        # A client that sends all entries again has as many of these: no look at each of them.
        firsts = self._overlapping_firsts
        begin = bisect_left(firsts, entry_id - self._overlapping_span)
        for cached in self.overlapping[begin : bisect_right(firsts, entry_id)]:
            if holds(cached.run, entry_id):
                return cached.run
        return None

    def may_hold(self, first: EntryId, last: EntryId) -> bool:
        """False only if no run holds any of these entries."""
        number = bisect_right(self._firsts, last) - 1
        if number >= 0 and self.ordered[number].run.last_entry >= first:
            return True
        firsts = self._overlapping_firsts
        begin, end = bisect_left(firsts, first - self._overlapping_span), bisect_right(firsts, last)
        return any(each.run.last_entry >= first for each in self.overlapping[begin:end])


class Generation:
    """Runs by ledger, the bytes of their blocks, and about what they take in memory."""

    __slots__ = ("byte_count", "ledgers", "memory_bytes", "run_count")

    def __init__(self) -> None:
        self.ledgers: dict[LedgerId, LedgerRuns] = {}
        self.byte_count = 0
        self.memory_bytes = 0
        self.run_count = 0

    def add(self, cached: CachedRun) -> None:
        """Keep a run."""
        runs = self.ledgers.get(cached.run.ledger_id)
        if runs is None:
            runs = self.ledgers[cached.run.ledger_id] = LedgerRuns()
            self.memory_bytes += _LEDGER_BYTES
        runs.add(cached)
        self.byte_count += cached.block.length
        self.memory_bytes += _memory_bytes(cached)
        self.run_count += 1

    def remove(self, ledger_id: LedgerId) -> None:
        """Forget a ledger's runs."""
        runs = self.ledgers.pop(ledger_id, None)
        if runs is None:
            return
        self.memory_bytes -= _LEDGER_BYTES
        for cached in runs.all():
            self.byte_count -= cached.block.length
            self.memory_bytes -= _memory_bytes(cached)
            self.run_count -= 1

    def check(self) -> None:
        """The counts are those of the runs. Once per flush, as it looks at every run."""
        held = [cached.block.length for runs in self.ledgers.values() for cached in runs.all()]
        assert len(held) == self.run_count, f"{len(held)} runs are held, {self.run_count} counted"
        assert sum(held) == self.byte_count, f"{sum(held)} bytes, {self.byte_count} counted"
        for runs in self.ledgers.values():
            ordered = [cached.run for cached in runs.ordered]
            assert all(a.last_entry < b.first_entry for a, b in pairwise(ordered)), (
                "ordered runs share no entry: they are stored without a look at one another"
            )

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        """A run that holds the entry."""
        runs = self.ledgers.get(ledger_id)
        return None if runs is None else runs.find(entry_id)


def _memory_bytes(cached: CachedRun) -> int:
    """About what a run takes in memory."""
    run = cached.run
    numbers = len(run.sizes) if run.entry_ids is None else 2 * len(run.sizes)
    return cached.block.length + _RUN_BYTES + _ENTRY_BYTES * numbers


class WriteCache:
    """The runs of one directory. The *service thread* adds, the *flush thread* freezes and drops,
    *any thread* looks up.

    Runs with a place are apart: a freeze takes only those that are durable somewhere, as the others
    have nowhere to point to yet. No mark that was read before covers those (rule S16).
    """

    def __init__(self) -> None:
        # Protected by _lock. A frozen generation never changes, so the flush thread reads it
        # without. The counts may be read without, too: then they are of some moment just past.
        self._lock = threading.Lock()
        self._active = Generation()
        self._placed = Generation()
        self._frozen: Generation | None = None
        self._left_bytes = 0  # of _placed: what the last freeze left, and the next may leave, too
        self._leaving: frozenset[LedgerId] = frozenset()

    @property
    def active_bytes(self) -> int:
        """Memory that the next freeze will take. Asked for each add, so without lock.

        With small entries the objects around a block take several times as much as its bytes.
        """
        return self._active.memory_bytes + self._placed.memory_bytes

    @property
    def byte_count(self) -> int:
        """Memory of all runs held."""
        with self._lock:  # or a freeze between the two would be counted twice, or not at all
            frozen_bytes = self._frozen.memory_bytes if self._frozen is not None else 0
            return self.active_bytes + frozen_bytes

    @property
    def run_count(self) -> int:
        """Runs that are held; any thread, of some moment just past."""
        frozen = self._frozen
        active = self._active.run_count + self._placed.run_count
        return active + (frozen.run_count if frozen is not None else 0)

    @property
    def is_frozen(self) -> bool:
        """Whether a generation waits to be dropped."""
        return self._frozen is not None

    @property
    def fresh_bytes(self) -> int:
        """What came since the last freeze. What that one left is apart: no flush makes room of it,
        and it is bounded, as it is not acknowledged."""
        with self._lock:
            return self._fresh_bytes()

    def _fresh_bytes(self) -> int:
        return self.active_bytes - self._left_bytes

    def is_full(self, generation_bytes: int) -> bool:
        """Whether no run is taken before a flush has ended: a generation waits to be dropped, and
        the next one has so much; or both together have that twice, also where there is one only,
        as its flush waits for its turn (rule S15)."""
        with self._lock:  # or a freeze between the two would be counted twice, or not at all
            frozen, fresh_bytes = self._frozen, self._fresh_bytes()
            if frozen is not None and fresh_bytes >= generation_bytes:
                return True
            frozen_bytes = frozen.memory_bytes if frozen is not None else 0
            return frozen_bytes + fresh_bytes >= 2 * generation_bytes

    def add(self, cached: CachedRun, room_bytes: int | None = None) -> int:
        """Keep a run in the active generation, unless its ledger is on its way out; what
        ``fresh_bytes`` is then. It was less than ``room_bytes`` before; a replay has no bound."""
        with self._lock:
            has_room = room_bytes is None or self._fresh_bytes() < room_bytes
            assert has_room, "an add waits until there is room"
            if cached.run.ledger_id not in self._leaving:
                (self._active if cached.place is None else self._placed).add(cached)
            return self._fresh_bytes()

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        """A run that holds the entry, or None."""
        with self._lock:
            found = self._active.find(ledger_id, entry_id)
            if found is None:
                found = self._placed.find(ledger_id, entry_id)
            if found is None and self._frozen is not None:
                found = self._frozen.find(ledger_id, entry_id)
            return found

    def may_hold(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> bool:
        """False only if no run holds any of these entries."""
        with self._lock:
            generations = [each for each in (self._active, self._placed, self._frozen) if each]
            found = [each.ledgers.get(ledger_id) for each in generations]
            return any(runs.may_hold(first, last) for runs in found if runs is not None)

    def runs_of(self, ledger_id: LedgerId) -> list[EntryRun]:
        """All runs of a ledger, in no order, duplicates included."""
        with self._lock:
            found: list[EntryRun] = []
            for generation in (self._active, self._placed, self._frozen):
                runs = generation.ledgers.get(ledger_id) if generation else None
                if runs is not None:
                    found.extend(cached.run for cached in runs.all())
            return found

    def unsettled_ledgers(self) -> set[LedgerId]:
        """Ledgers of runs that the last freeze has left, because they have no place yet, and of
        those that came with a place since."""
        with self._lock:
            return set(self._placed.ledgers)

    def freeze(self) -> Generation:
        """Make the active generation the frozen one; nothing else may be frozen.

        Runs whose place is not settled stay in the active one.
        """
        with self._lock:
            assert self._frozen is None, "the frozen generation is dropped first"
            frozen, self._active = self._active, Generation()
            placed, self._placed = self._placed, Generation()
            for runs in placed.ledgers.values():
                for cached in runs.all():
                    assert cached.place is not None, "a run without a place is not set apart"
                    (frozen if cached.place.is_settled else self._placed).add(cached)
            self._left_bytes = self._placed.memory_bytes
            self._frozen = frozen
        return frozen

    @property
    def frozen(self) -> Generation | None:
        """The generation that is being flushed, or whose flush failed."""
        return self._frozen

    def forget(self, ledger_ids: frozenset[LedgerId]) -> None:
        """Drop the runs of ledgers, and those that come, until ``remember``.

        Also frozen ones, of a flush that failed: whoever holds the flush lock.
        """
        with self._lock:
            self._leaving = ledger_ids
            for generation in (self._active, self._placed, self._frozen):
                for ledger_id in ledger_ids if generation is not None else ():
                    assert generation is not None, "only those that are there are walked"
                    generation.remove(ledger_id)
            self._left_bytes = min(self._left_bytes, self._placed.memory_bytes)

    def remember(self) -> None:
        """Keep runs of all ledgers again."""
        with self._lock:
            self._leaving = frozenset()

    def drop_frozen(self) -> None:
        """Forget the frozen generation: the index serves its entries now."""
        with self._lock:
            assert self._frozen is not None, "a generation is dropped once, after its commit"
            self._frozen = None
