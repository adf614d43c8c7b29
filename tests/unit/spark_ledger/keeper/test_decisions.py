"""What the keeper decides, and for how long it says that owners were gone."""

from __future__ import annotations

import pytest

from spark_ledger.keeper.decisions import Verdict, judge_open, judge_unnamed
from spark_ledger.keeper.gone import GoneOwners
from spark_ledger.limits.keeper import GONE_OWNERS_KEPT
from spark_ledger.types import LedgerMetadata, LedgerState
from tests.unit.spark_ledger.metadata.test_ledgers import ledger

OPEN = ledger(1).with_changes(owner="ab", incarnation=bytes(16))
RECOVERING = OPEN.with_changes(state=LedgerState.IN_RECOVERY)
CLOSED = OPEN.with_changes(state=LedgerState.CLOSED)


@pytest.mark.parametrize(
    ("found", "gone_s", "verdict"),
    [
        (None, None, Verdict.FORGET),
        (CLOSED, None, Verdict.FORGET),
        (CLOSED, 100.0, Verdict.FORGET),
        (OPEN, None, Verdict.WAIT),
        (OPEN, 0.0, Verdict.WAIT),
        (OPEN, 29.9, Verdict.WAIT),
        (OPEN, 30.0, Verdict.RECOVER),
        (RECOVERING, 29.9, Verdict.WAIT),
        (RECOVERING, 31.0, Verdict.RECOVER),
    ],
)
def test_open_ledger_is_recovered_once_its_owner_is_gone_for_the_grace(
    found: LedgerMetadata | None, gone_s: float | None, verdict: Verdict
) -> None:
    assert judge_open(found, gone_s=gone_s, grace_s=30.0) is verdict


@pytest.mark.parametrize(
    ("gone_s", "recovering_s", "verdict"),
    [
        (None, 0.0, Verdict.WAIT),
        (None, 29.9, Verdict.WAIT),
        (None, 30.0, Verdict.RECOVER),
        (29.9, 29.9, Verdict.WAIT),
        (5.0, 40.0, Verdict.RECOVER),
        (40.0, 5.0, Verdict.RECOVER),
    ],
)
def test_ledger_in_recovery_is_recovered_after_the_grace_whoever_lives(
    gone_s: float | None, recovering_s: float, verdict: Verdict
) -> None:
    found = judge_open(RECOVERING, gone_s=gone_s, recovering_s=recovering_s, grace_s=30.0)
    assert found is verdict


@pytest.mark.parametrize(
    ("found", "gone_s", "has_stream", "verdict"),
    [
        (None, None, True, Verdict.FORGET),
        (None, None, False, Verdict.FORGET),
        (CLOSED, None, True, Verdict.WAIT),
        (CLOSED, 29.9, True, Verdict.WAIT),
        (CLOSED, 30.0, True, Verdict.DELETE),
        (OPEN, 1e9, True, Verdict.WAIT),
        (RECOVERING, 1e9, True, Verdict.WAIT),
        (OPEN, None, False, Verdict.DELETE),
        (CLOSED, 0.0, False, Verdict.DELETE),
    ],
)
def test_unnamed_ledger_is_deleted_once_nobody_can_name_it(
    found: LedgerMetadata | None, gone_s: float | None, has_stream: bool, verdict: Verdict
) -> None:
    found_verdict = judge_unnamed(found, gone_s=gone_s, grace_s=30.0, has_stream=has_stream)
    assert found_verdict is verdict


def test_gone_owner_is_gone_for_the_time_between_looks_that_found_it_gone() -> None:
    gone = GoneOwners(step_s_max=20.0)
    assert [gone.gone("a", now) for now in (100.0, 110.0, 125.0)] == [0.0, 10.0, 25.0]
    gone.alive("a")
    assert gone.gone("a", 130.0) == 0.0
    assert gone.gone("a", 140.0) == 10.0


@pytest.mark.parametrize("jump_s", [3.2e7, -3.2e7, 21.0])
def test_clock_that_jumps_or_a_keeper_that_stood_still_makes_nobody_gone(jump_s: float) -> None:
    gone = GoneOwners(step_s_max=20.0)
    gone.gone("a", 1e9)
    assert gone.gone("a", 1e9 + jump_s) == 0.0
    assert gone.gone("a", 1e9 + jump_s + 5.0) == 5.0


def test_next_keeper_goes_on_counting_where_the_last_one_was() -> None:
    first = GoneOwners(20.0)
    first.gone("a", 0.0)
    first.gone("a", 15.0)
    first.gone("b", 15.0)
    saved = first.saved()
    assert saved == {"a": 15.0, "b": 0.0}
    second = GoneOwners(20.0, saved)
    assert second.gone("a", 5000.0) == 15.0, "nobody looked in between"
    second.gone("a", 5003.0)
    second.keep_only(["a"])
    assert second.saved() == {"a": 18.0}


def test_those_gone_longest_are_kept() -> None:
    gone = GoneOwners(1e9)
    for number in range(GONE_OWNERS_KEPT + 3):
        gone.gone(f"{number:06d}", 0.0)
    gone.gone("000001", 7.0)
    saved = gone.saved()
    assert len(saved) == GONE_OWNERS_KEPT and saved["000001"] == 7.0
