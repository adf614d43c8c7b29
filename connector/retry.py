"""Repeats calls that failed for a passing reason.

Spark ends a streaming query at the first exception on the driver and allows a task few attempts in
quick succession. An outage of the metadata store or of some bookies is shorter than a restart of
the query, so it is sat out here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from spark_ledger.errors import LedgerError, OutcomeUnknownError, RetryableError

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)

PATIENCE_S: Final = 120.0
"""As long as Spark's own default for a lost network peer (spark.network.timeout)."""

START_PATIENCE_S: Final = 30.0
"""At the start of a query a store that does not answer is rather a wrong URI: say so soon."""

TASK_PATIENCE_S: Final = 20.0
"""In a task, which Spark repeats as well: long enough for bookies that start again."""

_PAUSE_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)


class Patience:
    """How long something may keep failing for a passing reason, counted from the first failure."""

    def __init__(self, what: str, patience_s: float) -> None:
        self._what = what
        self._patience_s = patience_s
        self._deadline = 0.0
        self._failures = 0

    def succeeded(self) -> None:
        """There was progress: the next failure is a first one."""
        self._failures = 0

    def pause_or_raise(self, error: LedgerError) -> None:
        """Sleep a while before the next attempt; raise the error when it lasts too long."""
        if self._failures == 0:
            self._deadline = time.monotonic() + self._patience_s
        pause_s = _PAUSE_S[min(self._failures, len(_PAUSE_S) - 1)]
        self._failures += 1
        if time.monotonic() + pause_s > self._deadline:
            raise error
        _LOG.warning("%s failed, trying again in %.1f s: %s", self._what, pause_s, error)
        time.sleep(pause_s)


def patiently(
    call: Callable[[], T], what: str, *, idempotent: bool = False, patience_s: float = PATIENCE_S
) -> T:
    """The result of ``call``, repeated for ``patience_s`` seconds while it raises RetryableError.

    ``idempotent``: an OutcomeUnknownError is repeated as well, because doing it twice is harmless.
    """
    retried = (RetryableError, OutcomeUnknownError) if idempotent else (RetryableError,)
    patience = Patience(what, patience_s)
    while True:
        try:
            return call()
        except retried as error:
            patience.pause_or_raise(error)
