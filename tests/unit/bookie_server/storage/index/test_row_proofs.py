"""Checked rows of ledgers: kept up to a bound of bytes, whatever a stranger asks for."""

from __future__ import annotations

from array import array

import pytest

from bookie_server.storage.index import row_proofs
from bookie_server.storage.index.row_proofs import Proof, VerifiedRows
from spark_ledger.types import EntryId, LedgerId

BOUND = 100_000


class Ledger:
    """A ledger with rows; it counts how often they were read."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.reads = 0

    @property
    def proof(self) -> Proof:
        return Proof(self.rows, 7 * self.rows)

    def read(self, after: EntryId) -> tuple[Proof, array[int]]:
        self.reads += 1
        firsts = array("q", range(after + 1, self.rows))
        return Proof(len(firsts), 7 * len(firsts)), firsts


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_proofs, "ROWS_KEPT_BYTES_MAX", BOUND)


def ask(verified: VerifiedRows, ledger_id: int, ledger: Ledger) -> None:
    firsts = verified.firsts(LedgerId(ledger_id), ledger.proof, ledger.read)
    assert firsts is not None and list(firsts) == list(range(ledger.rows))


def test_checked_rows_of_many_ledgers_stay_within_the_bound() -> None:
    verified = VerifiedRows()
    for ledger_id in range(1000):
        ask(verified, ledger_id, Ledger(100))
        assert 0 < verified.size_bytes <= BOUND
    last = Ledger(100)
    ask(verified, 1000, last)
    ask(verified, 1000, last)
    assert last.reads == 1


def test_rows_of_a_growing_ledger_count_once() -> None:
    verified, ledger = VerifiedRows(), Ledger(10)
    ask(verified, 1, ledger)
    before = verified.size_bytes
    for _ in range(50):
        ledger.rows += 10
        ask(verified, 1, ledger)
    assert verified.size_bytes - before == 500 * 8


def test_ledger_that_is_larger_than_the_bound_is_answered_and_takes_nothing() -> None:
    verified, small, large = VerifiedRows(), Ledger(10), Ledger(BOUND)
    ask(verified, 1, small)
    ask(verified, 2, large)
    assert verified.size_bytes < 1000
    ask(verified, 1, small)
    assert small.reads == 1


def test_ledger_that_outgrows_the_bound_is_not_counted_any_more() -> None:
    verified, ledger = VerifiedRows(), Ledger(10)
    ask(verified, 1, ledger)
    ledger.rows = BOUND
    ask(verified, 1, ledger)
    assert verified.size_bytes == 0


def test_directories_share_the_bound_and_a_large_ledger_is_kept_alone() -> None:
    verified, small, large = VerifiedRows(directories=4), Ledger(100), Ledger(BOUND // 16)
    for ledger_id in range(100):
        ask(verified, ledger_id, small)
        assert verified.size_bytes <= BOUND // 4
    ask(verified, 1000, large)
    ask(verified, 1000, large)
    assert large.reads == 1 and BOUND // 4 < verified.size_bytes <= BOUND
