"""Which entries of a ledger are held, by page: from an entry on, so many stretches. Pure.

A striped ledger (E > WQ) has a stretch for each stripe, so a list of all would take as much memory
as the ledger has entries. Runs and rows are taken in order, only as many as a page needs.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from bookie_server.storage.index.base import IndexRow
from bookie_server.storage.ledgers.recent_blocks import RecentIds
from bookie_server.storage.ledgers.stretches import stretches
from spark_ledger.bookie_api import EntryPage
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId

Range = tuple[EntryId, EntryId]


def page_of(
    ranges: Iterable[Range], first: EntryId, limit: int, end: EntryId | None = None
) -> EntryPage:
    """Ascending stretches, which may overlap, as one page of at most ``limit`` from ``first`` on.

    ``end``: the stretches are known up to there and no further; None: they are all that is held.
    """
    assert limit > 0 and (end is None or end > first), "a page goes on"
    merged: list[Range] = []
    for low, high in ranges:
        if end is not None and low >= end:
            break
        if high < first:
            continue
        low = max(low, first)
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        elif len(merged) == limit:
            return EntryPage(merged, low)
        else:
            merged.append((low, high))
    if end is not None and merged and merged[-1][1] >= end:
        merged[-1] = (merged[-1][0], EntryId(end - 1))
    return EntryPage(merged, end)


def ascending(runs: Iterable[EntryRun], others: Iterable[Range] = ()) -> Iterator[Range]:
    """Stretches of all these runs and ``others``, which ascend, by their first entries. A run is
    looked into when it is its turn, and not before."""
    return heapq.merge(_ascending(runs), others)


def _ascending(runs: Iterable[EntryRun]) -> Iterator[Range]:
    waiting: list[tuple[EntryId, EntryId]] = []
    for run in sorted(runs, key=lambda each: each.first_entry):
        while waiting and waiting[0][0] <= run.first_entry:
            yield heapq.heappop(waiting)
        for each in stretches(run.ids()):
            heapq.heappush(waiting, each)
    while waiting:
        yield heapq.heappop(waiting)


def stored_ranges(
    rows: Sequence[IndexRow],
    first: EntryId,
    limit: int,
    read: Callable[[IndexRow], EntryRun],
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[list[Range], EntryId | None]:
    """Stretches of entries from ``first`` on that rows of a ledger name, and up to where that is;
    None: of them all. So many rows, and no other one once there are so many stretches or it is
    late.

    ``read`` brings the block of a row with gaps: of a striped ledger that is all its bytes. The
    first row is always looked into, or nobody got on.
    """
    found: list[Range] = []
    recent = RecentIds(read)
    for number, row in enumerate(rows):
        if number and (number == limit or len(found) >= limit or is_late()):
            return found, row.first_entry
        end = rows[number + 1].first_entry if number + 1 < len(rows) else row.last_entry + 1
        if row.is_sparse:
            ids = recent.of(row)
            begin = max(row.first_entry, first)
            found += stretches(ids[bisect_left(ids, begin) : bisect_left(ids, end)])
        else:
            found.append((row.first_entry, EntryId(min(row.last_entry, end - 1))))
    return found, None
