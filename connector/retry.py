"""Repeats calls that failed for a transient reason, within a budget of seconds.

Spark ends a streaming query at the first exception on the driver, and it repeats a failed task only
a few times in quick succession. An outage of the metadata store or of some bookies is often
shorter than a restart of the query, so the connector waits for its end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from spark_ledger.errors import LedgerError, OutcomeUnknownError, RetryableError, RewriteError
from spark_ledger.limits.connector import RETRY_PAUSES_S, RETRY_S

T = TypeVar("T")

logger = logging.getLogger(__name__)

# Why not tenacity: its stop conditions count from the start of the first attempt, but a call may
# work for minutes before it fails, so the budget here counts from the first failure. It repeats
# functions, but a reading task is a generator whose progress resets the budget. With a stop
# condition, a wait strategy, a log callback and a loop of our own for generators the code would be
# longer than the class below.


class RetryBudget:
    """How long one operation may keep failing, counted from its first failure."""

    def __init__(self, operation: str, budget_s: float) -> None:
        self._operation = operation
        self._budget_s = budget_s
        self._deadline = 0.0
        self._failures = 0
        self._logged = ""

    def reset(self) -> None:
        """The operation made progress: the next failure is a first one."""
        self._failures = 0
        self._logged = ""

    def pause_or_raise(self, error: LedgerError) -> None:
        """Sleep before the next attempt; raise ``error`` unchanged once the budget is spent."""
        if self._failures == 0:
            self._deadline = time.monotonic() + self._budget_s
        pause_s = RETRY_PAUSES_S[min(self._failures, len(RETRY_PAUSES_S) - 1)]
        self._failures += 1
        if time.monotonic() + pause_s > self._deadline:
            raise error
        is_new, self._logged = str(error) != self._logged, str(error)
        level = logging.WARNING if is_new else logging.DEBUG  # one line for one reason
        logger.log(level, "%s failed, trying again in %.1f s: %s", self._operation, pause_s, error)
        time.sleep(pause_s)


def retry_transient(
    call: Callable[[], T], operation: str, *, idempotent: bool = False, budget_s: float = RETRY_S
) -> T:
    """The result of ``call``, which is repeated while it raises RetryableError; not after a
    RewriteError, which it would raise again each time.

    ``operation`` names the call in the log. ``idempotent``: an OutcomeUnknownError is repeated too,
    because it is harmless if the call takes effect twice.

    Raises the error of the last attempt if the call still fails after ``budget_s`` seconds.
    """
    transient = (RetryableError, OutcomeUnknownError) if idempotent else (RetryableError,)
    budget = RetryBudget(operation, budget_s)
    while True:
        try:
            return call()
        except RewriteError:
            raise
        except transient as error:
            budget.pause_or_raise(error)
