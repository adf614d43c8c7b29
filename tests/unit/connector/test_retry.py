"""Retries: transient errors are repeated within a budget, all others are raised at once."""

from __future__ import annotations

import logging

import pytest

from connector import retry
from connector.retry import RetryBudget, retry_transient
from spark_ledger.errors import (
    LedgerError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    SchemaMismatchError,
)
from spark_ledger.limits.connector import RETRY_PAUSES_S


class Clock:
    """Stands in for the module ``time``; sleeping moves it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(retry, "time", made)
    return made


class Flaky:
    """A call that raises each of some errors once, then answers 7."""

    def __init__(self, *errors: LedgerError) -> None:
        self._errors = list(errors)

    def __call__(self) -> int:
        if self._errors:
            raise self._errors.pop(0)
        return 7


def test_retry_transient_after_transient_errors_returns_the_result(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    call = Flaky(MetadataUnavailableError("gone"), MetadataUnavailableError("still gone"))
    with caplog.at_level(logging.WARNING):
        assert retry_transient(call, "asking") == 7
    assert clock.pauses == [0.1, 0.2]
    assert [record.getMessage() for record in caplog.records] == [
        "asking failed, trying again in 0.1 s: gone",
        "asking failed, trying again in 0.2 s: still gone",
    ]


def test_retry_transient_when_the_budget_is_spent_raises_the_last_error(clock: Clock) -> None:
    errors = [MetadataUnavailableError(f"failure {n}") for n in range(9)]
    with pytest.raises(MetadataUnavailableError) as caught:
        retry_transient(Flaky(*errors), "asking", budget_s=6.0)
    assert clock.pauses == [0.1, 0.2, 0.5, 1.0, 2.0, 2.0]
    assert caught.value is errors[6]


def test_retry_transient_with_unknown_outcome_repeats_only_idempotent_calls(clock: Clock) -> None:
    error = OutcomeUnknownError("perhaps")
    with pytest.raises(OutcomeUnknownError):
        retry_transient(Flaky(error), "asking")
    assert retry_transient(Flaky(error), "asking", idempotent=True) == 7
    both = Flaky(MetadataUnavailableError("gone"), error, MetadataUnavailableError("gone"))
    assert retry_transient(both, "asking", idempotent=True) == 7


def test_retry_transient_with_permanent_error_raises_at_once(clock: Clock) -> None:
    with pytest.raises(SchemaMismatchError):
        retry_transient(Flaky(SchemaMismatchError("never")), "asking", idempotent=True)
    assert clock.pauses == []


def test_retry_budget_counts_from_the_first_failure(clock: Clock) -> None:
    budget = RetryBudget("reading", 1.0)
    clock.now += 1000.0  # a long time without failures costs nothing
    budget.pause_or_raise(MetadataUnavailableError("gone"))
    clock.now += 1000.0
    with pytest.raises(MetadataUnavailableError):
        budget.pause_or_raise(MetadataUnavailableError("gone"))


def test_retry_budget_after_reset_begins_anew(clock: Clock) -> None:
    budget = RetryBudget("reading", 1.0)
    for _ in range(5):
        budget.pause_or_raise(MetadataUnavailableError("gone"))
        clock.now += 1000.0
        budget.reset()
    assert clock.pauses == [0.1] * 5


def test_pause_that_would_end_behind_the_budget_is_not_begun(clock: Clock) -> None:
    """A query that is to fail after two minutes does not sleep through the end of them."""
    budget = RetryBudget("reading", sum(RETRY_PAUSES_S[:3]))
    for _ in range(3):
        budget.pause_or_raise(MetadataUnavailableError("gone"))
    with pytest.raises(MetadataUnavailableError):
        budget.pause_or_raise(MetadataUnavailableError("gone"))
    assert clock.pauses == list(RETRY_PAUSES_S[:3])


def test_reason_is_logged_once_until_it_is_another_one_or_all_went_well(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    budget = RetryBudget("reading", 1000.0)
    with caplog.at_level(logging.WARNING):
        for reason in ("a", "a", "b", "b", "", "b"):
            if reason:
                budget.pause_or_raise(MetadataUnavailableError(reason))
            else:
                budget.reset()
    assert [one.getMessage()[-1] for one in caplog.records] == ["a", "b", "b"]
