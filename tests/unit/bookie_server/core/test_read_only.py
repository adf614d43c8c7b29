"""When disks count as stalled, and what a bookie says of why it is read-only."""

from __future__ import annotations

import pytest

from bookie_server.core.read_only import Cause, Stall, stall, why_read_only
from spark_ledger.limits.bookie import JOURNAL_STALLED_S, LEDGERS_STALLED_S

STALLED = Stall(Cause.LEDGERS_STALLED, "it stands still")


def of(unsynced_s: float = 0.0, unmoved_s: float = 0.0, adds_wait: bool = True) -> Stall | None:
    return stall("/disk/journal", unsynced_s, "/disk/ledgers", unmoved_s, adds_wait=adds_wait)


@pytest.mark.parametrize("share", [0.0, 0.99])
def test_disks_that_move_on_in_time_do_not_stall(share: float) -> None:
    assert of(JOURNAL_STALLED_S * share, LEDGERS_STALLED_S * share) is None


def test_journal_that_has_not_synced_for_its_time_stalls() -> None:
    reason = f"journal /disk/journal has not synced for {JOURNAL_STALLED_S:.1f} s"
    assert of(JOURNAL_STALLED_S, 100.0) == Stall(Cause.JOURNAL_STALLED, reason)


def test_flush_that_stands_still_stalls_only_adds_that_wait_for_it() -> None:
    assert of(0.0, LEDGERS_STALLED_S, adds_wait=False) is None
    found = of(0.0, LEDGERS_STALLED_S)
    assert found is not None and found.cause is Cause.LEDGERS_STALLED
    assert found.reason.startswith("the flush of /disk/ledgers has not moved on for")


def test_bookie_is_read_only_for_every_cause_at_once_and_says_the_most_lasting_first() -> None:
    assert why_read_only("", "", None) == {}
    causes = why_read_only("broken", "disk full: /a", STALLED)
    assert list(causes) == [Cause.FAILED, Cause.FULL, Cause.LEDGERS_STALLED]
    assert why_read_only("", "", STALLED) == {Cause.LEDGERS_STALLED: "it stands still"}
    assert why_read_only("", "disk full: /a", None) == {Cause.FULL: "disk full: /a"}
