"""How much unfinished work a bookie holds: a byte budget. Pure."""

from __future__ import annotations


class ByteBudget:
    """Bytes taken and given back; over the limit the holder stops accepting."""

    __slots__ = ("_used", "limit")

    def __init__(self, limit: int) -> None:
        assert limit > 0
        self.limit = limit
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes taken and not given back."""
        return self._used

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing more should be accepted. One request may exceed the limit: a budget
        that refused it for ever would never finish it."""
        return self._used >= self.limit

    def take(self, byte_count: int) -> None:
        """Account for accepted work."""
        assert byte_count >= 0
        self._used += byte_count

    def give_back(self, byte_count: int) -> None:
        """Account for finished work."""
        assert 0 <= byte_count <= self._used, "more was given back than was taken"
        self._used -= byte_count
