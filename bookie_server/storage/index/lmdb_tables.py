"""What stands in the index in LMDB, table by table: keys, values, checksums.

table     key (big endian)                  value (big endian)
rows      ledger id (8), first entry (8)    log id (4), offset (4), length (4), flags (1:
                                            bit 0 = sparse, bit 1 = part), last entry (8),
                                            checksum (4)
ledgers   ledger id (8)                     flags (1: bit 0 = fenced, bit 1 = has access key),
                                            SHA-256 of the access key or zeros (32),
                                            last add confirmed (8), last entry (8), checksum (4)
proofs    ledger id (8)                     count (8) and sum (8) of the checksums of the ledger's
                                            rows, checksum (4)
meta      "mark"                            the checkpoint mark, see ``mark``, checksum (4)
          "run log"                         the same of the run log, once there is one
          "ledgers"                         count (8) and sum (8) of the checksums of all ledgers,
                                            checksum (4)
          "rows"                            the same of all rows
          "owner"                           bookie, directory and cluster that the index is of
                                            (UTF-8), since the first commit of a program that
                                            knows this, checksum (4)
          "lacks"                           1 if the list of what is lacking has something (1), once
                                            it had, checksum (4)
          "deleted"                         highest id of a ledger that was deleted (8), once one
                                            was, checksum (4)
          "logs"                            count (8) and sum (8) of the checksums of all logs, the
                                            value of "rows" that they belong to (16), highest id of
                                            an entry log that was ever named (4), checksum (4)
logs      log id (4)                        rows that name the log (8), bytes of their records (8),
                                            checksum (4)

LMDB has no checksums: a flipped bit can change a value, or hide keys. A checksum (CRC32C of key and
value) makes a changed value an error. A key that is not found proves nothing by itself, and a
bookie that denied an entry it holds would make a recovery cut a ledger. So the index proves what it
denies (rule S9):

- An entry is denied only if the checksums of all rows of its ledger sum up to the ledger's proof.
  That is checked when a ledger is asked for, and then of what was added to it since.
- When the index is opened, the ledgers are summed up against their total, and so are the proofs.
  The ids of the ledgers stay in memory: one that cannot be found later is an error as well.

Sums are modulo 2^64, so a row that replaces another changes its proof by the difference.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from google_crc32c import value as crc32c_value

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.index.base import BlockLocation, IndexRow
from bookie_server.storage.index.id_set import LedgerIdSet
from bookie_server.storage.index.row_proofs import CHECKSUM, Proof, checksum, sealed
from spark_ledger.errors import CorruptionError
from spark_ledger.types import EntryId, LedgerId

KEY = struct.Struct(">QQ")
LEDGER_KEY = struct.Struct(">Q")
LOG_KEY = struct.Struct(">I")
ROW = struct.Struct(">IIIBq")
LEDGER_RECORD = struct.Struct(">B32sqq")
PROOF = struct.Struct(">QQ")
LOG_USE = struct.Struct(">QQ")
LOGS = struct.Struct(">QQQQI")
MARK_KEY: Final = b"mark"
RUN_LOG_MARK_KEY: Final = b"run log"
LEDGERS_KEY: Final = b"ledgers"
ROWS_KEY: Final = b"rows"
LOGS_KEY: Final = b"logs"
DELETED_KEY: Final = b"deleted"
OWNER_KEY: Final = b"owner"
LACKS_KEY: Final = b"lacks"
SPARSE: Final = 1
PART: Final = 2
FENCED: Final = 1
HAS_KEY: Final = 2
PUT_AT_ONCE: Final = 500
"""Values that are put by one call, which keeps the interpreter's lock: about a millisecond."""


