"""A set of ledger ids: the same as a set, in a hundredth of the memory."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from bookie_server.storage.index.id_set import LedgerIdSet
from spark_ledger.types import LedgerId

IDS = st.integers(0, 40) | st.integers(1020, 1030) | st.integers(0, 2**62)
CHANGES = st.lists(st.tuples(st.booleans(), st.lists(IDS, max_size=20)), max_size=20)


@given(CHANGES)
def test_id_set_holds_what_a_set_holds(changes: list[tuple[bool, list[int]]]) -> None:
    ids, model = LedgerIdSet(), set[int]()
    for puts_in, numbers in changes:
        ledger_ids = [LedgerId(number) for number in numbers]
        if puts_in:
            ids.update(ledger_ids)
            model.update(numbers)
        else:
            ids.difference_update(ledger_ids)
            model.difference_update(numbers)
        for number in {*numbers, *model}:
            for neighbour in (number - 1, number, number + 1):
                if neighbour >= 0:
                    assert (LedgerId(neighbour) in ids) == (neighbour in model)


def test_id_set_that_was_emptied_takes_nothing() -> None:
    ids = LedgerIdSet()
    ids.update(LedgerId(number) for number in range(0, 10**6, 997))
    ids.difference_update(LedgerId(number) for number in range(0, 10**6, 997))
    assert ids.size_bytes == 0


def test_ledgers_of_one_bookie_of_ten_take_less_than_a_byte_each() -> None:
    tracemalloc.start()
    try:
        ids = LedgerIdSet()
        for number in range(0, 600_000, 3):  # three copies: every third is here
            ids.add(LedgerId(number))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 200_000
    assert taken < 1.5 * ids.size_bytes
