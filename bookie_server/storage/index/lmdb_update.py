"""One update of the index in LMDB: what it puts, deletes and counts becomes visible together."""

from __future__ import annotations

from typing import Any

from bookie_server.core.ledger_record import KEY_HASH_BYTES, LedgerRecord
from bookie_server.storage.freeing import free_slowly
from bookie_server.storage.index.base import IndexRow, NotCommittedError, RowsInRange
from bookie_server.storage.index.lmdb_commit import commit_now
from bookie_server.storage.index.lmdb_errors import translated
from bookie_server.storage.index.lmdb_heal import drop_damaged_rows
from bookie_server.storage.index.lmdb_logs import LogUses
from bookie_server.storage.index.lmdb_tables import (
    DELETED_KEY,
    FENCED,
    HAS_KEY,
    KEY,
    LEDGER_KEY,
    LEDGER_RECORD,
    LEDGERS_KEY,
    MARK_KEY,
    PROOF,
    PUT_AT_ONCE,
    ROWS_KEY,
    RUN_LOG_MARK_KEY,
    LmdbTables,
    put_all,
    read_highest_deleted,
    read_ledger_record,
    read_proof,
    read_row,
    row_at_or_below,
    stored_row,
)  # fmt: skip
from bookie_server.storage.index.row_proofs import Proof, sealed
from bookie_server.storage.journal.mark import Mark, pack_mark
from spark_ledger.errors import CorruptionError
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId


