"""When a bookie says that its journal stalls. Pure."""

from __future__ import annotations

from spark_ledger.limits.bookie import JOURNAL_STALLED_S


def stall_reason(journal: str, unsynced_s: float) -> str:
    """Why what is added may be late; empty while syncs come in time (rule S15).

    ``unsynced_s``: how long something has waited for the journal without the end of a sync. A disk
    that is slow and goes on is not stalled, however long the queue before it is.
    """
    assert unsynced_s >= 0, f"nothing waits for {unsynced_s} s"
    if unsynced_s < JOURNAL_STALLED_S:
        return ""
    return f"journal {journal} has not synced for {unsynced_s:.1f} s"
