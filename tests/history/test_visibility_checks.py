"""Dirty reads, LACs, stale answers: anomalies that are reported, and legal look-alikes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.history.build import Builder, entries, entry, final_ledger, names, written
from tests.history.final import FinalLedger
from tests.history.model import Phase

Case = Callable[[Builder], FinalLedger]


def dirty_read_of_an_entry_in_flight(b: Builder) -> FinalLedger:
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.read(0, entries(3))
    b.finish(flying, entry_id=2)
    return final_ledger(entries(3))


def dirty_read_that_vanished(b: Builder) -> FinalLedger:
    written(b, 2)
    b.begin_append(entry(2))
    b.close(1, name="recover", process="r2")
    b.read(0, entries(3))
    return final_ledger(entries(2))


def dirty_read_above_the_own_lac(b: Builder) -> FinalLedger:
    written(b, 3)
    b.read(0, entries(3), last_add_confirmed=1)
    return final_ledger(entries(3))


def dirty_tail_of_an_add_that_failed(b: Builder) -> FinalLedger:
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.read(2, (entry(2),), name="tail", last=-1)
    b.finish(flying, Phase.UNKNOWN, error="FencedError")
    b.close(2, name="recover", process="r2")
    return final_ledger(entries(3))


def lac_backwards_at_a_refresh(b: Builder) -> FinalLedger:
    written(b, 3)
    b.look("open", 1)
    b.look("refresh", 2)
    b.look("refresh", 1)
    return final_ledger(entries(3))


def lac_backwards_after_a_read(b: Builder) -> FinalLedger:
    written(b, 3)
    b.read(0, entries(3), last_add_confirmed=2)
    b.read(0, entries(1), last_add_confirmed=0)
    return final_ledger(entries(3))


def lac_backwards_of_the_writer(b: Builder) -> FinalLedger:
    b.create()
    for entry_id, lac in ((0, 0), (1, 1), (2, 0)):
        flying = b.begin_append(entry(entry_id))
        b.finish(flying, entry_id=entry_id, last_add_confirmed=lac)
    return final_ledger(entries(3))


def lac_beyond_the_acknowledged(b: Builder) -> FinalLedger:
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.look("open", 2)
    b.finish(flying, entry_id=2)
    return final_ledger(entries(3))


def lac_beyond_the_written(b: Builder) -> FinalLedger:
    written(b, 2)
    b.look("refresh", 5)
    return final_ledger(entries(2))


def lac_beyond_the_end(b: Builder) -> FinalLedger:
    written(b, 2)
    b.begin_append(entry(2))
    b.close(1, name="recover", process="r2")
    b.look("refresh", 2)
    return final_ledger(entries(2))


def stale_open(b: Builder) -> FinalLedger:
    written(b, 5)
    b.look("open", 2)
    return final_ledger(entries(5))


def stale_refresh(b: Builder) -> FinalLedger:
    written(b, 5)
    b.look("open", 3)
    for entry_id in (5, 6, 7):
        b.append(entry_id)
    b.look("refresh", 5)
    return final_ledger(entries(8))


def stale_recovery(b: Builder) -> FinalLedger:
    written(b, 3)
    b.close(0, name="recover", process="r")
    return final_ledger(entries(1))


CASES = [
    ("dirty-read", dirty_read_of_an_entry_in_flight),
    ("dirty-read", dirty_read_that_vanished),
    ("dirty-read", dirty_read_above_the_own_lac),
    ("dirty-read", dirty_tail_of_an_add_that_failed),
    ("lac-backwards", lac_backwards_at_a_refresh),
    ("lac-backwards", lac_backwards_after_a_read),
    ("lac-backwards", lac_backwards_of_the_writer),
    ("lac-beyond", lac_beyond_the_acknowledged),
    ("lac-beyond", lac_beyond_the_written),
    ("lac-beyond", lac_beyond_the_end),
    ("stale", stale_open),
    ("stale", stale_refresh),
    ("stale", stale_recovery),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[case.__name__ for _, case in CASES])
def test_illegal_history_is_reported(name: str, case: Case) -> None:
    builder = Builder()
    final = case(builder)
    assert name in names(builder.history, final)


def test_late_record_of_a_paused_writer_is_legal() -> None:
    b = Builder()
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.read(0, entries(3), last_add_confirmed=2)
    b.finish(flying, entry_id=2)
    assert names(b.history, final_ledger(entries(3)), exact=False) == set()
    assert names(b.history, final_ledger(entries(3))) == {"dirty-read", "lac-beyond"}


def test_missing_record_of_a_killed_writer_is_legal() -> None:
    b = Builder()
    written(b, 2)
    b.begin_append(entry(2))
    b.begin_append(entry(3))
    b.read(0, entries(3), last_add_confirmed=2)
    assert names(b.history, final_ledger(entries(4)), exact=False) == set()


def test_read_of_an_unconfirmed_entry_is_dirty_despite_late_records() -> None:
    b = Builder()
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.read(0, entries(3))
    b.finish(flying, Phase.UNKNOWN, error="EnsembleLostError")
    assert names(b.history, final_ledger(entries(3)), exact=False) == {"dirty-read"}


def test_the_last_add_confirmed_may_lag_by_the_entries_in_flight() -> None:
    b = Builder()
    written(b, 3)
    b.look("open", 1)
    b.look("refresh", 1)
    b.look("open", 1, process="r2")
    assert names(b.history, final_ledger(entries(3))) == set()


def test_last_add_confirmed_of_a_new_handle_may_be_lower() -> None:
    b = Builder()
    written(b, 3)
    b.look("open", 2)
    b.look("open", 1)
    b.look("refresh", 1)
    assert names(b.history, final_ledger(entries(3))) == set()
