"""Copies and fragments: anomalies that are reported, legal histories that look like them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_ledger.types import BookieId, EntryId, Fragment, Quorums
from tests.history.build import Builder, entries, entry, final_ledger, names, written
from tests.history.final import FinalLedger

Case = Callable[[Builder], FinalLedger]


def under_replicated_entry(b: Builder) -> FinalLedger:
    written(b, 2)
    full, none = dict(enumerate(entries(2))), {0: entry(0)}
    return final_ledger(entries(2), replicas={"a": full, "b": none, "c": none})


def under_replicated_ledger(b: Builder) -> FinalLedger:
    written(b, 1)
    return final_ledger(entries(1), replicas={"a": {0: entry(0)}, "b": {}, "c": {}})


def under_replicated_copy_outside_the_ensemble(b: Builder) -> FinalLedger:
    written(b, 1)
    held = {0: entry(0)}
    return final_ledger(entries(1), replicas={"a": held, "b": {}, "c": {}, "d": held})


def under_replicated_stripe(b: Builder) -> FinalLedger:
    written(b, 2)  # entry 1 belongs to b and c
    held = {0: entry(0), 1: entry(1)}
    return final_ledger(
        entries(2), quorums=Quorums(3, 2, 2), replicas={"a": held, "b": held, "c": {}}
    )


def fragments_of(*fragments: tuple[int, str]) -> tuple[Fragment, ...]:
    return tuple(Fragment(EntryId(e), tuple(BookieId(x) for x in names)) for e, names in fragments)


def fragments_out_of_order(b: Builder) -> FinalLedger:
    written(b, 3)
    return final_ledger(entries(3), fragments=fragments_of((0, "abc"), (2, "abd"), (1, "abe")))


def fragment_behind_the_end(b: Builder) -> FinalLedger:
    written(b, 3)
    return final_ledger(entries(3), fragments=fragments_of((0, "abc"), (4, "abd")))


def fragment_with_one_bookie_twice(b: Builder) -> FinalLedger:
    written(b, 3)
    return final_ledger(entries(3), fragments=fragments_of((0, "aab")))


def fragment_too_small(b: Builder) -> FinalLedger:
    written(b, 3)
    return final_ledger(entries(3), fragments=fragments_of((0, "ab")))


CASES = [
    ("under-replicated", under_replicated_entry),
    ("under-replicated", under_replicated_ledger),
    ("under-replicated", under_replicated_copy_outside_the_ensemble),
    ("under-replicated", under_replicated_stripe),
    ("fragments", fragments_out_of_order),
    ("fragments", fragment_behind_the_end),
    ("fragments", fragment_with_one_bookie_twice),
    ("fragments", fragment_too_small),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[case.__name__ for _, case in CASES])
def test_illegal_history_is_reported(name: str, case: Case) -> None:
    builder = Builder()
    final = case(builder)
    assert name in names(builder.history, final)


def test_a_bookie_that_could_not_be_asked_may_hold_anything() -> None:
    b = Builder()
    written(b, 1)
    assert names(b.history, final_ledger(entries(1), replicas={"a": {0: entry(0)}})) == set()


def test_a_fragment_may_begin_just_behind_the_end() -> None:
    b = Builder()
    written(b, 3)
    last = final_ledger(entries(3), fragments=fragments_of((0, "abc"), (3, "abd")))
    assert names(b.history, last) == set()
