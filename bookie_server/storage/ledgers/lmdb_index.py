"""The index in LMDB: one environment per ledger directory, every commit synced.

table     key (big endian)                  value (big endian)
rows      ledger id (8), first entry (8)    log id (4), offset (4), length (4), flags (1:
                                            bit 0 = sparse), last entry (8), checksum (4)
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
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import lmdb
from google_crc32c import value as crc32c_value

from bookie_server.core.ledger_record import KEY_HASH_BYTES, LedgerRecord
from bookie_server.storage.journal.mark import MARK_BYTES, Mark, pack_mark, unpack_mark
from bookie_server.storage.ledgers.index import (
    BlockLocation,
    IndexRow,
    IndexUpdate,
    RowsInRange,
)
from bookie_server.storage.ledgers.lmdb_commit import commit_now
from bookie_server.storage.ledgers.lmdb_errors import translated
from bookie_server.storage.ledgers.lmdb_pages import check_pages
from bookie_server.storage.ledgers.row_proofs import (
    CHECKSUM,
    Proof,
    VerifiedRows,
    checksum,
    sealed,
)
from spark_ledger.errors import CorruptionError
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId

_KEY = struct.Struct(">QQ")
_LEDGER_KEY = struct.Struct(">Q")
_ROW = struct.Struct(">IIIBq")
_LEDGER_RECORD = struct.Struct(">B32sqq")
_PROOF = struct.Struct(">QQ")
_MARK_KEY: Final = b"mark"
_RUN_LOG_MARK_KEY: Final = b"run log"
_LEDGERS_KEY: Final = b"ledgers"
_ROWS_KEY: Final = b"rows"
_SUM_MASK: Final = 2**64 - 1
_SPARSE: Final = 1
_FENCED: Final = 1
_HAS_KEY: Final = 2
_PUT_AT_ONCE: Final = 500
"""Values that are put by one call, which keeps the interpreter's lock: about a millisecond."""
_READERS_MAX: Final = 126
"""Threads that read at once; the bookie's pools are far smaller."""


def _opened(key: bytes, stored: bytes, size: int, what: str, path: Path) -> bytes:
    """The value of a stored form. Raises CorruptionError if size or checksum is wrong."""
    value = stored[: -CHECKSUM.size]
    if len(value) != size or crc32c_value(key + value) != checksum(stored):
        raise CorruptionError(f"index {path} is damaged: wrong checksum of {what}")
    return value


def _row(key: bytes, stored: bytes, path: Path) -> IndexRow:
    value = _opened(key, stored, _ROW.size, "a row", path)
    _ledger_id, first_entry = _KEY.unpack(key)
    log_id, offset, length, flags, last_entry = _ROW.unpack(value)
    location = BlockLocation(log_id, offset, length)
    return IndexRow(EntryId(first_entry), EntryId(last_entry), location, bool(flags & _SPARSE))


def _ledger_record(key: bytes, stored: bytes, path: Path) -> LedgerRecord:
    value = _opened(key, stored, _LEDGER_RECORD.size, "a ledger", path)
    flags, key_hash, last_add_confirmed, last_entry = _LEDGER_RECORD.unpack(value)
    return LedgerRecord(
        key_hash if flags & _HAS_KEY else b"",
        bool(flags & _FENCED),
        EntryId(last_add_confirmed),
        EntryId(last_entry),
    )


def _proof(transaction: Any, table: Any, key: bytes, path: Path) -> Proof:
    stored = transaction.get(key, db=table)
    if stored is None:
        return Proof()
    return Proof._make(_PROOF.unpack(_opened(key, stored, _PROOF.size, "a proof", path)))


