"""What the workload takes for a failure is one, and what is none passes (see ``workload``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from spark_ledger.types import LedgerId
from tests.crash.promises import LEDGER_COUNT, Promises
from tests.crash.workload import CONFIG, Workload
from tests.unit.bookie_server.storage.support import Machine, formatted


def with_adds_that_wait() -> tuple[Machine, Workload]:
    """A bookie whose cache is full: of each ledger adds wait for room."""
    machine, workload = Machine(formatted(), CONFIG), Workload(1, Promises())
    while machine.bookie.stats().adds_waiting < 8 * LEDGER_COUNT:
        workload.request(machine)
        machine.settle()
    return machine, workload


@pytest.mark.parametrize("how", ["named", "reused"])
def test_ledger_may_be_back_of_which_an_add_waited_at_its_deletion(how: str) -> None:
    """It is let in by the next flush: of that the deletion knew nothing."""
    machine, workload = with_adds_that_wait()
    for place in range(LEDGER_COUNT):
        workload.delete(machine, place, {how: True})
    machine.flush()
    assert any(map(machine.held, workload.promises.deleted)), "some are back"
    workload.promises.check(machine, "with adds that had waited")


@pytest.mark.parametrize("how", ["named", "reused"])
def test_ledger_is_gone_for_good_of_which_none_waited(how: str) -> None:
    machine, workload = with_adds_that_wait()
    while machine.bookie.stats().adds_waiting:
        machine.flush()
    for place in range(LEDGER_COUNT):
        workload.delete(machine, place, {how: True})
    assert workload.promises.gone == set(range(LEDGER_COUNT))


def test_add_that_waits_for_room_when_the_bookie_closes_is_refused_by_no_fault() -> None:
    machine, workload = with_adds_that_wait()
    machine.close()
    assert workload.promises.refused, "they are answered"
    assert not workload.promises.refused_by_fault()


def test_deletion_that_never_happens_is_seen_where_no_disk_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_stay(
        _storage: LedgerStorage, by_store: Mapping[int, Iterable[LedgerId]], _marks: object
    ) -> dict[int, set[LedgerId]]:
        return {number: set(ledger_ids) for number, ledger_ids in by_store.items()}

    monkeypatch.setattr(LedgerStorage, "_cover", all_stay)
    machine, workload = Machine(formatted(), CONFIG), Workload(1, Promises())
    with pytest.raises(OSError, match="a start may bring ledger 0 back"):
        workload.delete(machine, 0, {"named": True})
    Workload(1, Promises(), faults=True).delete(machine, 0, {"named": True})
