"""A set of ledger ids that takes bits: a million ledgers are a megabyte, not a hundred."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spark_ledger.types import LedgerId

_CHUNK_IDS: Final = 1024
"""Ids of a cluster ascend, and a bookie has a share of them: most chunks hold many."""


class LedgerIdSet:
    """One thread changes it; *any thread* may ask whether an id is in it."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}
        """A bit for each id of a chunk. A chunk without bits is not kept."""

    def __contains__(self, ledger_id: LedgerId) -> bool:
        chunk, bit = divmod(ledger_id, _CHUNK_IDS)
        bits = self._chunks.get(chunk)
        return bits is not None and bool(bits[bit >> 3] >> (bit & 7) & 1)

    def add(self, ledger_id: LedgerId) -> None:
        """Put an id in."""
        chunk, bit = divmod(ledger_id, _CHUNK_IDS)
        bits = self._chunks.get(chunk)
        if bits is None:
            bits = bytearray(_CHUNK_IDS // 8)
            bits[bit >> 3] = 1 << (bit & 7)
            self._chunks[chunk] = bits  # with its bit: others may be looking
        else:
            bits[bit >> 3] |= 1 << (bit & 7)

    def update(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Put ids in."""
        for ledger_id in ledger_ids:
            self.add(ledger_id)

    def difference_update(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Take ids out; those that are not in it do not matter."""
        for ledger_id in ledger_ids:
            chunk, bit = divmod(ledger_id, _CHUNK_IDS)
            bits = self._chunks.get(chunk)
            if bits is None:
                continue
            bits[bit >> 3] &= ~(1 << (bit & 7))
            if not any(bits):
                del self._chunks[chunk]

    @property
    def size_bytes(self) -> int:
        """What it takes, about."""
        return len(self._chunks) * _CHUNK_BYTES


_CHUNK_BYTES: Final = _CHUNK_IDS // 8 + 200
"""The bits, their object, and their place in the dictionary."""
