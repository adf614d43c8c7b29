"""Stretches of entry ids: from and to, both included. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ledger.types import EntryId


def stretches(ids: Sequence[int]) -> list[tuple[EntryId, EntryId]]:
    """Stretches of consecutive ids."""
    if isinstance(ids, range):
        return [(EntryId(ids[0]), EntryId(ids[-1]))]
    ranges: list[tuple[EntryId, EntryId]] = []
    for entry_id in map(EntryId, ids):
        if ranges and ranges[-1][1] == entry_id - 1:
            ranges[-1] = (ranges[-1][0], entry_id)
        else:
            ranges.append((entry_id, entry_id))
    return ranges
