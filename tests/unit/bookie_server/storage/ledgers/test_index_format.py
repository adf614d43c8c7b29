"""What stands in an index, byte by byte: a bookie's disks outlive the program that wrote them."""

from __future__ import annotations

import struct
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import lmdb
from google_crc32c import value as crc32c_value

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.index.base import BlockLocation, IndexRow
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.journal.mark import Mark
from spark_ledger.limits import MIB
from spark_ledger.types import EntryId, LedgerId

HASH = sha256(b"key").digest()
ROWS = {
    struct.pack(">QQ", 7, 10): struct.pack(">IIIBq", 3, 4096, 500, 0, 19),
    struct.pack(">QQ", 7, 20): struct.pack(">IIIBq", 3, 8192, 600, 1, 40),
    struct.pack(">QQ", 8, 0): struct.pack(">IIIBq", 4, 4096, 70, 0, 0),
}
LEDGERS = {
    struct.pack(">Q", 7): struct.pack(">B32sqq", 3, HASH, 39, 40),
    struct.pack(">Q", 8): struct.pack(">B32sqq", 0, b"", -1, 0),
}
LOGS = {
    struct.pack(">I", 3): struct.pack(">QQ", 2, 500 + 600 + 2 * 24),
    struct.pack(">I", 4): struct.pack(">QQ", 1, 70 + 24),
}
MARK = struct.pack(">QQQI", 5, 12288, 77, 0xABCD)


def stored(key: bytes, value: bytes) -> bytes:
    return value + struct.pack(">I", crc32c_value(key + value))


def proof_of(rows: dict[bytes, bytes]) -> bytes:
    sums = [crc32c_value(key + value) for key, value in rows.items()]
    return struct.pack(">QQ", len(sums), sum(sums))


def tables() -> dict[bytes, dict[bytes, bytes]]:
    """All tables, spelt out."""
    by_ledger = {
        ledger: {key: value for key, value in ROWS.items() if key.startswith(ledger)}
        for ledger in LEDGERS
    }
    plain = {
        b"rows": ROWS,
        b"ledgers": LEDGERS,
        b"proofs": {ledger: proof_of(rows) for ledger, rows in by_ledger.items()},
        b"meta": {
            b"ledgers": proof_of(LEDGERS),
            b"logs": proof_of(LOGS) + proof_of(ROWS) + struct.pack(">I", 4),
            b"mark": MARK,
            b"rows": proof_of(ROWS),
        },
        b"logs": LOGS,
    }
    return {
        name: {key: stored(key, value) for key, value in table.items()}
        for name, table in plain.items()
    }


def rows_of_7() -> list[IndexRow]:
    return [
        IndexRow(EntryId(10), EntryId(19), BlockLocation(3, 4096, 500), is_sparse=False),
        IndexRow(EntryId(20), EntryId(40), BlockLocation(3, 8192, 600), is_sparse=True),
    ]


def row_of_8() -> IndexRow:
    return IndexRow(EntryId(0), EntryId(0), BlockLocation(4, 4096, 70), is_sparse=False)


LEDGER_RECORDS = {
    LedgerId(7): LedgerRecord(HASH, True, EntryId(39), EntryId(40)),
    LedgerId(8): LedgerRecord(last_entry=EntryId(0)),
}


def test_stored_bytes_are_as_documented(tmp_path: Path) -> None:
    with closing(LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)) as index:
        update = index.begin()
        for row in rows_of_7():
            update.put_row(LedgerId(7), row)
        update.put_row(LedgerId(8), row_of_8())
        for ledger_id, ledger_record in LEDGER_RECORDS.items():
            update.put_ledger_record(ledger_id, ledger_record)
        update.put_mark(Mark(5, 12288, 77, 0xABCD))
        update.commit()
    with lmdb.open(str(tmp_path / "index"), map_size=8 * MIB, max_dbs=5) as environment:
        found = {}
        for name in tables():
            table = environment.open_db(name, create=False)
            with environment.begin(db=table) as transaction:
                found[name] = dict(transaction.cursor())
    assert found == tables()


def test_documented_bytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.mkdir()
    with lmdb.open(str(path), map_size=8 * MIB, max_dbs=5) as environment:
        for name, values in tables().items():
            table = environment.open_db(name)
            with environment.begin(db=table, write=True) as transaction:
                for key, value in values.items():
                    transaction.put(key, value)
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        assert index.rows(LedgerId(7)) == rows_of_7()
        assert index.rows(LedgerId(8)) == [row_of_8()]
        assert dict(index.ledger_records()) == LEDGER_RECORDS
        assert index.mark() == Mark(5, 12288, 77, 0xABCD)
