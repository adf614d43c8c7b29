"""A damaged key of an inner page leads searches astray: refused at the start, never believed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.index import lmdb_index
from bookie_server.storage.index.base import BlockLocation, IndexRow
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.lmdb_pages import check_pages
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.types import EntryId, LedgerId
from tests.unit.bookie_server.storage.index.test_lmdb_pages import newest_root, write

PAGE = 4096
LEDGERS = 16
ENTRIES = 3000
STEP = 50
BRANCH, LEAF = 1, 2
BITS = [(7, 0), (7, 2), (14, 0), (14, 3), (15, 3), (15, 5)]
"""Of a row's key: byte and bit, in the ledger's id and in the entry's."""


def row(first: int, last: int | None = None) -> IndexRow:
    ends = EntryId(first if last is None else last)
    return IndexRow(EntryId(first), ends, BlockLocation(1, PAGE, 9), False)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("index") / "index"
    with closing(LmdbIndex(path, map_bytes=16 * MIB)) as index:
        update = index.begin()
        for ledger_id in map(LedgerId, range(LEDGERS)):
            for first in range(0, ENTRIES, STEP):
                update.append_row(ledger_id, row(first, first + STEP - 1))
            update.put_ledger_record(ledger_id, LedgerRecord(last_entry=EntryId(ENTRIES - 1)))
        update.commit()
    return (path / "data.mdb").read_bytes()


def row_keys(data: bytes, kind: int) -> Iterator[list[int]]:
    """Where the keys of rows are in each page of a kind."""
    for page in range(2 * PAGE, len(data), PAGE):
        _number, flags, lower, _upper = struct.unpack_from("<QxxHHH", data, page)
        pointers = struct.unpack_from(f"<{(lower - 16) // 2}H", data, page + 16)
        if flags & 0x6F == kind and struct.unpack_from("<6xH", data, page + pointers[-1])[0] == 16:
            yield [page + each + 8 for each in pointers]


def reads_right(index: LmdbIndex) -> bool:
    """Whether every row is found. Raises what a read raises."""
    return all(
        index.row_at(LedgerId(ledger_id), EntryId(entry)) is not None
        for ledger_id in range(LEDGERS)
        for entry in range(STEP // 2, ENTRIES, STEP)
    )


def test_damaged_key_of_an_inner_page_is_refused_unless_it_leads_nowhere_else(
    good: bytes, tmp_path: Path
) -> None:
    refused = right = 0
    for keys in row_keys(good, BRANCH):
        for key in keys[1:]:
            for byte, bit in BITS:
                data = bytearray(good)
                data[key + byte] ^= 1 << bit
                directory = write(tmp_path / "flipped", data)
                try:
                    index = LmdbIndex(directory, map_bytes=16 * MIB)
                except CorruptionError as error:
                    assert "a search would not lead to page" in str(error)
                    refused += 1
                    continue
                with closing(index):
                    assert reads_right(index)
                right += 1
    assert refused > 50 and right < refused / 4


def test_damaged_key_of_a_row_is_left_to_the_scrub(good: bytes, tmp_path: Path) -> None:
    """At the begin of a page or at its end: it is the row that is damaged, and the index heals."""
    tried = 0
    for keys in row_keys(good, LEAF):
        for key in (keys[0], keys[1], keys[-1]):
            for byte, bit in BITS:
                data = bytearray(good)
                data[key + byte] ^= 1 << bit
                with closing(LmdbIndex(write(tmp_path / "flipped", data), map_bytes=16 * MIB)):
                    tried += 1
    assert tried > 100


def test_search_that_damage_since_the_start_leads_astray_denies_nothing_and_stops_no_thread(
    good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_index, "check_pages", lambda _path: None)
    outcomes: set[str] = set()
    (keys,) = row_keys(good, BRANCH)
    for key in keys[1:]:
        for byte, bit in BITS:
            data = bytearray(good)
            data[key + byte] ^= 1 << bit
            directory = write(tmp_path / "flipped", data)
            with closing(LmdbIndex(directory, map_bytes=16 * MIB)) as index:
                for ledger_id in map(LedgerId, range(LEDGERS)):
                    for entry in range(STEP // 2, ENTRIES, 3 * STEP):
                        try:
                            assert index.row_at(ledger_id, EntryId(entry)), "denied"
                        except CorruptionError as error:
                            outcomes.add(str(error).split("leads to ")[-1])
                    update = index.begin()
                    with suppress(CorruptionError):
                        update.last_entry(ledger_id)
                    update.abort()
    assert any("a row behind it" in each for each in outcomes), outcomes


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_index_that_was_changed_in_every_way_is_no_damage(tmp_path: Path, seed: int) -> None:
    """Keys of inner pages may be below all that is left beneath them."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    ledgers = [LedgerId(draw.randrange(10 ** draw.choice([2, 4, 9]))) for _ in range(100)]
    path = tmp_path / "index"
    with closing(LmdbIndex(path, map_bytes=64 * MIB)) as index:
        for commit in range(20):
            update: Any = index.begin()
            for _ in range(draw.choice([3, 100, 1000])):
                ledger_id = draw.choice(ledgers)
                if commit % 3:
                    update.put_row(ledger_id, row(draw.randrange(10 ** draw.choice([3, 6, 12]))))
                else:
                    update.delete_rows(ledger_id, draw.choice([1, 50]))
            update.commit()
            check_pages(path)
    assert path.joinpath("data.mdb").stat().st_size > 30 * PAGE


def test_list_of_free_pages_that_has_inner_pages_is_no_damage(tmp_path: Path) -> None:
    """Its keys are numbers in the order of the machine; a reader that stays makes it long."""
    path = tmp_path / "index"
    with closing(LmdbIndex(path, map_bytes=64 * MIB)) as index:
        reading: Any = index._env.begin()
        with reading:
            for commit in range(600):
                update: Any = index.begin()
                update.put_row(LedgerId(1), row(commit))
                update.commit()
            check_pages(path)
            data = path.joinpath("data.mdb").read_bytes()
    assert struct.unpack_from("<HH", data, newest_root(data) + 40 + 4)[1] > 1, "it has inner pages"
