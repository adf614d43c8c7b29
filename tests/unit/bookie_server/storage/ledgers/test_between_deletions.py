"""What comes between the steps of a deletion (rule S17)."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_server.storage.index.base import LogUse
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import Answer, Machine, formatted


def test_request_between_the_steps_of_a_deletion_asks_the_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The index has the record still. An add that it let in would be acknowledged, and dropped."""
    machine = Machine(formatted())
    assert machine.add(2, range(9)) is BookieStatus.OK
    machine.flush()
    machine.keys.missing.add(2)
    store = machine.bookie._storage.store_of(LedgerId(2))
    delete_some = store.delete_some
    answers: list[Answer] = []

    def meanwhile(*of: Any) -> tuple[int, LogUse]:
        answers.extend(machine.start_add(2, [9]) + machine.start_fence(2))
        return delete_some(*of)

    monkeypatch.setattr(store, "delete_some", meanwhile)
    machine.bookie.delete_ledgers([LedgerId(2)])
    machine.settle()
    assert [status for status, _ in answers] == [BookieStatus.UNAUTHORIZED] * 2
