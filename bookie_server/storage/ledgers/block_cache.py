"""Blocks that were read in part, kept for the reads that follow; least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from bookie_server.storage.ledgers.index import BlockLocation
from spark_ledger.runs import EntryRun


class BlockCache:
    """At most ``capacity_bytes`` of frames; any thread. Blocks never change, so none is stale."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._lock = Lock()
        self._runs: OrderedDict[BlockLocation, EntryRun] = OrderedDict()
        self._bytes = 0

    def get(self, location: BlockLocation) -> EntryRun | None:
        """The block's run, or None."""
        with self._lock:
            run = self._runs.get(location)
            if run is not None:
                self._runs.move_to_end(location)
            return run

    def put(self, location: BlockLocation, run: EntryRun) -> None:
        """Keep a run, if it fits at all."""
        size = len(run.frames)
        with self._lock:
            if size > self._capacity_bytes or location in self._runs:
                return
            self._runs[location] = run
            self._bytes += size
            while self._bytes > self._capacity_bytes:
                _location, old = self._runs.popitem(last=False)
                self._bytes -= len(old.frames)

    def drop(self, location: BlockLocation) -> None:
        """Forget a block that was read to its end."""
        with self._lock:
            run = self._runs.pop(location, None)
            if run is not None:
                self._bytes -= len(run.frames)
