"""Damaged parts of the index in LMDB go, and with them nothing that is whole (rule S24)."""

from __future__ import annotations

import gc
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.index.base import BlockLocation, IndexRow, LogUse
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.lmdb_tables import LEDGERS_KEY, ROWS_KEY
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.types import EntryId, LedgerId

LEDGERS = range(1, 6)
ROWS = 4

Damage = Callable[[Any, LmdbIndex], None]


def row(ledger_id: int, number: int) -> IndexRow:
    location = BlockLocation(ledger_id, 4096 * (number + 1), 100)
    return IndexRow(EntryId(10 * number), EntryId(10 * number + 7), location, False)


def rows_of(ledger_id: int) -> list[IndexRow]:
    return [row(ledger_id, number) for number in range(ROWS)]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[LmdbIndex]:
    """Each of the ledgers has its rows in a log of its own."""
    with closing(LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)) as made:
        update = made.begin()
        for ledger_id in LEDGERS:
            update.put_ledger_record(LedgerId(ledger_id), LedgerRecord(last_entry=EntryId(37)))
            for each in rows_of(ledger_id):
                update.put_row(LedgerId(ledger_id), each)
        update.commit()
        yield made


def flip(transaction: Any, table: Any, key: bytes) -> None:
    stored = bytearray(transaction.get(key, db=table))
    stored[6] ^= 0xFF
    transaction.put(key, bytes(stored), db=table)


def rotten(*places: tuple[int, int]) -> Damage:
    """Rows of ledgers, by their numbers."""

    def damage(transaction: Any, index: LmdbIndex) -> None:
        for ledger_id, number in places:
            flip(transaction, index._rows, struct.pack(">QQ", ledger_id, 10 * number))

    return damage


def lost(*places: tuple[int, int]) -> Damage:
    def damage(transaction: Any, index: LmdbIndex) -> None:
        for ledger_id, number in places:
            transaction.delete(struct.pack(">QQ", ledger_id, 10 * number), db=index._rows)

    return damage


def proofs(*ledgers: int, gone: bool = False) -> Damage:
    def damage(transaction: Any, index: LmdbIndex) -> None:
        for ledger_id in ledgers:
            key = struct.pack(">Q", ledger_id)
            if gone:
                transaction.delete(key, db=index._proofs)
            else:
                flip(transaction, index._proofs, key)

    return damage


CASES: dict[str, tuple[Damage, dict[int, int]]] = {
    "first row": (rotten((1, 0)), {1: 37}),
    "row in the middle": (rotten((3, 1)), {3: 37}),
    "last row": (rotten((2, 3)), {2: 27}),
    "last row of all": (rotten((5, 3)), {5: 27}),
    "rows of neighbours": (rotten((2, 2), (2, 3), (3, 0)), {2: 17, 3: 37}),
    "all rows": (rotten(*((4, number) for number in range(ROWS))), {4: -1}),
    "row that is lost": (lost((4, 1)), {4: 37}),
    "all rows are lost": (lost(*((3, number) for number in range(ROWS))), {3: -1}),
    "proof": (proofs(2), {2: 37}),
    "proofs of neighbours": (proofs(1, 2, 4), {1: 37, 2: 37, 4: 37}),
    "last proof": (proofs(5), {5: 37}),
    "proof that is lost": (proofs(3, gone=True), {3: 37}),
}


@pytest.mark.parametrize("case", CASES)
def test_ledgers_whose_rows_do_not_add_up_go_and_all_others_stay(
    index: LmdbIndex, tmp_path: Path, case: str
) -> None:
    damage, expected = CASES[case]
    with index._env.begin(write=True) as transaction:
        damage(transaction, index)
    for ledger_id in expected:
        with pytest.raises(CorruptionError):
            index.rows(LedgerId(ledger_id))
    update = index.begin()
    dropped = update.drop_damaged()
    assert dropped == expected, "of each the highest entry that a good row named"
    update.commit()
    index.close()
    with closing(LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)) as again:
        for ledger_id in LEDGERS:
            kept = [] if ledger_id in expected else rows_of(ledger_id)
            assert again.rows(LedgerId(ledger_id)) == kept
            assert again.row_at(LedgerId(ledger_id), EntryId(99)) == (kept[-1] if kept else None)
            assert again.ledger_record(LedgerId(ledger_id)) is not None
        bytes_of = sum(each.byte_count for each in rows_of(1))
        left = [ledger_id for ledger_id in LEDGERS if ledger_id not in expected]
        assert again.log_use() == {ledger_id: LogUse(ROWS, bytes_of) for ledger_id in left}
        update = again.begin()  # copies come back
        for ledger_id in expected:
            update.put_row(LedgerId(ledger_id), row(ledger_id, 1))
        update.commit()
    with closing(LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)) as again:
        for ledger_id in expected:
            assert again.rows(LedgerId(ledger_id)) == [row(ledger_id, 1)]


def test_nothing_goes_from_an_index_that_is_whole(index: LmdbIndex) -> None:
    update = index.begin()
    assert update.drop_damaged() == {}
    update.commit()
    for ledger_id in LEDGERS:
        assert index.rows(LedgerId(ledger_id)) == rows_of(ledger_id)


@pytest.mark.parametrize("key", [ROWS_KEY, LEDGERS_KEY])
def test_update_that_cannot_begin_stands_in_the_way_of_no_other(
    index: LmdbIndex, key: bytes
) -> None:
    """LMDB has one at a time, and the flush that comes next would wait for ever."""
    with index._env.begin(write=True) as transaction:
        flip(transaction, index._tables.meta, key)
    kept: list[CorruptionError] = []

    def begin() -> None:
        with pytest.raises(CorruptionError):
            index.begin()

    try:
        index.begin()
    except CorruptionError as error:
        kept.append(error)  # and with it all that its traceback leads to
    again = threading.Thread(target=begin, daemon=True)
    again.start()
    again.join(5)
    waits = again.is_alive()
    kept.clear()
    gc.collect()  # so that a failure ends here
    again.join()
    assert not waits, "for the update that could not begin"
