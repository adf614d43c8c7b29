"""What comes between the steps of a deletion (rule S17), and what follows deletions and flushes."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_server.storage.index.base import LogUse
from bookie_server.storage.ledgers import directory_store, ledger_storage
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import LEDGERS, Answer, Machine, formatted


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


@pytest.mark.parametrize("fails", [False, True])
def test_what_died_is_looked_at_soon_also_behind_a_deletion_that_failed(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Else the space of what went comes back at the next look of the cadence."""
    machine = Machine(formatted())
    for ledger_id in (2, 3):
        assert machine.add(ledger_id, range(9)) is BookieStatus.OK
    machine.flush()
    storage = machine.bookie._storage
    wanted = storage.compactor._wanted

    def broken(*_of: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    wanted.clear()
    with monkeypatch.context() as patch:
        if fails:
            patch.setattr(storage._stores[0], "delete_some", broken)
        with pytest.raises(OSError, match="Input") if fails else nullcontext():
            machine.bookie.delete_ledgers([LedgerId(2), LedgerId(3)])
    assert wanted.is_set()
    assert [each.ledger_id for each in machine.bookie.held_ledgers(-1, 9)] == [2] * fails


def test_flush_counts_as_standing_still_from_its_own_begin_and_not_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bookie that was idle for an hour would tell of a stall at its next flush."""
    machine = Machine(formatted())
    storage = machine.bookie._storage
    now = [5000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(ledger_storage, "time", clock)
    monkeypatch.setattr(directory_store, "time", clock)
    seen: list[tuple[str, float]] = []
    for store in storage._stores:

        def flush(*of: Any, flush: Any = store.flush) -> bool:
            now[0] += 3.0
            seen.append(storage.unmoved)
            return bool(flush(*of))

        monkeypatch.setattr(store, "flush", flush)
    for _again in range(2):
        assert machine.add(2, [len(machine.held(2))]) is BookieStatus.OK
        assert storage.unmoved == ("", 0.0)
        machine.flush()
        now[0] += 3600.0
    assert seen == [(str(directory), 3.0) for directory in LEDGERS] * 2
    assert storage.unmoved == ("", 0.0)
