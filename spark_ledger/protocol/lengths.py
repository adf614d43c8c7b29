"""Cumulative payload bytes of a ledger at each of its newest entries."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice


class Lengths:
    """Cumulative payload bytes at each entry, from the last one that nobody asks about any more."""

    _FORGET_AT_ONCE = 4096

    def __init__(self) -> None:
        self._base = -1
        self._at = [0]

    def extend(self, sizes: Sequence[int]) -> None:
        self._at.extend(islice(accumulate(sizes, initial=self._at[-1]), 1, None))

    @property
    def newest(self) -> int:
        return self._at[-1]

    def at(self, entry_id: int) -> int:
        assert entry_id >= self._base, "the length of an entry that was forgotten"
        return self._at[entry_id - self._base]

    def forget_below(self, entry_id: int) -> None:
        count = entry_id - self._base
        if count >= self._FORGET_AT_ONCE:
            del self._at[:count]
            self._base = entry_id
