"""Scrubber: reads and verifies all that a bookie stores, again and again, at a bounded rate.

Latent errors of a disk are found by those who read; what nobody reads is read here, while other
copies are good (rule S21). ``directory_scrub`` does it for one directory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bookie_server.storage.ledgers.directory_scrub import DirectoryScrub, ScrubCounts
from bookie_server.storage.ledgers.pacing import Pacer, Stopped
from spark_ledger.errors import CorruptionError
from spark_ledger.limits.storage import SCRUB_AGAIN_S, SCRUB_FIRST_S

logger = logging.getLogger(__name__)


class ScrubStats(NamedTuple):
    """Of each directory, and why the last pass broke off; empty if it did not."""

    directories: tuple[ScrubCounts, ...]
    last_failure: str = ""

    @property
    def ended_at(self) -> float:
        """When all that was stored had been verified last; 0: never."""
        return min(each.ended_at for each in self.directories)

    @property
    def bad(self) -> int:
        """Blocks, and rows of ledgers, that were found damaged."""
        return sum(each.bad_blocks + each.bad_ledgers for each in self.directories)

    @property
    def lacking(self) -> int:
        """Stretches of entries that await copies."""
        return sum(each.lacking for each in self.directories)

    @property
    def refetched(self) -> int:
        """Stretches that came back."""
        return sum(each.refetched for each in self.directories)


class Scrubber:
    """Scrubs on a thread of its own once it is started, and on any thread that calls
    ``run_once``: a lock lets one through at a time."""

    def __init__(
        self,
        scrubs: Sequence[DirectoryScrub],
        flush_lock: threading.Lock,
        *,
        bytes_per_s: int,
        interval_s: float,
        on_fatal: Callable[[str], None],
    ) -> None:
        """``bytes_per_s``: 0 reads nothing."""
        # Any thread: never changed.
        self._scrubs = tuple(scrubs)
        self._flush_lock = flush_lock
        self._bytes_per_s = bytes_per_s
        self._interval_s = interval_s
        self._on_fatal = on_fatal
        self._pass_lock = threading.Lock()
        self._stop = threading.Event()
        # Whoever scrubs; any thread reads it.
        self._last_failure = ""
        # Whoever scrubs.
        self._pacer = Pacer(self._stop)
        # Whoever starts and stops: one thread, before and after all others.
        self._thread: threading.Thread | None = None

    @property
    def stats(self) -> ScrubStats:
        """Any thread."""
        return ScrubStats(tuple(each.counts for each in self._scrubs), self._last_failure)

    def start(self) -> None:
        """Scrub on a thread of its own from now on."""
        assert self._thread is None, "started twice"
        if self._bytes_per_s:
            self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, in the middle of a pass as well: the next start goes on there."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def run_once(self) -> None:
        """One pass over all directories as quick as it can be; any thread.

        Raises OSError or CorruptionError of the first directory that fails; the others are passed
        over all the same.
        """
        self._pass(lambda _scrub: True, lambda _byte_count: None)

    def _pass(
        self, is_wanted: Callable[[DirectoryScrub], bool], pace: Callable[[int], None]
    ) -> None:
        errors: list[OSError | CorruptionError] = []
        with self._pass_lock:
            self._pacer.begin()
            for scrub in self._scrubs:
                if not is_wanted(scrub):
                    continue
                try:
                    scrub.run(self._flush_lock, pace)
                except (OSError, CorruptionError) as error:
                    errors.append(error)
            self._last_failure = str(errors[0]) if errors else ""
        if errors:
            raise errors[0]

    def _pace(self, byte_count: int) -> None:
        self._pacer.wait(byte_count, self._bytes_per_s)

    def _run(self) -> None:
        pause_s = SCRUB_FIRST_S
        try:
            while not self._stop.wait(pause_s):
                pause_s = SCRUB_AGAIN_S
                try:
                    self._pass(lambda scrub: scrub.is_due(self._interval_s), self._pace)
                except Stopped:
                    break
                except (OSError, CorruptionError) as error:
                    logger.warning("scrub broke off, it goes on later: %s", error)
        finally:
            if not self._stop.is_set():  # the traceback follows; damage would be found by nobody
                self._on_fatal("the scrub thread ended unexpectedly")
