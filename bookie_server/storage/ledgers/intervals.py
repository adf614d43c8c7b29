"""Where the rows of a ledger's index go when new entries meet stored ones. Pure.

The index has rows (first entry -> block). For a row with key k, followed by a row with key n, and
an entry e with k <= e < n: either the row's block contains e, or e is not stored. Entries never
change, so entries that are stored already are dropped, and the others fall into *pieces*: each a
stretch of new entries with no stored entry between them. A piece gets a row at its first entry.
If the row that stood there before also has entries behind the piece, it gets a second row where
they resume, pointing to the same block.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class StoredRow(NamedTuple):
    """A row: its key, and the ids of its block, ascending (any of them, also out of its reach)."""

    key: int
    ids: Sequence[int]


class Piece(NamedTuple):
    """New entries at places start up to, not including, stop; a row may resume behind them."""

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
    pieces: list[Piece] = []
    place = 0
    while place < len(ids):
        entry_id = ids[place]
        row = bisect_right(rows, entry_id, key=lambda stored: stored.key) - 1
        row_end = rows[row + 1].key if row + 1 < len(rows) else end
        if row < 0:
            stop = len(ids) if row_end is None else bisect_left(ids, row_end, place)
            pieces.append(Piece(place, stop))
            place = stop
            continue
        stored = rows[row].ids
        next_place = bisect_left(stored, entry_id)
        if next_place < len(stored) and stored[next_place] == entry_id:
            place += 1  # stored already
            continue
        resume_at = stored[next_place] if next_place < len(stored) else None
        if resume_at is not None and row_end is not None and resume_at >= row_end:
            resume_at = None
        barrier = resume_at if resume_at is not None else row_end
        stop = len(ids) if barrier is None else bisect_left(ids, barrier, place)
        if resume_at is None:
            pieces.append(Piece(place, stop))
        else:
            pieces.append(Piece(place, stop, row, resume_at))
        place = stop
    return pieces
