"""Every schedule of the small scopes keeps the promises, and the search sees known defects."""

from __future__ import annotations

import pytest

from spark_ledger.protocol.events import ReadEntries
from spark_ledger.protocol.last_confirmed import LastConfirmedRead
from spark_ledger.protocol.recovery import RecoveryMachine
from spark_ledger.types import EntryId
from tests.effort import SCOPES, in_shares
from tests.exhaustive.scopes import QUICK, Scope, named
from tests.exhaustive.search import Search

STATES_MAX = 1_000_000

# What each scope has to reach, so that a search that stops exploring does not pass.
STATES_MIN = {
    "pair": 60_000,
    "pair-ack-2": 50_000,
    "pair-crash": 50_000,
    "pair-timeout": 60_000,
    "three-false-fence": 4_000,
}


@pytest.mark.parametrize("scope", in_shares(QUICK, SCOPES), ids=lambda scope: scope.name)
def test_every_schedule_keeps_the_promises(scope: Scope) -> None:
    found = Search(scope).run(STATES_MAX)
    assert not found.violation, "\n".join([found.violation, *found.trace])
    assert found.complete, f"{scope}: more than {STATES_MAX} states"
    assert found.states >= STATES_MIN.get(scope.name, 10_000)
    assert found.ends > 50


def test_recovery_reads_that_do_not_fence_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first defect that the TLA+ specification of BookKeeper found."""
    read = RecoveryMachine._read

    def read_without_fence(self: RecoveryMachine, lane: int, bookie_index: int) -> ReadEntries:
        return read(self, lane, bookie_index)._replace(fence=False)

    monkeypatch.setattr(RecoveryMachine, "_read", read_without_fence)
    for name in ("pair-ack-2", "stripe"):
        found = Search(named(name)).run(STATES_MAX)
        assert found.violation.startswith("I1: "), name
        assert found.trace[0].strip().startswith("1 ")


def test_recovery_from_below_the_last_fragment_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second: bookies of a new ensemble know no LAC, and an older fragment is changed."""
    monkeypatch.setattr(LastConfirmedRead, "floor", EntryId(-1))
    found = Search(named("pair-change")).run(STATES_MAX)
    assert "Recovery starts too low." in found.violation


def test_the_same_search_sees_the_same_states() -> None:
    scope = named("three-crash")
    first, second = Search(scope).run(STATES_MAX), Search(scope).run(STATES_MAX)
    assert (first.states, first.transitions) == (second.states, second.transitions)