class LmdbUpdate:
    """A write transaction; *flush thread*. LMDB syncs in ``commit``: data first, then the root.

    Proofs are kept here while rows and ledgers are put, and stored once, at the commit. What is new
    is gathered and put many at a time, without a look at what is stored: of a ledger that the index
    has never heard of there is nothing.
    """

    def __init__(self, tables: LmdbTables, transaction: Any) -> None:
        self._path = tables.path
        self._tables = tables
        self._rows, self._ledgers, self._meta = tables.rows, tables.ledgers, tables.meta
        self._transaction = transaction
        self._cursor = transaction.cursor(self._rows)
        self._ledgers_cursor = transaction.cursor(self._ledgers)
        self._proofs: dict[LedgerId, Proof] = {}
        with translated(self._path):
            self._ledgers_proof = read_proof(transaction, self._meta, LEDGERS_KEY, self._path)
            self._rows_proof = read_proof(transaction, self._meta, ROWS_KEY, self._path)
            self._log_uses = LogUses(tables, transaction, self._rows_proof)
        self._changed: set[LedgerId] = set()
        self._deleted: set[LedgerId] = set()
        # Gathered, and not in the transaction yet; of which ledgers there are rows.
        self._new_rows: list[tuple[bytes, bytes]] = []
        self._new_rows_of: set[LedgerId] = set()
        self._new_records: list[tuple[bytes, bytes]] = []

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        if self._has_no_row(ledger_id):
            return NO_ENTRY
        self._put_new_rows_of(ledger_id)
        with translated(self._path):
            row = row_at_or_below(self._cursor, ledger_id, EntryId(2**63), self._path)
        return NO_ENTRY if row is None else row.last_entry

    def rows_in_range(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> RowsInRange:
        rows: list[IndexRow] = []
        prefix = LEDGER_KEY.pack(ledger_id)
        self._put_new_rows_of(ledger_id)
        with translated(self._path):
            before = row_at_or_below(self._cursor, ledger_id, first, self._path)
            if before is not None:
                rows.append(before)
            if not self._cursor.set_range(KEY.pack(ledger_id, first + 1)):
                return RowsInRange(rows, None)
            for key, value in self._cursor:
                if not key.startswith(prefix):
                    break
                row = read_row(key, value, self._path)
                if row.first_entry > last:
                    return RowsInRange(rows, row.first_entry)
                rows.append(row)
        return RowsInRange(rows, None)

    def append_row(self, ledger_id: LedgerId, row: IndexRow) -> None:
        assert 0 <= row.first_entry <= row.last_entry, f"row of ledger {ledger_id}: {row}"
        key, stored = stored_row(ledger_id, row)
        self._proofs[ledger_id] = self._proof_of(ledger_id).replacing(None, stored)
        self._rows_proof = self._rows_proof.replacing(None, stored)
        self._log_uses.count(row, 1)
        self._new_rows.append((key, stored))
        self._new_rows_of.add(ledger_id)
        if len(self._new_rows) >= PUT_AT_ONCE:
            self._put_new_rows()

    def put_row(self, ledger_id: LedgerId, row: IndexRow) -> None:
        assert 0 <= row.first_entry <= row.last_entry, f"row of ledger {ledger_id}: {row}"
        key, stored = stored_row(ledger_id, row)
        self._put_new_rows_of(ledger_id)
        proof = self._proof_of(ledger_id)
        with translated(self._path):
            old = self._transaction.get(key, db=self._rows)
            self._proofs[ledger_id] = proof.replacing(old, stored)
            self._rows_proof = self._rows_proof.replacing(old, stored)
            self._transaction.put(key, stored, db=self._rows)
            if old is not None:
                self._log_uses.count(read_row(key, old, self._path), -1)
            self._log_uses.count(row, 1)

    def put_ledger_record(self, ledger_id: LedgerId, ledger_record: LedgerRecord) -> None:
        assert ledger_id >= 0, f"ledger {ledger_id}: keys of negative ids are not in their order"
        key = LEDGER_KEY.pack(ledger_id)
        key_hash = ledger_record.access_key_hash
        assert len(key_hash) in (0, KEY_HASH_BYTES), "the hash of a key, and not the key"
        flags = (FENCED if ledger_record.fenced else 0) | (HAS_KEY if key_hash else 0)
        value = LEDGER_RECORD.pack(
            flags, key_hash, ledger_record.last_add_confirmed, ledger_record.last_entry
        )
        stored = sealed(key, value)
        old = None
        assert ledger_id not in self._deleted, "an update deletes a ledger, or stores it"
        if ledger_id in self._changed:
            self._put_new_records()
        if ledger_id in self._changed or ledger_id in self._tables.known:
            with translated(self._path):
                old = self._transaction.get(key, db=self._ledgers)
        self._ledgers_proof = self._ledgers_proof.replacing(old, stored)
        self._new_records.append((key, stored))
        self._changed.add(ledger_id)
        if len(self._new_records) >= PUT_AT_ONCE:
            self._put_new_records()

    def move_row(self, ledger_id: LedgerId, row: IndexRow, moved: IndexRow) -> bool:
        assert moved.first_entry == row.first_entry, f"row of ledger {ledger_id}: {row}"
        self._put_new_rows_of(ledger_id)
        with translated(self._path):
            key, expected = stored_row(ledger_id, row)
            if self._transaction.get(key, db=self._rows) != expected:
                return False
        self.put_row(ledger_id, moved)
        return True

    def delete_row(self, ledger_id: LedgerId, row: IndexRow) -> bool:
        self._put_new_rows_of(ledger_id)
        with translated(self._path):
            key, stored = stored_row(ledger_id, row)
            if self._transaction.get(key, db=self._rows) != stored:
                return False
            self._proofs[ledger_id] = self._proof_of(ledger_id).without(stored)
            self._rows_proof = self._rows_proof.without(stored)
            self._log_uses.count(row, -1)
            self._transaction.delete(key, db=self._rows)
        return True

    def drop_damaged(self) -> dict[LedgerId, EntryId]:
        assert not self._proofs, "nothing was changed yet"
        with translated(self._path):
            proofs = self._transaction.cursor(self._tables.proofs)
            dropped, self._rows_proof = drop_damaged_rows(self._path, self._cursor, proofs)
        self._proofs = dict.fromkeys(dropped, Proof())
        self._log_uses.count_anew()
        return dropped

    def delete_rows(self, ledger_id: LedgerId, limit: int) -> list[IndexRow]:
        assert limit > 0, "some rows are taken out"
        self._put_new_rows_of(ledger_id)
        proof = self._proof_of(ledger_id)
        prefix, taken = LEDGER_KEY.pack(ledger_id), list[IndexRow]()
        with translated(self._path):
            found = self._cursor.set_range(prefix)
            while found and len(taken) < limit:
                key, stored = self._cursor.item()
                if not key.startswith(prefix):
                    break
                row = read_row(key, stored, self._path)
                taken.append(row)
                self._log_uses.count(row, -1)
                proof = proof.without(stored) if proof.values else proof
                self._rows_proof = self._rows_proof.without(stored)
                found = self._cursor.delete() and bool(self._cursor.key())
        if len(taken) < limit and proof != Proof():
            raise CorruptionError(
                f"index {self._path} is damaged: rows of ledger {ledger_id} do not add up to the "
                "proof that was stored"
            )
        if taken:
            self._proofs[ledger_id] = proof
        return taken

    def delete_ledger_record(self, ledger_id: LedgerId) -> None:
        assert self._proof_of(ledger_id) == Proof(), "the rows of a ledger go before its record"
        self._put_new_records()
        key = LEDGER_KEY.pack(ledger_id)
        with translated(self._path):
            old = self._transaction.get(key, db=self._ledgers)
            if old is None:
                return
            read_ledger_record(key, old, self._path)
            self._ledgers_proof = self._ledgers_proof.without(old)
            self._transaction.delete(key, db=self._ledgers)
            if ledger_id > read_highest_deleted(self._transaction, self._meta, self._path):
                self._transaction.put(DELETED_KEY, sealed(DELETED_KEY, key), db=self._meta)
        self._changed.discard(ledger_id)
        self._deleted.add(ledger_id)

    def put_mark(self, mark: Mark) -> None:
        self._put_mark(MARK_KEY, mark)

    def put_run_log_mark(self, mark: Mark) -> None:
        self._put_mark(RUN_LOG_MARK_KEY, mark)

    def _put_mark(self, key: bytes, mark: Mark) -> None:
        assert mark.sequence >= 0 and mark.file_number >= 0, f"{mark} is before the journal"
        with translated(self._path):
            self._transaction.put(key, sealed(key, pack_mark(mark)), db=self._meta)

    def commit(self) -> None:
        try:
            self._put_what_is_gathered()
        except OSError as error:  # no commit was begun
            raise NotCommittedError(error.errno, error.strerror) from error
        with translated(self._path):
            # Before the commit: a ledger that is known and not there any more would look lost.
            self._tables.known.difference_update(self._deleted)
            try:
                commit_now(self._tables.env, self._transaction, self._path)
            except BaseException:
                self._tables.known.update(self._deleted)
                raise
        # After the commit: a ledger that could be known before it is durable would look lost.
        self._tables.known.update(self._changed)
        self._tables.with_rows.update(self._proofs)
        emptied = {ledger_id for ledger_id, proof in self._proofs.items() if not proof.values}
        self._tables.with_rows.difference_update(emptied)
        free_slowly(self._proofs)

    def _put_what_is_gathered(self) -> None:
        self._put_new_rows()
        self._put_new_records()
        with translated(self._path):
            cursor = self._transaction.cursor(self._tables.proofs)
            proofs: list[tuple[bytes, bytes]] = []
            for ledger_id, proof in self._proofs.items():
                key = LEDGER_KEY.pack(ledger_id)
                if not proof.values:
                    self._transaction.delete(key, db=self._tables.proofs)
                    continue
                proofs.append((key, sealed(key, PROOF.pack(*proof))))
                if len(proofs) >= PUT_AT_ONCE:
                    put_all(cursor, proofs)
            put_all(cursor, proofs)
            for name, total in ((LEDGERS_KEY, self._ledgers_proof), (ROWS_KEY, self._rows_proof)):
                stored = sealed(name, PROOF.pack(*total))
                self._transaction.put(name, stored, db=self._meta)
            for name, value in list(self._tables.notes.items()):
                self._transaction.put(name, sealed(name, value), db=self._meta)
            self._log_uses.store(self._rows_proof)

    def abort(self) -> None:
        self._transaction.abort()

    def _has_no_row(self, ledger_id: LedgerId) -> bool:
        return ledger_id not in self._tables.with_rows and ledger_id not in self._proofs

    def _proof_of(self, ledger_id: LedgerId) -> Proof:
        """The proof of a ledger's rows, as this update has it."""
        proof = self._proofs.get(ledger_id)
        if proof is not None:
            return proof
        if self._has_no_row(ledger_id):
            return Proof()
        with translated(self._path):
            key = LEDGER_KEY.pack(ledger_id)
            return read_proof(self._transaction, self._tables.proofs, key, self._path)

    def _put_new_rows_of(self, ledger_id: LedgerId) -> None:
        """Before the ledger's rows are read."""
        if ledger_id in self._new_rows_of:
            self._put_new_rows()

    def _put_new_rows(self) -> None:
        with translated(self._path):
            put_all(self._cursor, self._new_rows)
        self._new_rows_of.clear()

    def _put_new_records(self) -> None:
        with translated(self._path):
            put_all(self._ledgers_cursor, self._new_records)
