"""Entries: anomalies that have to be reported, and legal histories that look like them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.history.build import Builder, entries, entry, final_ledger, names, written
from tests.history.final import FinalLedger
from tests.history.model import Phase, value

Case = Callable[[Builder], FinalLedger]


# -- lost ------------------------------------------------------------------------------------------


def lost_at_the_end(b: Builder) -> FinalLedger:
    written(b)
    return final_ledger(entries(2))


def lost_all(b: Builder) -> FinalLedger:
    written(b, 1)
    return final_ledger(())


def lost_in_the_middle(b: Builder) -> FinalLedger:
    written(b)
    b.begin_append(other := value("w", "L1", 99))
    return final_ledger((entry(0), other, entry(2)))


def lost_with_its_ledger(b: Builder) -> FinalLedger:
    written(b)
    return final_ledger((), fragments=(), replicas={}, deleted=True)


def lost_though_the_last_was_unknown(b: Builder) -> FinalLedger:
    written(b)
    b.append(-1, entry(3), phase=Phase.UNKNOWN)
    return final_ledger(entries(2))


# -- phantom ---------------------------------------------------------------------------------------


def phantom_at_the_end(b: Builder) -> FinalLedger:
    written(b)
    return final_ledger((*entries(3), value("x", "L1", 1)))


def phantom_in_a_read(b: Builder) -> FinalLedger:
    written(b)
    b.read(0, (entry(0), value("x", "L1", 1)))
    return final_ledger(entries(3))


def phantom_that_failed(b: Builder) -> FinalLedger:
    written(b)
    b.append(-1, entry(3), phase=Phase.FAIL, error="LedgerClosedError")
    return final_ledger(entries(4))


def phantom_damaged(b: Builder) -> FinalLedger:
    written(b)
    b.read(1, (entry(1)[:-1] + "#",))
    return final_ledger(entries(3))


def phantom_of_another_ledger(b: Builder) -> FinalLedger:
    written(b)
    b.create(2, "v")
    b.append(0, entry(0, 2), ledger_id=2, process="v")
    b.read(0, (entry(0, 2),))
    return final_ledger(entries(3))


def phantom_on_a_bookie(b: Builder) -> FinalLedger:
    written(b)
    held = dict(enumerate(entries(3)))
    odd = {**held, 1: value("x", "L1", 7)}
    return final_ledger(entries(3), replicas={"a": held, "b": held, "c": odd})


def phantom_from_the_future(b: Builder) -> FinalLedger:
    written(b, 1)
    b.read(0, entries(2))
    b.append(1)
    return final_ledger(entries(2))


# -- divergence ------------------------------------------------------------------------------------


def divergence_of_reads(b: Builder) -> FinalLedger:
    written(b)
    other = b.begin_append(value("w", "L1", 50))
    b.read(1, (entry(1),))
    b.read(1, other.values, process="r2")
    return final_ledger(entries(3))


def divergence_of_the_acknowledgement(b: Builder) -> FinalLedger:
    written(b, 2)
    b.append(2, value("w", "L1", 50))
    b.begin_append(entry(2))
    return final_ledger(entries(3))


def divergence_of_replicas(b: Builder) -> FinalLedger:
    written(b)
    held = dict(enumerate(entries(3)))
    return final_ledger(entries(3), replicas={"a": held, "b": held, "c": {**held, 2: entry(1)}})


def divergence_of_digests(b: Builder) -> FinalLedger:
    written(b)
    digests = {e: f"digest {e}" for e in range(3)}
    odd = {**digests, 0: "another"}
    return final_ledger(entries(3), replicas={"a": digests, "b": odd, "c": digests})


def divergence_from_the_end(b: Builder) -> FinalLedger:
    written(b)
    b.read(0, entries(3))
    b.begin_append(other := value("w", "L1", 50))
    return final_ledger((entry(0), entry(1), other), replicas={})


# -- order -----------------------------------------------------------------------------------------


def order_of_acknowledgements(b: Builder) -> FinalLedger:
    b.create()
    b.append(1)
    b.append(0)
    return final_ledger(entries(2))


def order_of_two_with_one_id(b: Builder) -> FinalLedger:
    written(b, 2)
    b.append(1, value("w", "L1", 9))
    return final_ledger(entries(2))


def order_in_a_read(b: Builder) -> FinalLedger:
    written(b, 3)
    b.read(0, (entry(1), entry(0)))
    return final_ledger(entries(3))


def order_at_the_end(b: Builder) -> FinalLedger:
    b.create()
    for number in range(2):
        b.append(-1, entry(number), phase=Phase.UNKNOWN)
    return final_ledger((entry(1), entry(0)))


def duplicate_at_the_end(b: Builder) -> FinalLedger:
    written(b, 2)
    return final_ledger((*entries(2), entry(1)))


def duplicate_in_a_read(b: Builder) -> FinalLedger:
    written(b, 3)
    b.read(0, (entry(0), entry(1), entry(1)))
    return final_ledger(entries(3))


def duplicate_of_an_unknown(b: Builder) -> FinalLedger:
    b.create()
    b.append(-1, entry(0), phase=Phase.UNKNOWN)
    return final_ledger((entry(0), entry(0)))


# -- hole ------------------------------------------------------------------------------------------


def hole_in_a_read(b: Builder) -> FinalLedger:
    written(b, 4)
    b.read(0, (entry(0), entry(1)), last=3)
    return final_ledger(entries(4))


def hole_in_a_tail(b: Builder) -> FinalLedger:
    written(b, 4)
    b.read(1, (entry(2),), name="tail", last=-1, entry_id=2)
    return final_ledger(entries(4))


def hole_at_the_end(b: Builder) -> FinalLedger:
    written(b, 4)
    return final_ledger(entries(3), end=3)


def hole_of_everything(b: Builder) -> FinalLedger:
    written(b, 2)
    b.read(0, (), last=1)
    return final_ledger(entries(2))


# -- denied ----------------------------------------------------------------------------------------


def denied_entry(b: Builder) -> FinalLedger:
    written(b)
    b.read(1, (), last=1, phase=Phase.FAIL, error="NoSuchEntryError")
    return final_ledger(entries(3))


def denied_by_damage(b: Builder) -> FinalLedger:
    written(b)
    b.read(0, (), last=2, phase=Phase.FAIL, error="DigestMismatchError", name="tail")
    return final_ledger(entries(3))


def denied_ledger(b: Builder) -> FinalLedger:
    written(b)
    b.finish(b.begin("open", "r", ledger_id=1), Phase.FAIL, error="NoSuchLedgerError")
    return final_ledger(entries(3))


CASES = [
    ("lost", lost_at_the_end),
    ("lost", lost_all),
    ("lost", lost_in_the_middle),
    ("lost", lost_with_its_ledger),
    ("lost", lost_though_the_last_was_unknown),
    ("phantom", phantom_at_the_end),
    ("phantom", phantom_in_a_read),
    ("phantom", phantom_that_failed),
    ("phantom", phantom_damaged),
    ("phantom", phantom_of_another_ledger),
    ("phantom", phantom_on_a_bookie),
    ("phantom", phantom_from_the_future),
    ("divergence", divergence_of_reads),
    ("divergence", divergence_of_the_acknowledgement),
    ("divergence", divergence_of_replicas),
    ("divergence", divergence_of_digests),
    ("divergence", divergence_from_the_end),
    ("order", order_of_acknowledgements),
    ("order", order_of_two_with_one_id),
    ("order", order_in_a_read),
    ("order", order_at_the_end),
    ("duplicate", duplicate_at_the_end),
    ("duplicate", duplicate_in_a_read),
    ("duplicate", duplicate_of_an_unknown),
    ("hole", hole_in_a_read),
    ("hole", hole_in_a_tail),
    ("hole", hole_at_the_end),
    ("hole", hole_of_everything),
    ("denied", denied_entry),
    ("denied", denied_by_damage),
    ("denied", denied_ledger),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[case.__name__ for _, case in CASES])
def test_illegal_history_is_reported(name: str, case: Case) -> None:
    builder = Builder()
    final = case(builder)
    assert name in names(builder.history, final)


def test_a_plain_history_is_legal() -> None:
    b = Builder()
    written(b, 5)
    b.read(0, entries(3))
    b.read(3, entries(5)[3:], name="tail", last=-1)
    b.close(4)
    b.read(0, entries(5))
    assert names(b.history, final_ledger(entries(5))) == set()


def test_an_append_of_unknown_outcome_may_be_there_or_not() -> None:
    b = Builder()
    written(b, 2)
    b.append(-1, entry(2), phase=Phase.UNKNOWN, error="FencedError")
    b.close(1, name="recover", process="r")
    assert names(b.history, final_ledger(entries(2))) == set()
    b = Builder()
    written(b, 2)
    b.append(-1, entry(2), phase=Phase.UNKNOWN, error="FencedError")
    b.close(2, name="recover", process="r")
    assert names(b.history, final_ledger(entries(3))) == set()


def test_deleted_ledger_is_not_lost() -> None:
    b = Builder()
    written(b, 2)
    b.finish(b.begin("delete", "r", ledger_id=1))
    b.finish(b.begin("open", "r", ledger_id=1), Phase.FAIL, error="NoSuchLedgerError")
    gone = final_ledger((), fragments=(), replicas={}, deleted=True)
    assert names(b.history, gone) == set()


def test_copies_beyond_the_end_are_ignored() -> None:
    b = Builder()
    written(b, 2)
    b.append(-1, entry(2), phase=Phase.UNKNOWN, error="FencedError")
    held = dict(enumerate(entries(2)))
    odd = {**held, 2: entry(2)}
    last = final_ledger(entries(2), replicas={"a": held, "b": held, "c": odd})
    assert names(b.history, last) == set()


def test_unreadable_ledger_is_reported_unless_too_much_was_damaged() -> None:
    b = Builder()
    written(b, 2)
    broken = final_ledger((), replicas={}, unreadable="RecoveryError")
    assert names(b.history, broken) == {"unreadable"}
    destroyed = final_ledger((), replicas={}, unreadable="RecoveryError", beyond_tolerance=True)
    assert names(b.history, destroyed) == set()


def test_a_missing_ledger_is_lost() -> None:
    b = Builder()
    written(b, 1)
    assert "lost" in names(b.history, final_ledger((), ledger_id=7))
