"""The index in LMDB: one environment per ledger directory, every commit synced.

table     key (big endian)                  value (big endian)
rows      ledger id (8), first entry (8)    log id (4), offset (4), length (4), flags (1:
                                            bit 0 = sparse), last entry (8)
ledgers   ledger id (8)                     flags (1: bit 0 = fenced, bit 1 = has access key),
                                            SHA-256 of the access key or zeros (32),
                                            last add confirmed (8), last entry (8)
meta      "mark"                            see ``mark``
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import lmdb

from bookie_server.storage.index import (
    BlockLocation,
    IndexRow,
    IndexUpdate,
    LedgerState,
    RowsInRange,
)
from bookie_server.storage.mark import Mark, pack_mark, unpack_mark
from spark_ledger.errors import CorruptionError
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId

_KEY = struct.Struct(">QQ")
_LEDGER_KEY = struct.Struct(">Q")
_ROW = struct.Struct(">IIIBq")
_STATE = struct.Struct(">B32sqq")
_MARK_KEY: Final = b"mark"
_SPARSE: Final = 1
_FENCED: Final = 1
_HAS_KEY: Final = 2
_READERS_MAX: Final = 126
"""Threads that read at once; the bookie's pools are far smaller."""


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn LMDB's errors into OSError and CorruptionError that name the directory."""
    try:
        yield
    except (lmdb.MapFullError, lmdb.DiskError) as error:
        number = errno.ENOSPC if isinstance(error, lmdb.MapFullError) else errno.EIO
        raise OSError(number, f"index {path}: {error} (see index_map_bytes)") from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as error:
        raise CorruptionError(f"index {path} is damaged: {error}") from error
    except lmdb.Error as error:
        raise OSError(errno.EIO, f"index {path}: {error}") from error


def _row(key: bytes, value: bytes, path: Path) -> IndexRow:
    if len(value) != _ROW.size:
        raise CorruptionError(f"index {path} is damaged: a row has {len(value)} bytes")
    _ledger_id, first_entry = _KEY.unpack(key)
    log_id, offset, length, flags, last_entry = _ROW.unpack(value)
    location = BlockLocation(log_id, offset, length)
    return IndexRow(EntryId(first_entry), EntryId(last_entry), location, bool(flags & _SPARSE))


def _state(value: bytes, path: Path) -> LedgerState:
    if len(value) != _STATE.size:
        raise CorruptionError(f"index {path} is damaged: a ledger has {len(value)} bytes")
    flags, key_hash, last_add_confirmed, last_entry = _STATE.unpack(value)
    return LedgerState(
        key_hash if flags & _HAS_KEY else b"",
        bool(flags & _FENCED),
        EntryId(last_add_confirmed),
        EntryId(last_entry),
    )


class LmdbIndex:
    """See ``index.Index``."""

    def __init__(self, path: Path, *, map_bytes: int) -> None:
        """Open or make the index in directory ``path``; OSError or CorruptionError if it fails."""
        self._path = path
        path.mkdir(mode=0o750, exist_ok=True)
        with _translated(path):
            self._env = lmdb.open(
                str(path), map_size=map_bytes, max_dbs=3, max_readers=_READERS_MAX, mode=0o640
            )
            self._rows = self._env.open_db(b"rows")
            self._ledgers = self._env.open_db(b"ledgers")
            self._meta = self._env.open_db(b"meta")
            self._env.sync(True)

    def row_at(self, ledger_id: LedgerId, entry_id: EntryId) -> IndexRow | None:
        with _translated(self._path), self._env.begin(db=self._rows) as transaction:
            return _row_at(transaction.cursor(), ledger_id, entry_id, self._path)

    def rows(self, ledger_id: LedgerId) -> list[IndexRow]:
        found: list[IndexRow] = []
        prefix = _LEDGER_KEY.pack(ledger_id)
        with _translated(self._path), self._env.begin(db=self._rows) as transaction:
            cursor = transaction.cursor()
            if cursor.set_range(prefix):
                for key, value in cursor:
                    if not key.startswith(prefix):
                        break
                    found.append(_row(key, value, self._path))
        return found

    def state(self, ledger_id: LedgerId) -> LedgerState | None:
        with _translated(self._path), self._env.begin(db=self._ledgers) as transaction:
            value = transaction.get(_LEDGER_KEY.pack(ledger_id))
        return None if value is None else _state(value, self._path)

    def states(self) -> Iterator[tuple[LedgerId, LedgerState]]:
        with _translated(self._path), self._env.begin(db=self._ledgers) as transaction:
            for key, value in transaction.cursor():
                yield LedgerId(_LEDGER_KEY.unpack(key)[0]), _state(value, self._path)

    def ledger_count(self) -> int:
        with _translated(self._path), self._env.begin() as transaction:
            return int(transaction.stat(self._ledgers)["entries"])

    def mark(self) -> Mark | None:
        with _translated(self._path), self._env.begin(db=self._meta) as transaction:
            value = transaction.get(_MARK_KEY)
        if value is None:
            return None
        try:
            return unpack_mark(value)
        except ValueError as error:
            raise CorruptionError(f"index {self._path} is damaged: {error}") from error

    def begin(self) -> IndexUpdate:
        with _translated(self._path):
            return _LmdbUpdate(self, self._env.begin(write=True))

    def close(self) -> None:
        self._env.close()


class _LmdbUpdate:
    """A write transaction."""

    def __init__(self, index: LmdbIndex, transaction: Any) -> None:
        self._path = index._path
        self._rows, self._ledgers, self._meta = index._rows, index._ledgers, index._meta
        self._transaction = transaction
        self._cursor = transaction.cursor(self._rows)

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        with _translated(self._path):
            row = _row_at(self._cursor, ledger_id, EntryId(2**63), self._path)
        return NO_ENTRY if row is None else row.last_entry

    def rows_in_range(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> RowsInRange:
        rows: list[IndexRow] = []
        prefix = _LEDGER_KEY.pack(ledger_id)
        with _translated(self._path):
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

    def put_row(self, ledger_id: LedgerId, row: IndexRow) -> None:
        value = _ROW.pack(*row.location, _SPARSE if row.is_sparse else 0, row.last_entry)
        with _translated(self._path):
            self._transaction.put(_KEY.pack(ledger_id, row.first_entry), value, db=self._rows)

    def put_state(self, ledger_id: LedgerId, state: LedgerState) -> None:
        key_hash = state.access_key_hash
        flags = (_FENCED if state.fenced else 0) | (_HAS_KEY if key_hash else 0)
        value = _STATE.pack(flags, key_hash, state.last_add_confirmed, state.last_entry)
        with _translated(self._path):
            self._transaction.put(_LEDGER_KEY.pack(ledger_id), value, db=self._ledgers)

    def put_mark(self, mark: Mark) -> None:
        with _translated(self._path):
            self._transaction.put(_MARK_KEY, pack_mark(mark), db=self._meta)

    def commit(self) -> None:
        with _translated(self._path):
            self._transaction.commit()

    def abort(self) -> None:
        self._transaction.abort()


def _row_at(cursor: Any, ledger_id: int, entry_id: int, path: Path) -> IndexRow | None:
    """The row with the largest key at or below (ledger, entry), if it is the ledger's."""
    key = _KEY.pack(ledger_id, entry_id)
    if cursor.set_range(key):
        if cursor.key() != key and not cursor.prev():
            return None
    elif not cursor.last():
        return None
    found = cursor.key()
    if not found.startswith(key[:8]):
        return None
    return _row(found, cursor.value(), path)
