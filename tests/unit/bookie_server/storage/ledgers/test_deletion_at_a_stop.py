"""A bookie that stops ends a large deletion between two steps, and closes its index behind it."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from bookie_server.storage.index.base import LogUse
from bookie_server.storage.ledgers import directory_store
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import Machine, expected, formatted, small_config


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Each step of a deletion deletes one ledger."""
    monkeypatch.setattr(directory_store, "DELETED_LEDGERS_AT_ONCE", 1)
    made = Machine(formatted(), small_config())
    for ledger_id in range(2, 10):
        assert made.add(ledger_id, range(3)) is BookieStatus.OK
    made.flush()
    return made


def delete_all(machine: Machine) -> None:
    machine.bookie.delete_ledgers(map(LedgerId, range(2, 10)))


def test_stop_ends_a_deletion_behind_the_step_that_runs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, steps = machine.bookie._storage, list[LedgerId]()
    store = storage.store_of(LedgerId(2))
    delete_some = store.delete_some

    def step(ledger_ids: list[LedgerId], *of: Any) -> tuple[int, LogUse]:
        steps.append(ledger_ids[0])
        if len(steps) == 2:
            storage.stop()
        return delete_some(ledger_ids, *of)

    monkeypatch.setattr(store, "delete_some", step)
    with pytest.raises(OSError, match="the bookie stops") as caught:
        delete_all(machine)
    assert caught.value.errno == errno.ECANCELED
    assert steps == [2, 4]
    assert [each.ledger_id for each in machine.bookie.held_ledgers(-1, 9)] == [3, 5, 6, 7, 8, 9]
    with pytest.raises(OSError, match="the bookie stops"):
        delete_all(machine)
    files = store._file_system
    machine.close()
    again = Machine(files, small_config())
    assert again.held(6) == expected(6, range(3)) and again.held(3) == expected(3, range(3))


def test_close_waits_for_the_step_of_a_deletion_that_runs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB would wait for its transaction, and not let it end: a stop that never comes to one."""
    storage, order = machine.bookie._storage, list[str]()
    store, ended = storage.store_of(LedgerId(2)), list[OSError]()
    begun, go_on = threading.Event(), threading.Event()
    delete_some, close_store = store.delete_some, store.close

    def step(*of: Any) -> tuple[int, LogUse]:
        begun.set()
        assert go_on.wait(60), "the test ends the step"
        found = delete_some(*of)
        order.append("step")
        return found

    def closing() -> None:
        order.append("close")
        close_store()

    def delete() -> None:
        try:
            delete_all(machine)
        except OSError as error:
            ended.append(error)

    monkeypatch.setattr(store, "delete_some", step)
    monkeypatch.setattr(store, "close", closing)
    monkeypatch.setattr(storage, "flush", lambda: None)  # as behind a journal that has failed
    threads = [threading.Thread(target=each, daemon=True) for each in (delete, storage.close)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    threads[1].join(0.3)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert order == ["step", "close"]
    assert [each.errno for each in ended] == [errno.ECANCELED]
