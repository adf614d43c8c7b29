"""Why a bookie is registered as read-only, and when its disks count as stalled. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from spark_ledger.limits.bookie import JOURNAL_STALLED_S, LEDGERS_STALLED_S


class Cause(StrEnum):
    """Why new ledgers and writers should choose other bookies; the label of a metric."""

    FAILED = "failed"
    """The storage failed, or a flush did: what is added might fill the memory."""

    LEAVING = "leaving"
    """An operator takes it out of the cluster; adds of writers are refused."""

    FULL = "disks_full"
    """A disk is above its high water mark; adds of writers are refused."""

    JOURNAL_STALLED = "journal_stalled"
    """Nothing becomes durable; adds wait, and may be durable yet."""

    LEDGERS_STALLED = "ledgers_stalled"
    """Adds wait for a flush that does not move on."""


class Stall(NamedTuple):
    """A disk on which nothing moves, while adds wait for it."""

    cause: Cause
    reason: str


def stall(
    journal: str, unsynced_s: float, ledgers: str, unmoved_s: float, *, adds_wait: bool
) -> Stall | None:
    """Why what is added may be late; None while disks move on (rule S15).

    ``unsynced_s``: how long something has waited for the journal without the end of a sync. A disk
    that is slow and goes on is not stalled, however long the queue before it is. ``unmoved_s``: how
    long the flush of directory ``ledgers`` has made no progress. That stalls nobody while the write
    cache has room: only adds that wait for a flush (``adds_wait``) are late.
    """
    assert unsynced_s >= 0, f"nothing waits for {unsynced_s} s"
    assert unmoved_s >= 0, f"no flush stands still for {unmoved_s} s"
    if unsynced_s >= JOURNAL_STALLED_S:
        reason = f"journal {journal} has not synced for {unsynced_s:.1f} s"
        return Stall(Cause.JOURNAL_STALLED, reason)
    if adds_wait and unmoved_s >= LEDGERS_STALLED_S:
        reason = f"the flush of {ledgers} has not moved on for {unmoved_s:.1f} s, and adds wait"
        return Stall(Cause.LEDGERS_STALLED, reason)
    return None


def why_read_only(
    failure: str, full: str, stalled: Stall | None, leaving: str = ""
) -> dict[Cause, str]:
    """The causes that hold now, each with its reason, the most lasting first; none of them: the
    bookie is writable. ``failure``, ``leaving`` and ``full`` are reasons, or empty."""
    causes = {Cause.FAILED: failure, Cause.LEAVING: leaving, Cause.FULL: full}
    if stalled is not None:
        causes[stalled.cause] = stalled.reason
    return {cause: reason for cause, reason in causes.items() if reason}
