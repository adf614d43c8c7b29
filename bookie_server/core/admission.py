"""How much unfinished work a bookie holds, in bytes. Pure."""

from __future__ import annotations


class BytesInFlight:
    """Bytes taken and given back. Who hands work over stops while there are too many."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    @property
    def count(self) -> int:
        """Bytes taken and not given back."""
        return self._count

    def acquire(self, byte_count: int) -> None:
        """Account for accepted work."""
        assert byte_count >= 0
        self._count += byte_count

    def release(self, byte_count: int) -> None:
        """Account for finished work."""
        assert 0 <= byte_count <= self._count, "more was given back than was taken"
        self._count -= byte_count
