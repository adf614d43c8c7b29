"""The table of logs: how many rows name each, and how many bytes they keep alive (rule S18).

It is changed in the transaction that changes the rows, so it is right after any crash. It follows
from the rows: one that does not add up, or that an older program did not keep while it changed
rows, is counted anew from all of them by the next commit. Nothing is removed before that.
"""

from __future__ import annotations

import logging
from typing import Any

from bookie_server.storage.index.base import IndexRow, LogUse
from bookie_server.storage.index.lmdb_tables import (
    LOG_KEY,
    LOG_USE,
    LOGS,
    LOGS_KEY,
    PUT_AT_ONCE,
    LmdbTables,
    opened,
    put_all,
    read_row,
)  # fmt: skip
from bookie_server.storage.index.row_proofs import Proof, sealed
from spark_ledger.errors import CorruptionError

logger = logging.getLogger(__name__)


class LogUses:
    """What one update changes in the table of logs; *flush thread*."""

    def __init__(self, tables: LmdbTables, transaction: Any, rows_proof: Proof) -> None:
        self._tables = tables
        self._transaction = transaction
        stated = _stated(tables, transaction, rows_proof)
        self._proof, self._highest = stated or (Proof(), 0)
        self._counts_all = stated is None or not tables.logs_are_known
        self._changes: dict[int, LogUse] = {}

    def count_anew(self) -> None:
        """Rows went that could not be read: count all that are left, at the commit."""
        self._counts_all = True

    def count(self, row: IndexRow, sign: int) -> None:
        """A row is put (1) or taken out (-1)."""
        log_id = row.location.log_id
        self._changes[log_id] = self._changes.get(log_id, LogUse()).with_row(row, sign)
        if not row.location.run_log_file:
            self._highest = max(self._highest, log_id)

    def store(self, rows_proof: Proof) -> None:
        """Put what was counted, before the commit; ``rows_proof`` is that of all rows now."""
        if self._counts_all or not self._store_changes():
            self._count_all()
        self._tables.logs_are_known = True  # if the commit fails, the old table is as it was
        value = LOGS.pack(*self._proof, *rows_proof, self._highest)
        self._transaction.put(LOGS_KEY, sealed(LOGS_KEY, value), db=self._tables.meta)

    def _store_changes(self) -> bool:
        """Add the changes; False if the table is damaged."""
        try:
            for log_id, change in self._changes.items():
                key = LOG_KEY.pack(log_id)
                old = self._transaction.get(key, db=self._tables.logs)
                before = LogUse() if old is None else _use(key, old, self._tables)
                self._store(key, old, LogUse(*map(sum, zip(before, change, strict=True))))
        except CorruptionError as error:
            logger.warning("%s: the logs are counted anew", error)
            return False
        return True

    def _store(self, key: bytes, old: bytes | None, use: LogUse) -> None:
        if use.rows < 0 or use.byte_count < 0 or (use.byte_count and not use.rows):
            raise CorruptionError(f"index {self._tables.path} is damaged: {use} of a log")
        if use.rows:
            stored = sealed(key, LOG_USE.pack(*use))
            self._proof = self._proof.replacing(old, stored)
            self._transaction.put(key, stored, db=self._tables.logs)
        elif old is not None:
            self._proof = self._proof.without(old)
            self._transaction.delete(key, db=self._tables.logs)

    def _count_all(self) -> None:
        """Count all rows, as this update has them. Once, for an index of an older program."""
        tables, uses = self._tables, dict[int, LogUse]()
        for key, stored in self._transaction.cursor(tables.rows):
            row = read_row(key, stored, tables.path)
            log_id = row.location.log_id
            uses[log_id] = uses.get(log_id, LogUse()).with_row(row, 1)
            if not row.location.run_log_file:
                self._highest = max(self._highest, log_id)
        self._transaction.drop(tables.logs, delete=False)
        self._proof = Proof()
        cursor = self._transaction.cursor(tables.logs)
        items: list[tuple[bytes, bytes]] = []
        for log_id, use in uses.items():
            key = LOG_KEY.pack(log_id)
            items.append((key, sealed(key, LOG_USE.pack(*use))))
            self._proof = self._proof.replacing(None, items[-1][1])
            if len(items) >= PUT_AT_ONCE:
                put_all(cursor, items)
        put_all(cursor, items)


def read_log_uses(
    tables: LmdbTables, transaction: Any, rows_proof: Proof
) -> dict[int, LogUse] | None:
    """The use of each log; None if it was not counted. Raises CorruptionError if the table does
    not add up."""
    stated = _stated(tables, transaction, rows_proof)
    if stated is None:
        return None
    counted, uses = Proof(), dict[int, LogUse]()
    for key, stored in transaction.cursor(tables.logs):
        uses[LOG_KEY.unpack(key)[0]] = _use(key, stored, tables)
        counted = counted.replacing(None, stored)
    if counted != stated[0]:
        raise CorruptionError(f"index {tables.path} is damaged: its logs do not add up")
    return uses


def read_highest_log(tables: LmdbTables, transaction: Any, rows_proof: Proof) -> int:
    """The highest id of an entry log that was ever named; 0 if that is not known."""
    stated = _stated(tables, transaction, rows_proof)
    return 0 if stated is None else stated[1]


def _stated(tables: LmdbTables, transaction: Any, rows_proof: Proof) -> tuple[Proof, int] | None:
    """Proof of the table, and the highest entry log; None unless they belong to these rows."""
    stored = transaction.get(LOGS_KEY, db=tables.meta)
    try:
        if stored is None:
            return None
        values, total, *rows, highest = LOGS.unpack(
            opened(LOGS_KEY, stored, LOGS.size, "the logs", tables.path)
        )
    except CorruptionError as error:
        logger.warning("%s: the logs are counted anew", error)
        return None
    return (Proof(values, total), highest) if Proof(*rows) == rows_proof else None


def _use(key: bytes, stored: bytes, tables: LmdbTables) -> LogUse:
    return LogUse(*LOG_USE.unpack(opened(key, stored, LOG_USE.size, "a log", tables.path)))
