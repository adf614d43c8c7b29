"""The index held in memory and kept as one file, for simulation and crash tests.

A commit writes everything to a new file, so it is as atomic and durable as the file system under
it: a crashed copy of that file system holds the last commit. The file begins with the
CRC32C of the rest. Far too slow for a bookie.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from google_crc32c import value as crc32c_value

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.fs.vfs import FileSystem, read_file, write_file_durably
from bookie_server.storage.index.base import (
    BlockLocation,
    HeldLedger,
    IndexRow,
    IndexUpdate,
    LogUse,
    RowsInRange,
    refuse_another,
)
from bookie_server.storage.journal.mark import Mark
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import GIB
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId


class _Content:
    """Rows by ledger and first entry, ledger records, the checkpoint mark."""

    def __init__(self) -> None:
        self.rows: dict[LedgerId, dict[EntryId, IndexRow]] = {}
        self.ledger_records: dict[LedgerId, LedgerRecord] = {}
        self.mark: Mark | None = None
        self.run_log_mark: Mark | None = None
        self.highest_log = 0
        self.highest_deleted = -1
        self.owner: str | None = None
        self.has_lacks = False

    def copy(self) -> _Content:
        content = _Content()
        content.rows = {ledger_id: dict(rows) for ledger_id, rows in self.rows.items()}
        content.ledger_records = dict(self.ledger_records)
        content.mark = self.mark
        content.run_log_mark = self.run_log_mark
        content.highest_log = self.highest_log
        content.highest_deleted = self.highest_deleted
        content.owner = self.owner
        content.has_lacks = self.has_lacks
        return content

    def row_at(self, ledger_id: LedgerId, entry_id: EntryId) -> IndexRow | None:
        rows = self.rows.get(ledger_id, {})
        keys = sorted(rows)
        number = bisect_right(keys, entry_id) - 1
        return rows[keys[number]] if number >= 0 else None

    def encode(self) -> bytes:
        rows = [
            (ledger_id, row.first_entry, row.last_entry, *row.location, *row[3:])
            for ledger_id, by_key in self.rows.items()
            for row in by_key.values()
        ]
        ledger_records = [
            (ledger_id, ledger_record.access_key_hash.hex(), *ledger_record[1:])
            for ledger_id, ledger_record in self.ledger_records.items()
        ]
        marks = [self.mark, self.run_log_mark]
        content = {"rows": rows, "states": ledger_records, "marks": marks}
        highest = {"highest_log": self.highest_log, "highest_deleted": self.highest_deleted}
        notes = {"owner": self.owner, "has_lacks": self.has_lacks}
        body = msgspec.json.encode(content | highest | notes)
        return int(crc32c_value(body)).to_bytes(4, "big") + body

    @classmethod
    def decode(cls, data: bytes, path: Path) -> _Content:
        if crc32c_value(data[4:]) != int.from_bytes(data[:4], "big") or len(data) < 4:
            raise CorruptionError(f"index {path} is damaged: wrong checksum")
        stored: dict[str, Any] = msgspec.json.decode(data[4:])
        content = cls()
        for ledger_id, first, last, log_id, offset, length, *flags in stored["rows"]:
            row = IndexRow(first, last, BlockLocation(log_id, offset, length), *flags)
            content.rows.setdefault(ledger_id, {})[first] = row
        for ledger_id, key_hash, *rest in stored["states"]:
            content.ledger_records[ledger_id] = LedgerRecord(bytes.fromhex(key_hash), *rest)
        marks = [Mark(*mark) if mark else None for mark in stored["marks"]]
        content.mark, content.run_log_mark = marks
        content.highest_log = stored["highest_log"]
        content.highest_deleted = stored["highest_deleted"]
        content.owner = stored["owner"]
        content.has_lacks = stored["has_lacks"]
        return content


def _first_entry(row: IndexRow) -> EntryId:
    return row.first_entry


class MemoryIndex:
    """See ``index.Index``. *Any thread* reads ``content``; a commit replaces it whole."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        """Open or make the index in directory ``path``."""
        file_system.mkdir(path)
        self.file_system = file_system
        self.file_path = path / "index.json"
        self.content = _Content()
        self.claimed_by: str | None = None
        self.noted_lacks: bool | None = None
        self.is_changing = False
        if file_system.exists(self.file_path):
            data = read_file(file_system, self.file_path, size_max=GIB)
            self.content = _Content.decode(data, self.file_path)

    def row_at(self, ledger_id: LedgerId, entry_id: EntryId) -> IndexRow | None:
        return self.content.row_at(ledger_id, entry_id)

    def rows(self, ledger_id: LedgerId) -> list[IndexRow]:
        return [row for _key, row in sorted(self.content.rows.get(ledger_id, {}).items())]

    def rows_from(self, ledger_id: LedgerId, entry_id: EntryId, limit: int) -> list[IndexRow]:
        rows = self.rows(ledger_id)
        return rows[max(bisect_right(rows, entry_id, key=_first_entry) - 1, 0) :][:limit]

    def rows_of_block(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId, location: BlockLocation
    ) -> list[IndexRow]:
        rows = self.rows(ledger_id)
        return [r for r in rows if first <= r.first_entry <= last and r.location == location]

    def log_use(self) -> dict[int, LogUse] | None:
        uses: dict[int, LogUse] = {}
        for rows in self.content.rows.values():
            for row in rows.values():
                log_id = row.location.log_id
                uses[log_id] = uses.get(log_id, LogUse()).with_row(row, 1)
        return uses

    def highest_log(self) -> int:
        return self.content.highest_log

    def held_ledgers(self, after: int, limit: int) -> list[HeldLedger]:
        content = self.content
        held = sorted(each for each in content.rows.keys() | content.ledger_records if each > after)
        records = [content.ledger_records.get(each, LedgerRecord()) for each in held[:limit]]
        return [HeldLedger(each, r.access_key_hash) for each, r in zip(held, records, strict=False)]

    def ledger_record(self, ledger_id: LedgerId) -> LedgerRecord | None:
        return self.content.ledger_records.get(ledger_id)

    def knows(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self.content.ledger_records

    def ledger_records(self) -> Iterator[tuple[LedgerId, LedgerRecord]]:
        return iter(sorted(self.content.ledger_records.items()))

    def ledger_count(self) -> int:
        return len(self.content.ledger_records)

    def memory_bytes(self) -> int:
        return 0

    def highest_ledger(self) -> int:
        return max(self.content.highest_deleted, *self.content.ledger_records, -1)

    def mark(self) -> Mark | None:
        return self.content.mark

    def run_log_mark(self) -> Mark | None:
        return self.content.run_log_mark

    def claim(self, owner: str) -> None:
        refuse_another(self.file_path.parent, self.content.owner, owner)
        self.claimed_by = owner

    def has_lacks(self) -> bool:
        return self.content.has_lacks

    def note_lacks(self, has_lacks: bool) -> None:
        self.noted_lacks = has_lacks

    def why_lost(self) -> str:
        return ""

    def begin(self) -> IndexUpdate:
        assert not self.is_changing, "an update that was neither committed nor aborted hangs LMDB"
        self.is_changing = True
        return _MemoryUpdate(self)

    def close(self) -> None:
        """Nothing is held open."""


class _MemoryUpdate:
    """Changes a copy, which becomes the content at commit; *flush thread*."""

    def __init__(self, index: MemoryIndex) -> None:
        self._index = index
        self._content = index.content.copy()

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        row = self._content.row_at(ledger_id, EntryId(2**63))
        return NO_ENTRY if row is None else row.last_entry

    def rows_in_range(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> RowsInRange:
        before = self._content.row_at(ledger_id, first)
        rows = [] if before is None else [before]
        for key, row in sorted(self._content.rows.get(ledger_id, {}).items()):
            if key > last:
                return RowsInRange(rows, key)
            if key > first:
                rows.append(row)
        return RowsInRange(rows, None)

    def append_row(self, ledger_id: LedgerId, row: IndexRow) -> None:
        assert row.first_entry > self.last_entry(ledger_id), f"ledger {ledger_id}: {row} is behind"
        self.put_row(ledger_id, row)

    def put_row(self, ledger_id: LedgerId, row: IndexRow) -> None:
        assert 0 <= row.first_entry <= row.last_entry, f"row of ledger {ledger_id}: {row}"
        self._content.rows.setdefault(ledger_id, {})[row.first_entry] = row
        if not row.location.run_log_file:
            self._content.highest_log = max(self._content.highest_log, row.location.log_id)

    def put_ledger_record(self, ledger_id: LedgerId, ledger_record: LedgerRecord) -> None:
        self._content.ledger_records[ledger_id] = ledger_record

    def move_row(self, ledger_id: LedgerId, row: IndexRow, moved: IndexRow) -> bool:
        assert moved.first_entry == row.first_entry, f"row of ledger {ledger_id}: {row}"
        if self._content.rows.get(ledger_id, {}).get(row.first_entry) != row:
            return False
        self.put_row(ledger_id, moved)
        return True

    def delete_row(self, ledger_id: LedgerId, row: IndexRow) -> bool:
        rows = self._content.rows.get(ledger_id, {})
        if rows.get(row.first_entry) != row:
            return False
        del rows[row.first_entry]
        if not rows:
            del self._content.rows[ledger_id]
        return True

    def drop_damaged(self) -> dict[LedgerId, EntryId]:
        return {}  # its one checksum is looked at when it is opened

    def delete_rows(self, ledger_id: LedgerId, limit: int) -> list[IndexRow]:
        rows = self._content.rows.get(ledger_id, {})
        taken = [rows.pop(first_entry) for first_entry in sorted(rows)[:limit]]
        if not rows:
            self._content.rows.pop(ledger_id, None)
        return taken

    def delete_ledger_record(self, ledger_id: LedgerId) -> None:
        assert ledger_id not in self._content.rows, "the rows of a ledger go before its record"
        if self._content.ledger_records.pop(ledger_id, None) is not None:
            self._content.highest_deleted = max(self._content.highest_deleted, ledger_id)

    def put_mark(self, mark: Mark) -> None:
        self._content.mark = mark

    def put_run_log_mark(self, mark: Mark) -> None:
        self._content.run_log_mark = mark

    def commit(self) -> None:
        self._content.owner = self._index.claimed_by or self._content.owner
        if self._index.noted_lacks is not None:
            self._content.has_lacks = self._index.noted_lacks
        write_file_durably(self._index.file_system, self._index.file_path, self._content.encode())
        self._index.content = self._content
        self._index.is_changing = False

    def abort(self) -> None:
        self._index.is_changing = False
