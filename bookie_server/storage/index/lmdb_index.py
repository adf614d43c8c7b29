"""The index in LMDB: one environment per ledger directory, every commit synced.

What stands in it, and how it proves what it denies, is in ``lmdb_tables``.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import lmdb

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.index.base import (
    BlockLocation,
    HeldLedger,
    IndexLostError,
    IndexRow,
    IndexUpdate,
    LogUse,
    refuse_another,
)
from bookie_server.storage.index.lmdb_errors import translated
from bookie_server.storage.index.lmdb_lock import reserve_lock_file
from bookie_server.storage.index.lmdb_logs import read_highest_log, read_log_uses
from bookie_server.storage.index.lmdb_pages import check_pages
from bookie_server.storage.index.lmdb_tables import (
    KEY,
    LACKS_KEY,
    LEDGER_KEY,
    LEDGERS_KEY,
    MARK_KEY,
    OWNER_KEY,
    ROW,
    ROWS_KEY,
    RUN_LOG_MARK_KEY,
    LmdbTables,
    opened,
    read_highest_deleted,
    read_ledger_record,
    read_proof,
    read_row,
    row_at_or_below,
)  # fmt: skip
from bookie_server.storage.index.lmdb_update import LmdbUpdate
from bookie_server.storage.index.row_proofs import Proof, VerifiedRows, checksum
from bookie_server.storage.journal.mark import MARK_BYTES, Mark, unpack_mark
from spark_ledger.errors import CorruptionError
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId

logger = logging.getLogger(__name__)

_SUM_MASK: Final = 2**64 - 1
_READERS_MAX: Final = 126
"""Threads that read at once; the bookie's pools are far smaller."""


