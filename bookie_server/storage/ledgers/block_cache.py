"""Blocks that were read in part, kept for the reads that follow; least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from bookie_server.storage.index.base import BlockLocation
from spark_ledger.runs import EntryRun


class BlockCache:
    """At most ``capacity_bytes`` of frames; *any thread*.

    A location is used for one block only (rule S4), and blocks never change (rule S8), so nothing
    here is ever stale and nothing is invalidated.
    """

    def __init__(self, capacity_bytes: int) -> None:
        assert capacity_bytes >= 0, f"a cache of {capacity_bytes} bytes"
        # Any thread: never changed.
        self._capacity_bytes = capacity_bytes
        # Protected by _lock.
        self._lock = Lock()
        self._runs: OrderedDict[BlockLocation, EntryRun] = OrderedDict()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """The frames that are kept."""
        return self._bytes

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
            assert 0 <= self._bytes <= self._capacity_bytes, f"{self._bytes} bytes are counted"

    def drop(self, location: BlockLocation) -> None:
        """Forget a block that was read to its end."""
        with self._lock:
            run = self._runs.pop(location, None)
            if run is not None:
                self._bytes -= len(run.frames)
            assert (self._bytes == 0) == (not self._runs), "the bytes are those of the blocks"
