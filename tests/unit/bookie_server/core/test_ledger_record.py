"""Records only grow, and what is applied twice changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_server.core.ledger_record import Change, LedgerRecord
from spark_ledger.types import EntryId, LedgerId

KEY = bytes(range(32))
RECORD = LedgerRecord(KEY, True, EntryId(4), EntryId(6))

changes = st.one_of(
    st.just(Change(LedgerId(7), fenced=True)),
    st.just(Change(LedgerId(7), access_key_hash=KEY)),
    st.integers(0, 9).map(lambda lac: Change(LedgerId(7), last_add_confirmed=EntryId(lac))),
    st.integers(0, 9).map(EntryId),  # a run that ends there
)


def apply(record: LedgerRecord, change: Change | int) -> LedgerRecord:
    if isinstance(change, Change):
        return record.with_change(change)
    return record.with_run(EntryId(change), EntryId(change - 1))


@given(st.lists(changes, max_size=8), st.integers(0, 8))
def test_journal_replayed_from_any_earlier_point_leads_to_the_same_record(
    journal: list[Change | int], start: int
) -> None:
    record = LedgerRecord()
    for change in journal:
        record = apply(record, change)
    again = record
    for change in journal[start:]:
        again = apply(again, change)
    assert again == record


@pytest.mark.parametrize(
    ("before", "grew"),
    [
        (None, True),
        (RECORD, True),
        (RECORD._replace(fenced=False), True),
        (RECORD._replace(last_add_confirmed=EntryId(3), last_entry=EntryId(0)), True),
        (RECORD._replace(access_key_hash=b""), True),
        (RECORD._replace(access_key_hash=b"another"), False),
        (RECORD._replace(last_add_confirmed=EntryId(5)), False),
        (RECORD._replace(last_entry=EntryId(7)), False),
    ],
)
def test_grew_from_tells_what_was_taken_back(before: LedgerRecord | None, *, grew: bool) -> None:
    assert RECORD.grew_from(before) == grew


def test_grew_from_sees_a_fence_that_is_gone() -> None:
    assert not RECORD._replace(fenced=False).grew_from(RECORD)
