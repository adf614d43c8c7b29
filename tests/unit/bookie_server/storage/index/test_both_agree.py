"""What is done to one index is done to the other: LMDB's tells the same as the one in memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index import lmdb_logs, lmdb_update
from bookie_server.storage.index.base import (
    BlockLocation,
    Index,
    IndexRow,
    IndexUpdate,
    run_log_id,
)
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.memory_index import MemoryIndex
from bookie_server.storage.journal.mark import Mark
from spark_ledger.limits import MIB
from spark_ledger.types import EntryId, LedgerId

LEDGERS = [LedgerId(each) for each in (0, 1, 2, 5, 300)]
ENTRIES = 30


class Pair:
    """An index in LMDB and one in memory, which are asked and told the same."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.draw = random.Random(seed)
        self.memory = MemoryFileSystem()
        self.indexes: list[Index] = []
        self.open()
        for index in self.indexes:  # LMDB's tells nothing of logs before its first commit
            index.begin().commit()

    def open(self) -> None:
        """Close both, and open them again."""
        for index in self.indexes:
            index.close()
        lmdb = LmdbIndex(self.path, map_bytes=8 * MIB)
        self.indexes = [lmdb, MemoryIndex(self.memory, Path("/index"))]

    def row(self, first: int) -> IndexRow:
        log_id = self.draw.choice([1, 2, 3, run_log_id(1), run_log_id(2)])
        location = BlockLocation(log_id, 4096 * self.draw.randint(1, 3), self.draw.randint(1, 9))
        last = EntryId(first + self.draw.randint(0, 4))
        flags = self.draw.random() < 0.5, self.draw.random() < 0.3
        return IndexRow(EntryId(first), last, location, *flags)

    def update(self) -> None:
        """An update of some changes; both say the same meanwhile."""
        updates = [index.begin() for index in self.indexes]
        gone: set[LedgerId] = set()
        for _ in range(self.draw.randint(1, 12)):
            ledger_id = self.draw.choice(LEDGERS)
            self._change(updates, ledger_id, gone)
            if self.draw.random() < 0.5:  # else what was gathered is put by the commit
                lasts = [each.last_entry(ledger_id) for each in updates]
                first, last = EntryId(4), EntryId(9)
                ranges = [each.rows_in_range(ledger_id, first, last) for each in updates]
                assert lasts[0] == lasts[1] and ranges[0] == ranges[1]
        if self.draw.random() < 0.8:
            for update in updates:
                update.commit()
        else:
            for update in updates:
                update.abort()

    def _change(self, updates: list[IndexUpdate], ledger_id: LedgerId, gone: set[LedgerId]) -> None:
        draw = self.draw
        kind = draw.choice(["append", "append", "put", "record", "move", "take", "delete", "mark"])
        stored = updates[1].rows_in_range(ledger_id, EntryId(0), EntryId(10**9)).rows
        done: list[object] = []
        if kind == "append":
            row = self.row(updates[1].last_entry(ledger_id) + draw.randint(1, 3))
            for each in updates:
                each.append_row(ledger_id, row)
        elif kind == "put":
            row = self.row(draw.randrange(ENTRIES))
            for each in updates:
                each.put_row(ledger_id, row)
        elif kind == "record" and ledger_id not in gone:
            record = LedgerRecord(b"h" * 32 * draw.randint(0, 1), draw.random() < 0.5)
            for each in updates:
                each.put_ledger_record(ledger_id, record)
        elif kind == "move":
            row = draw.choice([*stored, self.row(3)])
            location = BlockLocation(4, 4096, row.location.length)
            to = row._replace(location=location, is_part=draw.random() < 0.3)
            done = [each.move_row(ledger_id, row, to) for each in updates]
        elif kind == "take":
            row = draw.choice([*stored, self.row(3)])
            done = [each.delete_row(ledger_id, row) for each in updates]
        elif kind == "delete":
            limit = draw.choice([1, 3, 100])
            done = [each.delete_rows(ledger_id, limit) for each in updates]
            if len(stored) < limit:
                gone.add(ledger_id)
                for each in updates:
                    each.delete_ledger_record(ledger_id)
        elif kind == "mark":
            sequence = draw.randint(1, 9)
            for each in updates:
                each.put_mark(Mark(2, 8192, sequence, 4))
                each.put_run_log_mark(Mark(1, 4096, sequence + 1, 3))
        if done:
            assert done[0] == done[1], kind

    def differences(self) -> list[tuple[object, object]]:
        """Questions that both do not answer alike."""
        lmdb, memory = (answers(index) for index in self.indexes)
        return [both for both in zip(lmdb, memory, strict=True) if both[0] != both[1]]


def answers(index: Index) -> list[object]:
    found: list[object] = [index.mark(), index.run_log_mark(), index.log_use()]
    found += [index.highest_log(), index.highest_ledger(), index.ledger_count()]
    found.append(list(index.ledger_records()))
    for ledger_id in LEDGERS:
        rows = index.rows(ledger_id)
        found += [rows, index.ledger_record(ledger_id), index.knows(ledger_id)]
        found += [index.row_at(ledger_id, EntryId(entry)) for entry in (0, 3, 17, 1000)]
        found += [index.rows_from(ledger_id, EntryId(entry), 2) for entry in (0, 17)]
        for row in rows:
            first, last = row.first_entry, row.last_entry
            found.append(index.rows_of_block(ledger_id, first, last, row.location))
    for after in (-1, 0, 2, 299):
        found += [index.held_ledgers(after, limit) for limit in (1, 2, 100)]
    return found


@pytest.mark.parametrize("at_once", [1, 3, 500])
@pytest.mark.parametrize("seed", range(5))
def test_index_in_lmdb_answers_as_the_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, at_once: int
) -> None:
    """After any changes, commits, aborts and restarts; however many values are put by one call."""
    monkeypatch.setattr(lmdb_update, "PUT_AT_ONCE", at_once)
    monkeypatch.setattr(lmdb_logs, "PUT_AT_ONCE", at_once)
    pair = Pair(tmp_path / "index", seed)
    for _step in range(25):
        pair.update()
        if pair.draw.random() < 0.2:
            pair.open()
        assert pair.differences() == [], f"seed {seed}"
    for index in pair.indexes:
        index.close()