class LmdbIndex:
    """See ``index.Index``. *Any thread* reads; the *flush thread* has the one update.

    A read sees the snapshot of the last commit before it began, whatever commits meanwhile.
    """

    def __init__(
        self, path: Path, *, map_bytes: int, read_only: bool = False, directories: int = 1
    ) -> None:
        """Open or make the index in directory ``path``, and check its sums. ``read_only``: it has
        to be there, and nothing of it is changed, not even by LMDB itself. ``directories``: so many
        share what is kept in memory.

        Raises OSError if the index cannot be opened, CorruptionError if it is damaged.
        """
        # Any thread: never changed. LMDB has its own locks.
        self._path = path
        if not read_only:
            path.mkdir(mode=0o750, exist_ok=True)
        check_pages(path)
        if not read_only:
            reserve_lock_file(path)
        with translated(path):
            self._env = lmdb.open(
                str(path),
                map_size=map_bytes,
                max_dbs=5,
                max_readers=_READERS_MAX,
                mode=0o640,
                readonly=read_only,
                lock=not read_only,
            )
            self._rows, self._ledgers, self._proofs, self._meta, logs = (
                self._env.open_db(name, create=not read_only)
                for name in (b"rows", b"ledgers", b"proofs", b"meta", b"logs")
            )
            if not read_only:
                self._env.sync(True)
        self._tables = LmdbTables(
            path, self._env, self._rows, self._ledgers, self._proofs, self._meta, logs
        )
        # Any thread: it has a lock of its own.
        self._verified = VerifiedRows(directories)
        try:
            self._tables.known.update(ledger_id for ledger_id, _ in self.ledger_records())
            self._check_proofs()
        except CorruptionError:
            self.close()
            raise

    def row_at(self, ledger_id: LedgerId, entry_id: EntryId) -> IndexRow | None:
        with translated(self._path), self._env.begin(db=self._rows) as transaction:
            row = row_at_or_below(transaction.cursor(), ledger_id, entry_id, self._path)
            if row is None or row.is_sparse or entry_id > row.last_entry:
                firsts = self._verified_firsts(transaction, ledger_id)
                self._check_denial(firsts, ledger_id, entry_id, row)
        return row

    def rows(self, ledger_id: LedgerId) -> list[IndexRow]:
        with translated(self._path), self._env.begin(db=self._rows) as transaction:
            return self._all_rows(transaction, ledger_id)

    def _all_rows(self, transaction: Any, ledger_id: LedgerId) -> list[IndexRow]:
        """All rows of a ledger. Raises CorruptionError unless they sum up to their proof."""
        found: list[IndexRow] = []
        counted = Proof()
        prefix = LEDGER_KEY.pack(ledger_id)
        proof = read_proof(transaction, self._proofs, prefix, self._path)
        cursor = transaction.cursor()
        if cursor.set_range(prefix):
            for key, stored in cursor:
                if not key.startswith(prefix):
                    break
                found.append(read_row(key, stored, self._path))
                counted = counted.replacing(None, stored)
        # One transaction reads rows and proof, so a commit cannot come between them.
        if counted != proof:
            raise CorruptionError(
                f"index {self._path} is damaged: ledger {ledger_id} has {counted.values} rows, "
                f"which do not add up to the {proof.values} that were stored"
            )
        return found

    def rows_from(self, ledger_id: LedgerId, entry_id: EntryId, limit: int) -> list[IndexRow]:
        with translated(self._path), self._env.begin(db=self._rows) as transaction:
            firsts = self._verified_firsts(transaction, ledger_id)
            start = max(bisect_right(firsts, entry_id) - 1, 0)
            expected = firsts[start : start + limit]
            found: list[IndexRow] = []
            cursor = transaction.cursor()
            if expected and cursor.set_range(KEY.pack(ledger_id, expected[0])):
                stored = islice(cursor, len(expected))
                found = [read_row(key, value, self._path) for key, value in stored]
        # A row that a damaged tree hides would be entries that are denied (rule S9).
        if [row.first_entry for row in found] != expected.tolist():
            raise CorruptionError(
                f"index {self._path} is damaged: ledger {ledger_id} has other rows from entry "
                f"{entry_id} on than those that were verified"
            )
        return found

    def _check_denial(
        self, firsts: array[int], ledger_id: LedgerId, entry_id: EntryId, row: IndexRow | None
    ) -> None:
        """Raise CorruptionError unless ``row`` is the one that decides about the entry.

        A damaged tree can lead a search to the wrong row, or to none. So the answer of the search
        is compared with the list of all rows of the ledger, which were read one after the other
        and sum up to their proof (rule S9).
        """
        number = bisect_right(firsts, entry_id) - 1
        found = NO_ENTRY if row is None else row.first_entry
        if found != (firsts[number] if number >= 0 else NO_ENTRY):
            raise CorruptionError(
                f"index {self._path} is damaged: searching entry {entry_id} of ledger {ledger_id} "
                "leads to the wrong row"
            )

    def _verified_firsts(self, transaction: Any, ledger_id: LedgerId) -> array[int]:
        """The first entries of all rows of a ledger, which sum up to their proof. Raises
        CorruptionError if they do not."""
        key = LEDGER_KEY.pack(ledger_id)
        proof = read_proof(transaction, self._proofs, key, self._path)
        read = partial(self._read_firsts, transaction, ledger_id)
        firsts = self._verified.firsts(ledger_id, proof, read)
        if firsts is None:
            self._all_rows(transaction, ledger_id)  # it says what is wrong
            raise CorruptionError(f"index {self._path} is damaged: rows of ledger {ledger_id}")
        return firsts

    def _read_firsts(
        self, transaction: Any, ledger_id: LedgerId, behind: EntryId
    ) -> tuple[Proof, array[int]]:
        """Proof and first entries of a ledger's rows behind an entry. See ``VerifiedRows``."""
        prefix = LEDGER_KEY.pack(ledger_id)
        values = total = 0
        firsts = array("q")
        cursor = transaction.cursor(self._rows)
        if cursor.set_range(KEY.pack(ledger_id, behind + 1)):
            for key, stored in cursor:
                if not key.startswith(prefix):
                    break
                opened(key, stored, ROW.size, "a row", self._path)
                values, total = values + 1, total + checksum(stored)
                firsts.append(KEY.unpack(key)[1])
        return Proof(values, total & _SUM_MASK), firsts

    def _check_proofs(self) -> None:
        """Raise CorruptionError unless the proofs of all ledgers sum up to that of all rows."""
        values = total = 0
        with translated(self._path), self._env.begin(db=self._proofs) as transaction:
            expected = read_proof(transaction, self._meta, ROWS_KEY, self._path)
            for key, _stored in transaction.cursor():
                proof = read_proof(transaction, self._proofs, key, self._path)
                self._tables.with_rows.add(LedgerId(LEDGER_KEY.unpack(key)[0]))
                values, total = values + proof.values, total + proof.total
        if (values, total & _SUM_MASK) != expected:
            raise CorruptionError(
                f"index {self._path} is damaged: {values} rows of all ledgers do not add up to the "
                f"{expected.values} that were stored"
            )

    def ledger_record(self, ledger_id: LedgerId) -> LedgerRecord | None:
        key = LEDGER_KEY.pack(ledger_id)
        # Before the transaction: a ledger that is known now was committed before the snapshot. In
        # the other order a first commit of the ledger in between would look like damage.
        is_known = ledger_id in self._tables.known
        with translated(self._path), self._env.begin(db=self._ledgers) as transaction:
            stored = transaction.get(key)
        if stored is not None:
            return read_ledger_record(key, stored, self._path)
        # Asked again: a deletion takes the ledger out before its commit.
        if is_known and ledger_id in self._tables.known:
            raise CorruptionError(f"index {self._path} is damaged: ledger {ledger_id} is lost")
        return None

    def rows_of_block(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId, location: BlockLocation
    ) -> list[IndexRow]:
        prefix, found = LEDGER_KEY.pack(ledger_id), list[IndexRow]()
        with translated(self._path), self._env.begin(db=self._rows) as transaction:
            cursor = transaction.cursor()
            if cursor.set_range(KEY.pack(ledger_id, first)):
                for key, stored in cursor:
                    if not key.startswith(prefix) or KEY.unpack(key)[1] > last:
                        break
                    row = read_row(key, stored, self._path)
                    if row.location == location:
                        found.append(row)
        return found

    def log_use(self) -> dict[int, LogUse] | None:
        try:
            with translated(self._path), self._env.begin() as transaction:
                proof = read_proof(transaction, self._meta, ROWS_KEY, self._path)
                return read_log_uses(self._tables, transaction, proof)
        except CorruptionError as error:
            logger.warning("%s: the logs are counted anew", error)
            self._tables.logs_are_known = False
            return None

    def highest_log(self) -> int:
        with translated(self._path), self._env.begin() as transaction:
            proof = read_proof(transaction, self._meta, ROWS_KEY, self._path)
            return read_highest_log(self._tables, transaction, proof)

    def held_ledgers(self, after: int, limit: int) -> list[HeldLedger]:
        found: dict[LedgerId, bytes] = {}
        with translated(self._path), self._env.begin() as transaction:
            for table in (self._proofs, self._ledgers):
                cursor = transaction.cursor(table)
                if not cursor.set_range(LEDGER_KEY.pack(after + 1)):
                    continue
                for key, stored in islice(cursor, limit):
                    ledger_id = LedgerId(LEDGER_KEY.unpack(key)[0])
                    found[ledger_id] = b""
                    if table is self._ledgers:
                        record = read_ledger_record(key, stored, self._path)
                        found[ledger_id] = record.access_key_hash
        return [HeldLedger(ledger_id, found[ledger_id]) for ledger_id in sorted(found)[:limit]]

    def knows(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._tables.known

    def memory_bytes(self) -> int:
        tables = self._tables
        return tables.known.size_bytes + tables.with_rows.size_bytes + self._verified.size_bytes

    def ledger_records(self) -> Iterator[tuple[LedgerId, LedgerRecord]]:
        counted = Proof()
        with translated(self._path), self._env.begin(db=self._ledgers) as transaction:
            proof = read_proof(transaction, self._meta, LEDGERS_KEY, self._path)
            for key, stored in transaction.cursor():
                ledger_record = read_ledger_record(key, stored, self._path)
                counted = counted.replacing(None, stored)
                yield LedgerId(LEDGER_KEY.unpack(key)[0]), ledger_record
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
            deleted = read_highest_deleted(transaction, self._meta, self._path)
            cursor = transaction.cursor()
            if not cursor.last():
                return deleted
            key, stored = cursor.item()
            read_ledger_record(key, stored, self._path)  # a damaged key names no ledger
            return max(deleted, int(LEDGER_KEY.unpack(key)[0]))

    def mark(self) -> Mark | None:
        return self._mark(MARK_KEY)

    def run_log_mark(self) -> Mark | None:
        return self._mark(RUN_LOG_MARK_KEY)

    def _mark(self, key: bytes) -> Mark | None:
        with translated(self._path), self._env.begin(db=self._meta) as transaction:
            stored = transaction.get(key)
        if stored is None:
            return None
        return unpack_mark(opened(key, stored, MARK_BYTES, "the mark", self._path))

    def claim(self, owner: str) -> None:
        found = self._note(OWNER_KEY)
        refuse_another(self._path, None if found is None else found.decode(), owner)
        if found is None:
            self._tables.notes[OWNER_KEY] = owner.encode()

    def has_lacks(self) -> bool:
        return self._note(LACKS_KEY) == b"\1"

    def note_lacks(self, has_lacks: bool) -> None:
        self._tables.notes[LACKS_KEY] = b"\1" if has_lacks else b"\0"

    def _note(self, key: bytes) -> bytes | None:
        with translated(self._path):
            return self._tables.stored_note(key)

    def why_lost(self) -> str:
        try:
            with translated(self._path), self._env.begin():
                return ""
        except IndexLostError as error:
            return str(error)
        except OSError:  # for this moment: too many read
            return ""

    def begin(self) -> IndexUpdate:
        with translated(self._path):
            transaction = self._env.begin(write=True)
            try:
                return LmdbUpdate(self._tables, transaction)
            except BaseException:
                transaction.abort()  # else the next one would wait for it
                raise

    def close(self) -> None:
        self._env.close()
