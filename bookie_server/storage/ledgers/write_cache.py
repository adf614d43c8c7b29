"""Runs that are not in the entry log yet, by ledger, in two generations.

The active generation takes runs; ``freeze`` makes it the flushing one, which only is read until
``drop_frozen``. Lookups see both, the newer first. Runs of one generation may hold the same entry
twice (a client that sent again); its frames are the same bytes.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import NamedTuple

from bookie_server.storage.blocks import Block
from bookie_server.storage.ledgers.slicing import holds
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId


class CachedRun(NamedTuple):
    """A run with its encoded form."""

    run: EntryRun
    last_add_confirmed: EntryId
    block: Block


class LedgerRuns:
    """Runs of one ledger: ``ordered`` ascending and disjoint, ``overlapping`` the few others."""

    __slots__ = ("_firsts", "_last", "ordered", "overlapping")

    def __init__(self) -> None:
        self.ordered: list[CachedRun] = []
        self.overlapping: list[CachedRun] = []
        self._firsts: list[EntryId] = []
        self._last = -1

    def add(self, cached: CachedRun) -> None:
        """Keep a run."""
        run = cached.run
        last = run.last_entry
        if run.first_entry > self._last:
            self.ordered.append(cached)
            self._firsts.append(run.first_entry)
            self._last = last
            return
        place = bisect_right(self._firsts, run.first_entry)
        before_ends = self.ordered[place - 1].run.last_entry if place > 0 else -1
        after_begins = self._firsts[place] if place < len(self._firsts) else last + 1
        if before_ends < run.first_entry and last < after_begins:
            self.ordered.insert(place, cached)
            self._firsts.insert(place, run.first_entry)
        else:
            self.overlapping.append(cached)

    def find(self, entry_id: EntryId) -> EntryRun | None:
        """A run that holds the entry."""
        place = bisect_right(self._firsts, entry_id) - 1
        if place >= 0 and holds(self.ordered[place].run, entry_id):
            return self.ordered[place].run
        for cached in self.overlapping:
            if holds(cached.run, entry_id):
                return cached.run
        return None


class Generation:
    """Runs by ledger, and the bytes of their blocks."""

    __slots__ = ("byte_count", "ledgers", "run_count")

    def __init__(self) -> None:
        self.ledgers: dict[LedgerId, LedgerRuns] = {}
        self.byte_count = 0
        self.run_count = 0

    def add(self, cached: CachedRun) -> None:
        """Keep a run."""
        runs = self.ledgers.get(cached.run.ledger_id)
        if runs is None:
            runs = self.ledgers[cached.run.ledger_id] = LedgerRuns()
        runs.add(cached)
        self.byte_count += cached.block.length
        self.run_count += 1

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        """A run that holds the entry."""
        runs = self.ledgers.get(ledger_id)
        return None if runs is None else runs.find(entry_id)


class WriteCache:
    """One thread adds; any thread looks up; one thread freezes and drops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = Generation()
        self._frozen: Generation | None = None

    @property
    def active_bytes(self) -> int:
        """Bytes of blocks that the next freeze will take."""
        return self._active.byte_count

    @property
    def byte_count(self) -> int:
        """Bytes of all blocks held."""
        frozen = self._frozen
        return self._active.byte_count + (frozen.byte_count if frozen else 0)

    @property
    def is_frozen(self) -> bool:
        """Whether a generation waits to be dropped."""
        return self._frozen is not None

    def add(self, cached: CachedRun) -> None:
        """Keep a run in the active generation."""
        with self._lock:
            self._active.add(cached)

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        """A run that holds the entry, or None."""
        with self._lock:
            found = self._active.find(ledger_id, entry_id)
            if found is None and self._frozen is not None:
                found = self._frozen.find(ledger_id, entry_id)
            return found

    def runs_of(self, ledger_id: LedgerId) -> list[EntryRun]:
        """All runs of a ledger, in no order, duplicates included."""
        with self._lock:
            found: list[EntryRun] = []
            for generation in (self._active, self._frozen):
                runs = generation.ledgers.get(ledger_id) if generation else None
                if runs is not None:
                    found.extend(cached.run for cached in runs.ordered)
                    found.extend(cached.run for cached in runs.overlapping)
            return found

    def freeze(self) -> Generation:
        """Make the active generation the frozen one; nothing else may be frozen."""
        with self._lock:
            assert self._frozen is None, "the frozen generation is dropped first"
            self._frozen, self._active = self._active, Generation()
            return self._frozen

    @property
    def frozen(self) -> Generation | None:
        """The generation that is being flushed, or whose flush failed."""
        return self._frozen

    def drop_frozen(self) -> None:
        """Forget the frozen generation: the index serves its entries now."""
        with self._lock:
            self._frozen = None