@dataclass(slots=True)
class LmdbTables:
    """The open environment, and what of it is in memory."""

    path: Path
    env: Any
    rows: Any
    ledgers: Any
    proofs: Any
    meta: Any
    logs: Any
    known: LedgerIdSet = field(default_factory=LedgerIdSet)
    """Ledgers with a record. The flush thread adds after its commit, and takes out before it; any
    thread asks, before and after its own transaction (see ``LmdbIndex.ledger_record``)."""
    with_rows: LedgerIdSet = field(default_factory=LedgerIdSet)
    """Flush thread: ledgers with rows. A run may be stored without its ledger's record."""
    notes: dict[bytes, bytes] = field(default_factory=dict)
    """Values of ``meta`` that each commit puts. Any thread sets them; none is taken out."""
    logs_are_known: bool = True
    """Any thread sets it false where the table of logs does not add up: the next commit counts."""

    def stored_note(self, key: bytes) -> bytes | None:
        """What the last commit has noted; None if it was nothing. Raises LMDB's errors."""
        with self.env.begin(db=self.meta) as transaction:
            stored = transaction.get(key)
        if stored is None:
            return None
        return opened(key, stored, len(stored) - CHECKSUM.size, "a note", self.path)


def opened(key: bytes, stored: bytes, size: int, what: str, path: Path) -> bytes:
    """The value of a stored form. Raises CorruptionError if size or checksum is wrong."""
    value = stored[: -CHECKSUM.size]
    if len(value) != size or crc32c_value(key + value) != checksum(stored):
        raise CorruptionError(f"index {path} is damaged: wrong checksum of {what}")
    return value


def read_row(key: bytes, stored: bytes, path: Path) -> IndexRow:
    value = opened(key, stored, ROW.size, "a row", path)
    _ledger_id, first_entry = KEY.unpack(key)
    log_id, offset, length, flags, last_entry = ROW.unpack(value)
    return IndexRow(
        EntryId(first_entry),
        EntryId(last_entry),
        BlockLocation(log_id, offset, length),
        is_sparse=bool(flags & SPARSE),
        is_part=bool(flags & PART),
    )


def read_ledger_record(key: bytes, stored: bytes, path: Path) -> LedgerRecord:
    value = opened(key, stored, LEDGER_RECORD.size, "a ledger", path)
    flags, key_hash, last_add_confirmed, last_entry = LEDGER_RECORD.unpack(value)
    return LedgerRecord(
        key_hash if flags & HAS_KEY else b"",
        bool(flags & FENCED),
        EntryId(last_add_confirmed),
        EntryId(last_entry),
    )


def read_proof(transaction: Any, table: Any, key: bytes, path: Path) -> Proof:
    stored = transaction.get(key, db=table)
    if stored is None:
        return Proof()
    return Proof._make(PROOF.unpack(opened(key, stored, PROOF.size, "a proof", path)))


def read_highest_deleted(transaction: Any, table: Any, path: Path) -> int:
    """The highest id of a ledger that was deleted; -1 if none was."""
    stored = transaction.get(DELETED_KEY, db=table)
    if stored is None:
        return -1
    value = opened(DELETED_KEY, stored, LEDGER_KEY.size, "the highest deleted ledger", path)
    return int(LEDGER_KEY.unpack(value)[0])


def stored_row(ledger_id: LedgerId, row: IndexRow) -> tuple[bytes, bytes]:
    """Key and stored form of a row."""
    key = KEY.pack(ledger_id, row.first_entry)
    flags = (SPARSE if row.is_sparse else 0) | (PART if row.is_part else 0)
    value = ROW.pack(*row.location, flags, row.last_entry)
    return key, sealed(key, value)


def row_at_or_below(cursor: Any, ledger_id: int, entry_id: int, path: Path) -> IndexRow | None:
    """The row with the largest key at or below (ledger, entry), if it is the ledger's."""
    key = KEY.pack(ledger_id, entry_id)
    if cursor.set_range(key):
        if cursor.key() != key and not cursor.prev():
            return None
    elif not cursor.last():
        return None
    found = cursor.key()
    if found > key:
        raise CorruptionError(
            f"index {path} is damaged: searching entry {entry_id} of ledger {ledger_id} leads to a "
            "row behind it"
        )
    if not found.startswith(key[:8]):
        return None
    return read_row(found, cursor.value(), path)


def put_all(cursor: Any, items: list[tuple[bytes, bytes]]) -> None:
    """Put keys with their values, and empty the list."""
    consumed, _added = cursor.putmulti(items)
    assert consumed == len(items), f"{consumed} of {len(items)} values were taken"
    items.clear()
