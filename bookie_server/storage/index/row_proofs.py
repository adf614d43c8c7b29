"""Checksums of an index's values, their sums, and the rows that were found to add up (rule S9)."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from threading import Lock
from typing import Final, NamedTuple

from google_crc32c import value as crc32c_value

from spark_ledger.limits import MIB
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId

CHECKSUM = struct.Struct(">I")
_SUM_MASK: Final = 2**64 - 1
ROWS_KEPT_BYTES_MAX: Final = 16 * MIB
"""First entries of checked rows that are kept in memory, eight bytes each: two million. Beyond that
all are forgotten and checked anew; what is asked again and again is there again at once. Each of
several directories keeps its part of it, and a ledger that is larger is kept alone."""

_LEDGER_BYTES: Final = 300
"""What a ledger takes beside its rows."""


def sealed(key: bytes, value: bytes) -> bytes:
    """The stored form of a value: with a checksum, of its key too, so no value fits another key."""
    return value + CHECKSUM.pack(crc32c_value(key + value))


def checksum(stored: bytes) -> int:
    """The checksum in a stored form."""
    return int(CHECKSUM.unpack_from(stored, len(stored) - CHECKSUM.size)[0])


class Proof(NamedTuple):
    """How many values there are, and the sum of their checksums modulo 2^64."""

    values: int = 0
    total: int = 0

    def replacing(self, old: bytes | None, new: bytes) -> Proof:
        """The proof once a stored value replaces ``old``, or is new (None)."""
        assert self.values > 0 or old is None, "a value is replaced that was never counted"
        total = self.total + checksum(new) - (0 if old is None else checksum(old))
        return Proof(self.values + (old is None), total & _SUM_MASK)

    def without(self, old: bytes) -> Proof:
        """The proof once a stored value is gone."""
        assert self.values > 0, "a value is taken out that was never counted"
        return Proof(self.values - 1, (self.total - checksum(old)) & _SUM_MASK)

    def with_others(self, others: Proof) -> Proof:
        """The proof of these values and others."""
        return Proof(self.values + others.values, (self.total + others.total) & _SUM_MASK)


ReadRows = Callable[[EntryId], tuple[Proof, "array[int]"]]
"""Reads the rows of a ledger behind an entry, one after the other: their proof, their first ids."""


class VerifiedRows:
    """First entries of all rows of a ledger, once they added up to its proof; *any thread*.

    A ledger whose proof has not changed has not changed itself. One that has grown is read from
    where it ended: if what is new adds up with what was there, all of it does. So a denial costs
    what was written since the last one, and not what the ledger holds.
    """

    def __init__(self, directories: int = 1) -> None:
        """``directories``: so many indexes share what is kept."""
        self._directories = directories
        # Changed under _lock; read without. Values are put in whole and never changed.
        self._known: dict[LedgerId, tuple[Proof, array[int]]] = {}
        self._bytes = 0
        # One thread reads rows at a time: several would each do the same work.
        self._lock = Lock()

    def firsts(self, ledger_id: LedgerId, proof: Proof, read: ReadRows) -> array[int] | None:
        """The first entries, ascending; None if the rows do not add up to ``proof``."""
        known = self._known.get(ledger_id)
        if known is not None and known[0] == proof:
            return known[1]
        with self._lock:
            known = self._known.get(ledger_id)
            if known is not None and known[1]:
                before, firsts = known
                if before == proof:
                    return firsts
                more, more_firsts = read(EntryId(firsts[-1]))
                if before.with_others(more) == proof:
                    return self._keep(ledger_id, proof, firsts + more_firsts)
            counted, firsts = read(NO_ENTRY)
            return self._keep(ledger_id, proof, firsts) if counted == proof else None

    def _keep(self, ledger_id: LedgerId, proof: Proof, firsts: array[int]) -> array[int]:
        size = _size_bytes(firsts)
        before = self._known.pop(ledger_id, None)
        if before is not None:
            self._bytes -= _size_bytes(before[1])
        if size > ROWS_KEPT_BYTES_MAX:
            return firsts
        if self._bytes + size > ROWS_KEPT_BYTES_MAX // self._directories:
            self._known, self._bytes = {}, 0
        self._known[ledger_id] = (proof, firsts)
        self._bytes += size
        return firsts

    @property
    def size_bytes(self) -> int:
        """What is kept, in bytes; *any thread*."""
        return self._bytes


def _size_bytes(firsts: array[int]) -> int:
    return _LEDGER_BYTES + len(firsts) * firsts.itemsize
