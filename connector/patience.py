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

_PAUSE_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)


def patiently(
    call: Callable[[], T], what: str, *, idempotent: bool = False, patience_s: float = PATIENCE_S
) -> T:
    """The result of ``call``, repeated for ``patience_s`` seconds while it raises RetryableError.

    ``idempotent``: an OutcomeUnknownError is repeated as well, because doing it twice is harmless.
    """
    retried = (RetryableError, OutcomeUnknownError) if idempotent else (RetryableError,)
    deadline = time.monotonic() + patience_s
    attempt = 0
    while True:
        try:
            return call()
        except retried as error:
            _pause_or_raise(error, what, attempt, deadline)
        attempt += 1


def _pause_or_raise(error: LedgerError, what: str, attempt: int, deadline: float) -> None:
    pause_s = _PAUSE_S[min(attempt, len(_PAUSE_S) - 1)]
    if time.monotonic() + pause_s > deadline:
        raise error
    _LOG.warning("%s failed, trying again in %.1f s: %s", what, pause_s, error)
    time.sleep(pause_s)
