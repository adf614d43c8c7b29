"""Frames that nobody here can verify are copied once two reads have brought the same bytes."""

from __future__ import annotations

from spark_ledger.repair.compare import Comparison
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieId, EntryId, LedgerId
from spark_ledger.wire.frame import HEADER

A, B, C = BookieId("a"), BookieId("b"), BookieId("c")


def run(*payloads: bytes, first: int = 0, ledger: int = 1) -> EntryRun:
    frames = [HEADER.pack(ledger, first + n, -1, 0) + p for n, p in enumerate(payloads)]
    return EntryRun(LedgerId(1), EntryId(first), None, [len(f) for f in frames], b"".join(frames))


def test_entries_that_two_bookies_brought_are_good() -> None:
    compared = Comparison(A, [run(b"0"), run(b"1", b"2", first=1)])
    assert compared.open(also_differing=True) == [0, 1, 2]
    compared.look(B, run(b"1", first=1))
    assert compared.count == 0 and "was not brought a second time" in compared.reason
    assert compared.open(also_differing=False) == [0, 2]
    compared.look(A, run(b"0", b"1", b"2"))
    assert compared.count == 3


def test_source_does_not_outvote_another_bookie() -> None:
    compared = Comparison(A, [run(b"0", b"x", b"2")])
    compared.look(B, run(b"0", b"1", b"2"))
    assert compared.open(also_differing=False) == [] and compared.open(also_differing=True) == [1]
    compared.look(A, run(b"0", b"x", b"2"))
    assert compared.count == 1
    assert "entry 1 is not the same on a and b" in compared.reason
    compared.look(C, run(b"0", b"x", b"2"))
    assert compared.count == 3, "two against one"


def test_source_that_contradicts_itself_is_not_believed() -> None:
    compared = Comparison(A, [run(b"0")])
    compared.look(A, run(b"1"))
    assert compared.count == 0 and "twice, with different bytes" in compared.reason


def test_entry_under_another_name_is_never_good() -> None:
    for other in (run(b"0", ledger=2), EntryRun(LedgerId(1), EntryId(0), None, [3], b"abc")):
        compared = Comparison(A, [other])
        assert compared.open(also_differing=True) == []
        compared.look(B, other)
        assert compared.count == 0 and "another entry" in compared.reason


def test_other_entries_are_passed_over() -> None:
    compared = Comparison(A, [run(b"0")])
    compared.look(B, run(b"0", b"1", b"2"))
    assert compared.count == 1
