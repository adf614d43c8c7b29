"""Where the rows of a ledger's index go when new entries meet stored ones. Pure.

The index has rows (first entry -> block). For a row with key k, followed by a row with key n, and
an entry e with k <= e < n: either the row's block contains e, or e is not stored. Entries never
change, so entries that are stored already are dropped (rule S8). The others fall into *pieces*:
each a stretch of new entries with no stored entry between them. A piece gets a row at its first
entry. If the block that covered that range also has entries behind the piece, it gets a second row
where they resume.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class StoredRow(NamedTuple):
    """A row: its key, and the ids of its block, ascending (any of them, also out of its reach)."""

    key: int
    ids: Sequence[int]


class Piece(NamedTuple):
    """New entries number ``start`` up to, not including, ``stop``. Behind them row
    ``resumed_row`` goes on at entry ``resume_at``; -1: none does."""

    start: int
    stop: int
    resumed_row: int = -1
    resume_at: int = -1


def plan_insert(ids: Sequence[int], rows: Sequence[StoredRow], end: int | None) -> list[Piece]:
    """The pieces of new ``ids`` (ascending) among ``rows``.

    ``rows`` are, ascending, the last row at or below ``ids[0]``, if there is one, and all rows up
    to ``ids[-1]``; ``end`` is the key of the row after them, or None. ``resumed_row`` is an index
    into ``rows``.
    """
    assert isinstance(ids, range) or all(a < b for a, b in pairwise(ids)), "ids are ascending"
    assert all(a.key < b.key for a, b in pairwise(rows)), "rows are ascending"
    assert end is None or not rows or end > rows[-1].key, "the end is behind the rows"
    pieces: list[Piece] = []
    start = 0
    while start < len(ids):
        entry_id = ids[start]
        row = bisect_right(rows, entry_id, key=lambda stored: stored.key) - 1
        row_end = rows[row + 1].key if row + 1 < len(rows) else end
        if row < 0:
            stop = len(ids) if row_end is None else bisect_left(ids, row_end, start)
            pieces.append(Piece(start, stop))
            start = stop
            continue
        stored = rows[row].ids
        following = bisect_left(stored, entry_id)
        if following < len(stored) and stored[following] == entry_id:
            start += 1  # stored already
            continue
        resume_at = stored[following] if following < len(stored) else None
        if resume_at is not None and row_end is not None and resume_at >= row_end:
            resume_at = None
        barrier = resume_at if resume_at is not None else row_end
        stop = len(ids) if barrier is None else bisect_left(ids, barrier, start)
        assert stop > start, "a piece holds the entry it begins with"
        if resume_at is None:
            pieces.append(Piece(start, stop))
        else:
            assert resume_at > ids[stop - 1], "the row resumes behind the piece"
            pieces.append(Piece(start, stop, row, resume_at))
        start = stop
    assert all(a.stop <= b.start for a, b in pairwise(pieces)), "no entry is stored twice (rule S8)"
    return pieces
