"""When a journal counts as stalled."""

from __future__ import annotations

import pytest

from bookie_server.core.journal_stall import stall_reason
from spark_ledger.limits.bookie import JOURNAL_STALLED_S


@pytest.mark.parametrize("unsynced_s", [0.0, JOURNAL_STALLED_S * 0.99])
def test_journal_that_syncs_in_time_does_not_stall(unsynced_s: float) -> None:
    assert stall_reason("/disk/journal", unsynced_s) == ""


def test_journal_that_has_not_synced_for_its_time_stalls() -> None:
    reason = stall_reason("/disk/journal", JOURNAL_STALLED_S)
    assert reason == f"journal /disk/journal has not synced for {JOURNAL_STALLED_S:.1f} s"
