"""When a bookie looks for cyclic garbage: rarely, and when there is little to look through.

Python finds cycles by a walk over all objects that could be part of one, with its lock held. The
write cache of a busy bookie is millions of them, so a full walk stops everything for a second and
more, again and again as the cache fills. None of them is garbage: what the storage lets go is freed
at once, by its count of references. Cycles come from connections and calls that end in errors, and
nearly all of those are young. So young objects are walked as usual, and old ones only while the
cache is nearly empty, or when it has not been for long.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from spark_ledger.limits.bookie import (
    BOOKIE_COLLECT_INTERVAL_S,
    BOOKIE_COLLECT_OBJECTS_MAX,
    BOOKIE_COLLECT_OVERDUE_S,
)

_NEVER: Final = 1 << 30
"""As many walks over the middle generation would start one over the oldest."""


class Collector:
    """Python's collector of cycles while a bookie runs. Made and used on the service thread."""

    def __init__(
        self, objects_held: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``objects_held``: about how many objects the storage holds, that a walk would visit."""
        self._objects_held = objects_held
        self._clock = clock
        self._before = gc.get_threshold()
        self._last = clock()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Walk over old objects only in ``tick`` from now on; what is there now is never walked.

        Modules and what was loaded stay for as long as the process.
        """
        gc.collect()
        gc.freeze()
        gc.set_threshold(*self._before[:2], _NEVER)
        self._last = self._clock()

    @contextmanager
    def running(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Start, tick at intervals, and stop."""
        self.start()
        self._run(loop)
        try:
            yield
        finally:
            self.stop()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self.tick()
        self._timer = loop.call_later(BOOKIE_COLLECT_INTERVAL_S, self._run, loop)

    def tick(self) -> None:
        """Look for old garbage, if that is quick by now, or was put off for long."""
        waited_s = self._clock() - self._last
        if waited_s < BOOKIE_COLLECT_INTERVAL_S:
            return
        is_quick = self._objects_held() <= BOOKIE_COLLECT_OBJECTS_MAX
        if is_quick or waited_s >= BOOKIE_COLLECT_OVERDUE_S:
            gc.collect()
            self._last = self._clock()

    def stop(self) -> None:
        """Everything as it was."""
        if self._timer is not None:
            self._timer.cancel()
        gc.set_threshold(*self._before)
        gc.unfreeze()
