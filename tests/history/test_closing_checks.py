"""Closing and deleting: anomalies that are reported, legal histories that look like them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.history.build import Builder, entries, entry, final_ledger, names, written
from tests.history.final import FinalLedger
from tests.history.model import Phase

Case = Callable[[Builder], FinalLedger]


def close_disagreement_of_two_recoveries(b: Builder) -> FinalLedger:
    written(b, 2)
    b.begin_append(entry(2))
    b.close(1, name="recover", process="r")
    b.close(2, name="recover", process="r2")
    return final_ledger(entries(3))


def close_disagreement_with_the_writer(b: Builder) -> FinalLedger:
    written(b, 2)
    b.close(1)
    b.close(0, name="recover", process="r")
    return final_ledger(entries(2))


def close_disagreement_of_an_open(b: Builder) -> FinalLedger:
    written(b, 2)
    b.close(1)
    b.look("open", 0, closed=True)
    return final_ledger(entries(2))


def close_disagreement_at_the_end(b: Builder) -> FinalLedger:
    written(b, 2)
    b.begin_append(entry(2))
    b.close(1)
    return final_ledger(entries(3))


def acknowledged_add_begun_after_the_close(b: Builder) -> FinalLedger:
    written(b, 2)
    b.close(1, name="recover", process="r")
    b.append(2)
    return final_ledger(entries(3))


def acknowledged_behind_the_end(b: Builder) -> FinalLedger:
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.close(1, name="recover", process="r")
    b.finish(flying, entry_id=2)
    return final_ledger(entries(2))


def acknowledged_with_an_id_that_is_taken(b: Builder) -> FinalLedger:
    written(b, 2)
    b.close(1)
    b.append(1, entry(9))
    return final_ledger(entries(2))


def open_after_it_was_closed(b: Builder) -> FinalLedger:
    written(b, 1)
    b.close(0)
    b.look("open", 0)
    return final_ledger(entries(1))


def closed_before_anybody_closed_it(b: Builder) -> FinalLedger:
    written(b, 1)
    b.look("open", 0, closed=True)
    b.close(0)
    return final_ledger(entries(1))


def there_after_its_deletion(b: Builder) -> FinalLedger:
    written(b, 1)
    b.finish(b.begin("delete", "r", ledger_id=1))
    b.look("open", 0)
    return final_ledger((), fragments=(), replicas={}, deleted=True)


def deleted_and_there_again(b: Builder) -> FinalLedger:
    b.create()
    b.finish(b.begin("refresh", "r", ledger_id=1), Phase.FAIL, error="NoSuchLedgerError")
    b.look("refresh", -1)
    return final_ledger(())


CASES = [
    ("close-disagreement", close_disagreement_of_two_recoveries),
    ("close-disagreement", close_disagreement_with_the_writer),
    ("close-disagreement", close_disagreement_of_an_open),
    ("close-disagreement", close_disagreement_at_the_end),
    ("acknowledged-after-close", acknowledged_add_begun_after_the_close),
    ("acknowledged-after-close", acknowledged_behind_the_end),
    ("acknowledged-after-close", acknowledged_with_an_id_that_is_taken),
    ("not-linearizable", open_after_it_was_closed),
    ("not-linearizable", closed_before_anybody_closed_it),
    ("not-linearizable", there_after_its_deletion),
    ("not-linearizable", deleted_and_there_again),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[case.__name__ for _, case in CASES])
def test_illegal_history_is_reported(name: str, case: Case) -> None:
    builder = Builder()
    final = case(builder)
    assert name in names(builder.history, final)


def test_an_acknowledgement_in_flight_at_the_close_may_come_late() -> None:
    b = Builder()
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.close(2, name="recover", process="r")
    b.finish(flying, entry_id=2)
    assert names(b.history, final_ledger(entries(3))) == set()


def test_a_failed_close_may_take_effect_later() -> None:
    b = Builder()
    written(b, 1)
    closing = b.begin("close", ledger_id=1)
    b.finish(closing, Phase.UNKNOWN, error="OutcomeUnknownError")
    b.look("open", 0)
    b.look("refresh", 0, closed=True)
    assert names(b.history, final_ledger(entries(1))) == set()


@pytest.mark.parametrize("error", ["EnsembleLostError", "UnauthorizedError"])
def test_a_writer_that_lost_its_ensemble_may_have_closed_its_ledger(error: str) -> None:
    b = Builder()
    written(b, 1)
    b.append(-1, entry(1), phase=Phase.UNKNOWN, error=error)
    b.look("open", 0, closed=True)
    assert names(b.history, final_ledger(entries(1))) == set()


@pytest.mark.parametrize("heard", [True, False])
def test_a_writer_that_was_taken_over_may_be_closed_after_the_deletion(heard: bool) -> None:
    """It asks nobody then (seed 12059). One that has not heard of it cannot say that it closed."""
    b = Builder()
    b.create()
    b.close(-1, name="recover", process="r")
    if heard:
        b.append(-1, entry(0), phase=Phase.UNKNOWN, error="LedgerTakenOverError")
    b.finish(b.begin("delete", "r", ledger_id=1))
    b.close(-1)
    final = final_ledger((), fragments=(), replicas={}, deleted=True)
    assert names(b.history, final) == (set() if heard else {"not-linearizable"})
