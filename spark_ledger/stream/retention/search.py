"""Finds the first commit that a limit of retention keeps, in O(log n) reads (rule T15)."""

from __future__ import annotations

from spark_ledger.stream.commit.commit_log import CommitLog, ascending_parts
from spark_ledger.stream.model import Commit, Head, Retention


async def first_kept(
    log: CommitLog, head: Head, retention: Retention, now_ms: int, ahead_ms: int
) -> Commit | None:
    """The first commit that the limits keep, at a time; None if the stream has no live commit.

    A commit goes as soon as one limit allows it. The newest one stays. A commit that is dated later
    than ``ahead_ms``, which is ``now_ms`` or later, has the age of its neighbours.
    """
    if head.earliest_commit == head.next_commit:
        return None
    number = head.earliest_commit
    if retention.age_s is not None:
        # The smaller of two clocks: one that is a year ahead drops nothing (rule T15).
        cutoff_ms = min(now_ms, head.time_ms) - int(retention.age_s * 1000)
        aged = await first_not_before(log, head, cutoff_ms, ahead_ms)
        number = max(number, head.next_commit - 1 if aged is None else aged)
    if retention.size_bytes is not None:
        number = max(number, await log.last_leaving(head, size_bytes=retention.size_bytes))
    if retention.rows is not None:
        number = max(number, await log.last_leaving(head, rows=retention.rows))
    return await log.get(min(number, head.next_commit - 1))


async def first_not_before(log: CommitLog, head: Head, time_ms: int, ahead_ms: int) -> int | None:
    """The first commit not made before a time, or None: all before it were.

    Unlike a reader that starts at a time, this takes the oldest such commit: one commit whose clock
    was a year behind must not drop what was made before it. Commits dated later than ``ahead_ms``
    have a clock that was ahead: they count as made between their neighbours (rule T10).
    """
    ahead: int | None = None
    for low, high in ascending_parts(head):
        last = await log.last_before(head, (low, high), time_ms)
        number = low if last is None else last + 1
        if number == high:
            ahead = None  # all of this part is older, and so is what lies before it
            continue
        if ahead is None or number > low:
            ahead = number
        if (await log.get(number)).time_ms <= ahead_ms:
            return ahead
    return ahead