class LmdbIndex:
    """See ``index.Index``. *Any thread* reads; the *flush thread* has the one update.

    A read sees the snapshot of the last commit before it began, whatever commits meanwhile.
    """

    def __init__(self, path: Path, *, map_bytes: int) -> None:
        """Open or make the index in directory ``path``, and check its sums.

        Raises OSError if the index cannot be opened, CorruptionError if it is damaged.
        """
        # Any thread: never changed. LMDB has its own locks.
        self._path = path
        path.mkdir(mode=0o750, exist_ok=True)
        check_pages(path)
        with translated(path):
            self._env = lmdb.open(
                str(path), map_size=map_bytes, max_dbs=4, max_readers=_READERS_MAX, mode=0o640
            )
            self._rows = self._env.open_db(b"rows")
            self._ledgers = self._env.open_db(b"ledgers")
            self._proofs = self._env.open_db(b"proofs")
            self._meta = self._env.open_db(b"meta")
            self._env.sync(True)
        # Any thread: it has a lock of its own.
        self._verified = VerifiedRows()
        # The flush thread adds, after its commit; any thread asks, before its own transaction
        # begins (see ``ledger_record``). Nothing is ever taken out.
        self._known: set[LedgerId] = set()
        # Flush thread: ledgers that have rows. A run may be stored without its ledger's record.
        self._with_rows: set[LedgerId] = set()
        try:
            self._known.update(ledger_id for ledger_id, _ in self.ledger_records())
            self._check_proofs()
        except CorruptionError:
            self.close()
            raise

    def row_at(self, ledger_id: LedgerId, entry_id: EntryId) -> IndexRow | None:
        with translated(self._path), self._env.begin(db=self._rows) as transaction:
            row = _row_at(transaction.cursor(), ledger_id, entry_id, self._path)
            if row is None or row.is_sparse or entry_id > row.last_entry:
                self._check_denial(transaction, ledger_id, entry_id, row)
        return row

    def rows(self, ledger_id: LedgerId) -> list[IndexRow]:
        with translated(self._path), self._env.begin(db=self._rows) as transaction:
            return self._all_rows(transaction, ledger_id)

    def _all_rows(self, transaction: Any, ledger_id: LedgerId) -> list[IndexRow]:
        """All rows of a ledger. Raises CorruptionError unless they sum up to their proof."""
        found: list[IndexRow] = []
        counted = Proof()
        prefix = _LEDGER_KEY.pack(ledger_id)
        proof = _proof(transaction, self._proofs, prefix, self._path)
        cursor = transaction.cursor()
        if cursor.set_range(prefix):
            for key, stored in cursor:
                if not key.startswith(prefix):
                    break
                found.append(_row(key, stored, self._path))
                counted = counted.replacing(None, stored)
        # One transaction reads rows and proof, so a commit cannot come between them.
        if counted != proof:
            raise CorruptionError(
                f"index {self._path} is damaged: ledger {ledger_id} has {counted.values} rows, "
                f"which do not add up to the {proof.values} that were stored"
            )
        return found

    def _check_denial(
        self, transaction: Any, ledger_id: LedgerId, entry_id: EntryId, row: IndexRow | None
    ) -> None:
        """Raise CorruptionError unless ``row`` is the one that decides about the entry.

        A damaged tree can lead a search to the wrong row, or to none. So the answer of the search
        is compared with the list of all rows of the ledger, which were read one after the other
        and sum up to their proof (rule S9).
        """
        key = _LEDGER_KEY.pack(ledger_id)
        proof = _proof(transaction, self._proofs, key, self._path)
        read = partial(self._read_firsts, transaction, ledger_id)
        firsts = self._verified.firsts(ledger_id, proof, read)
        if firsts is None:
            self._all_rows(transaction, ledger_id)  # it says what is wrong
            raise CorruptionError(f"index {self._path} is damaged: rows of ledger {ledger_id}")
        number = bisect_right(firsts, entry_id) - 1
        found = NO_ENTRY if row is None else row.first_entry
        if found != (firsts[number] if number >= 0 else NO_ENTRY):
            raise CorruptionError(
                f"index {self._path} is damaged: searching entry {entry_id} of ledger {ledger_id} "
                "leads to the wrong row"
            )

    def _read_firsts(
        self, transaction: Any, ledger_id: LedgerId, behind: EntryId
    ) -> tuple[Proof, array[int]]:
        """Proof and first entries of a ledger's rows behind an entry. See ``VerifiedRows``."""
        prefix = _LEDGER_KEY.pack(ledger_id)
        values = total = 0
        firsts = array("q")
        cursor = transaction.cursor(self._rows)
        if cursor.set_range(_KEY.pack(ledger_id, behind + 1)):
            for key, stored in cursor:
                if not key.startswith(prefix):
                    break
                _opened(key, stored, _ROW.size, "a row", self._path)
                values, total = values + 1, total + checksum(stored)
                firsts.append(_KEY.unpack(key)[1])
        return Proof(values, total & _SUM_MASK), firsts

    def _check_proofs(self) -> None:
        """Raise CorruptionError unless the proofs of all ledgers sum up to that of all rows."""
        values = total = 0
        with translated(self._path), self._env.begin(db=self._proofs) as transaction:
            expected = _proof(transaction, self._meta, _ROWS_KEY, self._path)
            for key, _stored in transaction.cursor():
                proof = _proof(transaction, self._proofs, key, self._path)
                self._with_rows.add(LedgerId(_LEDGER_KEY.unpack(key)[0]))
                values, total = values + proof.values, total + proof.total
        if (values, total & _SUM_MASK) != expected:
            raise CorruptionError(
                f"index {self._path} is damaged: {values} rows of all ledgers do not add up to the "
                f"{expected.values} that were stored"
            )

    def ledger_record(self, ledger_id: LedgerId) -> LedgerRecord | None:
        key = _LEDGER_KEY.pack(ledger_id)
        # Before the transaction: a ledger that is known now was committed before the snapshot. In
        # the other order a first commit of the ledger in between would look like damage.
        is_known = ledger_id in self._known
        with translated(self._path), self._env.begin(db=self._ledgers) as transaction:
            stored = transaction.get(key)
        if stored is not None:
            return _ledger_record(key, stored, self._path)
        if is_known:
            raise CorruptionError(f"index {self._path} is damaged: ledger {ledger_id} is lost")
        return None

    def knows(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._known

    def ledger_records(self) -> Iterator[tuple[LedgerId, LedgerRecord]]:
        counted = Proof()
        with translated(self._path), self._env.begin(db=self._ledgers) as transaction:
            proof = _proof(transaction, self._meta, _LEDGERS_KEY, self._path)
            for key, stored in transaction.cursor():
                ledger_record = _ledger_record(key, stored, self._path)
                counted = counted.replacing(None, stored)
                yield LedgerId(_LEDGER_KEY.unpack(key)[0]), ledger_record
        if counted != proof:
            raise CorruptionError(
                f"index {self._path} is damaged: {counted.values} ledgers do not add up to the "
                f"{proof.values} that were stored"
            )

    def ledger_count(self) -> int:
        with translated(self._path), self._env.begin() as transaction:
            return int(transaction.stat(self._ledgers)["entries"])

    def highest_ledger(self) -> int:
        with translated(self._path), self._env.begin(db=self._ledgers) as transaction:
            cursor = transaction.cursor()
            if not cursor.last():
                return -1
            key, stored = cursor.item()
            _ledger_record(key, stored, self._path)  # a damaged key names no ledger
            return int(_LEDGER_KEY.unpack(key)[0])

    def mark(self) -> Mark | None:
        return self._mark(_MARK_KEY)

    def run_log_mark(self) -> Mark | None:
        return self._mark(_RUN_LOG_MARK_KEY)

    def _mark(self, key: bytes) -> Mark | None:
        with translated(self._path), self._env.begin(db=self._meta) as transaction:
            stored = transaction.get(key)
        if stored is None:
            return None
        return unpack_mark(_opened(key, stored, MARK_BYTES, "the mark", self._path))

    def begin(self) -> IndexUpdate:
        with translated(self._path):
            return _LmdbUpdate(self, self._env.begin(write=True))

    def close(self) -> None:
        self._env.close()


class _LmdbUpdate:
    """A write transaction; *flush thread*. LMDB syncs in ``commit``: data first, then the root.

    Proofs are kept here while rows and ledgers are put, and stored once, at the commit. What is new
    is gathered and put many at a time, without a look at what is stored: of a ledger that the index
    has never heard of there is nothing.
    """

    def __init__(self, index: LmdbIndex, transaction: Any) -> None:
        self._path = index._path
        self._index = index
        self._rows, self._ledgers, self._meta = index._rows, index._ledgers, index._meta
        self._transaction = transaction
        self._cursor = transaction.cursor(self._rows)
        self._ledgers_cursor = transaction.cursor(self._ledgers)
        self._proofs: dict[LedgerId, Proof] = {}
        with translated(self._path):
            self._ledgers_proof = _proof(transaction, self._meta, _LEDGERS_KEY, self._path)
            self._rows_proof = _proof(transaction, self._meta, _ROWS_KEY, self._path)
        self._changed: set[LedgerId] = set()
        # Gathered, and not in the transaction yet; of which ledgers there are rows.
        self._new_rows: list[tuple[bytes, bytes]] = []
        self._new_rows_of: set[LedgerId] = set()
        self._new_records: list[tuple[bytes, bytes]] = []

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        if self._has_no_row(ledger_id):
            return NO_ENTRY
        self._put_new_rows_of(ledger_id)
        with translated(self._path):
            row = _row_at(self._cursor, ledger_id, EntryId(2**63), self._path)
        return NO_ENTRY if row is None else row.last_entry

    def rows_in_range(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> RowsInRange:
        rows: list[IndexRow] = []
        prefix = _LEDGER_KEY.pack(ledger_id)
        self._put_new_rows_of(ledger_id)
        with translated(self._path):
            before = _row_at(self._cursor, ledger_id, first, self._path)
            if before is not None:
                rows.append(before)
            if not self._cursor.set_range(_KEY.pack(ledger_id, first + 1)):
                return RowsInRange(rows, None)
            for key, value in self._cursor:
                if not key.startswith(prefix):
                    break
                row = _row(key, value, self._path)
                if row.first_entry > last:
                    return RowsInRange(rows, row.first_entry)
                rows.append(row)
        return RowsInRange(rows, None)

    def append_row(self, ledger_id: LedgerId, row: IndexRow) -> None:
        assert 0 <= row.first_entry <= row.last_entry, f"row of ledger {ledger_id}: {row}"
        key, stored = _stored_row(ledger_id, row)
        self._proofs[ledger_id] = self._proof_of(ledger_id).replacing(None, stored)
        self._rows_proof = self._rows_proof.replacing(None, stored)
        self._new_rows.append((key, stored))
        self._new_rows_of.add(ledger_id)
        if len(self._new_rows) >= _PUT_AT_ONCE:
            self._put_new_rows()

    def put_row(self, ledger_id: LedgerId, row: IndexRow) -> None:
        assert 0 <= row.first_entry <= row.last_entry, f"row of ledger {ledger_id}: {row}"
        key, stored = _stored_row(ledger_id, row)
        self._put_new_rows_of(ledger_id)
        proof = self._proof_of(ledger_id)
        with translated(self._path):
            old = self._transaction.get(key, db=self._rows)
            self._proofs[ledger_id] = proof.replacing(old, stored)
            self._rows_proof = self._rows_proof.replacing(old, stored)
            self._transaction.put(key, stored, db=self._rows)

    def put_ledger_record(self, ledger_id: LedgerId, ledger_record: LedgerRecord) -> None:
        assert ledger_id >= 0, f"ledger {ledger_id}: keys of negative ids are not in their order"
        key = _LEDGER_KEY.pack(ledger_id)
        key_hash = ledger_record.access_key_hash
        assert len(key_hash) in (0, KEY_HASH_BYTES), "the hash of a key, and not the key"
        flags = (_FENCED if ledger_record.fenced else 0) | (_HAS_KEY if key_hash else 0)
        value = _LEDGER_RECORD.pack(
            flags, key_hash, ledger_record.last_add_confirmed, ledger_record.last_entry
        )
        stored = sealed(key, value)
        old = None
        if ledger_id in self._changed:
            self._put_new_records()
        if ledger_id in self._changed or ledger_id in self._index._known:
            with translated(self._path):
                old = self._transaction.get(key, db=self._ledgers)
        self._ledgers_proof = self._ledgers_proof.replacing(old, stored)
        self._new_records.append((key, stored))
        self._changed.add(ledger_id)
        if len(self._new_records) >= _PUT_AT_ONCE:
            self._put_new_records()

    def put_mark(self, mark: Mark) -> None:
        self._put_mark(_MARK_KEY, mark)

    def put_run_log_mark(self, mark: Mark) -> None:
        self._put_mark(_RUN_LOG_MARK_KEY, mark)

    def _put_mark(self, key: bytes, mark: Mark) -> None:
        assert mark.sequence >= 0 and mark.file_number >= 0, f"{mark} is before the journal"
        with translated(self._path):
            self._transaction.put(key, sealed(key, pack_mark(mark)), db=self._meta)

    def commit(self) -> None:
        self._put_new_rows()
        self._put_new_records()
        with translated(self._path):
            cursor = self._transaction.cursor(self._index._proofs)
            proofs: list[tuple[bytes, bytes]] = []
            for ledger_id, proof in self._proofs.items():
                key = _LEDGER_KEY.pack(ledger_id)
                proofs.append((key, sealed(key, _PROOF.pack(*proof))))
                if len(proofs) >= _PUT_AT_ONCE:
                    _put_all(cursor, proofs)
            _put_all(cursor, proofs)
            for name, total in ((_LEDGERS_KEY, self._ledgers_proof), (_ROWS_KEY, self._rows_proof)):
                stored = sealed(name, _PROOF.pack(*total))
                self._transaction.put(name, stored, db=self._meta)
            commit_now(self._index._env, self._transaction, self._path)
        # After the commit: a ledger that could be known before it is durable would look lost.
        self._index._known.update(self._changed)
        self._index._with_rows.update(self._proofs)

    def abort(self) -> None:
        self._transaction.abort()

    def _has_no_row(self, ledger_id: LedgerId) -> bool:
        return ledger_id not in self._index._with_rows and ledger_id not in self._proofs

    def _proof_of(self, ledger_id: LedgerId) -> Proof:
        """The proof of a ledger's rows, as this update has it."""
        proof = self._proofs.get(ledger_id)
        if proof is not None:
            return proof
        if self._has_no_row(ledger_id):
            return Proof()
        with translated(self._path):
            key = _LEDGER_KEY.pack(ledger_id)
            return _proof(self._transaction, self._index._proofs, key, self._path)

    def _put_new_rows_of(self, ledger_id: LedgerId) -> None:
        """Before the ledger's rows are read."""
        if ledger_id in self._new_rows_of:
            self._put_new_rows()

    def _put_new_rows(self) -> None:
        with translated(self._path):
            _put_all(self._cursor, self._new_rows)
        self._new_rows_of.clear()

    def _put_new_records(self) -> None:
        with translated(self._path):
            _put_all(self._ledgers_cursor, self._new_records)


def _put_all(cursor: Any, items: list[tuple[bytes, bytes]]) -> None:
    """Put keys with their values, and empty the list."""
    consumed, _added = cursor.putmulti(items)
    assert consumed == len(items), f"{consumed} of {len(items)} values were taken"
    items.clear()


def _stored_row(ledger_id: LedgerId, row: IndexRow) -> tuple[bytes, bytes]:
    """Key and stored form of a row."""
    key = _KEY.pack(ledger_id, row.first_entry)
    value = _ROW.pack(*row.location, _SPARSE if row.is_sparse else 0, row.last_entry)
    return key, sealed(key, value)


def _row_at(cursor: Any, ledger_id: int, entry_id: int, path: Path) -> IndexRow | None:
    """The row with the largest key at or below (ledger, entry), if it is the ledger's."""
    key = _KEY.pack(ledger_id, entry_id)
    if cursor.set_range(key):
        if cursor.key() != key and not cursor.prev():
            return None
    elif not cursor.last():
        return None
    found = cursor.key()
    assert found <= key, "the search ends at or below the key"
    if not found.startswith(key[:8]):
        return None
    return _row(found, cursor.value(), path)
