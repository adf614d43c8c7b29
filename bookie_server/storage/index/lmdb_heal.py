"""Takes damaged parts out of the index, so that what is left adds up again (rule S24)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from bookie_server.storage.index.lmdb_tables import (
    LEDGER_KEY,
    PROOF,
    ROW,
    opened,
    read_row,
)  # fmt: skip
from bookie_server.storage.index.row_proofs import Proof
from spark_ledger.errors import CorruptionError
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId


class Cursor(Protocol):
    """What is used of a cursor of LMDB over one table; ``False``: it is behind the last item."""

    def first(self) -> bool: ...
    def next(self) -> bool: ...
    def key(self) -> bytes: ...
    def item(self) -> tuple[bytes, bytes]: ...
    def delete(self) -> bool: ...


def drop_damaged_rows(
    path: Path, cursor: Cursor, proofs: Cursor
) -> tuple[dict[LedgerId, EntryId], Proof]:
    """Take out rows of ledgers that do not add up to their proofs, and proofs that are damaged.

    Of each such ledger the highest entry that a good row named, and the proof of all rows that are
    left. Everything is read one after the other: no search is led astray by a damaged key.
    """
    counted: dict[LedgerId, Proof] = {}
    last: dict[LedgerId, EntryId] = {}
    more = cursor.first()
    while more:
        key, stored = cursor.item()
        ledger_id = LedgerId(LEDGER_KEY.unpack_from(key)[0])
        try:
            opened(key, stored, ROW.size, "a row", path)
            row = read_row(key, stored, path)
        except CorruptionError:
            more = cursor.delete() and bool(cursor.key())
            continue
        counted[ledger_id] = counted.get(ledger_id, Proof()).replacing(None, stored)
        last[ledger_id] = max(last.get(ledger_id, NO_ENTRY), row.last_entry)
        more = cursor.next()
    stated = _good_proofs(path, proofs)
    bad = {each for each in counted.keys() | stated if counted.get(each) != stated.get(each)}
    more = cursor.first()
    while more:
        if LedgerId(LEDGER_KEY.unpack_from(cursor.key())[0]) in bad:
            more = cursor.delete() and bool(cursor.key())
        else:
            more = cursor.next()
    total = Proof()
    for ledger_id in counted.keys() - bad:
        total = total.with_others(counted[ledger_id])
    return {each: last.get(each, NO_ENTRY) for each in bad}, total


def _good_proofs(path: Path, cursor: Cursor) -> dict[LedgerId, Proof]:
    """The proofs that are whole; the others are taken out."""
    found: dict[LedgerId, Proof] = {}
    more = cursor.first()
    while more:
        key, stored = cursor.item()
        try:
            value = opened(key, stored, PROOF.size, "a proof", path)
        except CorruptionError:
            more = cursor.delete() and bool(cursor.key())
            continue
        found[LedgerId(LEDGER_KEY.unpack(key)[0])] = Proof(*PROOF.unpack(value))
        more = cursor.next()
    return found
