"""Both indexes keep one contract, and agree with a dict."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index.base import BlockLocation, Index, IndexRow
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.memory_index import MemoryIndex
from bookie_server.storage.journal.mark import Mark
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId

ANY = TypeVar("ANY")
MAX = 2**63 - 1


@pytest.fixture(params=["lmdb", "memory"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Index]:
    if request.param == "lmdb":
        return lambda: LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)
    memory = MemoryFileSystem()
    return lambda: MemoryIndex(memory, Path("/index"))


@pytest.fixture
def index(reopen: Callable[[], Index]) -> Iterator[Index]:
    with closing(reopen()) as opened:
        yield opened


def row(first: int, last: int | None = None, *, sparse: bool = False) -> IndexRow:
    location = BlockLocation(1, first % 1000, 3)
    return IndexRow(EntryId(first), EntryId(first if last is None else last), location, sparse)


def put(index: Index, rows: dict[int, list[IndexRow]]) -> None:
    update = index.begin()
    for ledger_id, ledger_rows in rows.items():
        for one in ledger_rows:
            update.put_row(LedgerId(ledger_id), one)
    update.commit()


def test_empty_index_knows_nothing(index: Index) -> None:
    assert index.mark() is None
    assert index.row_at(LedgerId(0), EntryId(0)) is None
    assert index.rows(LedgerId(0)) == []
    assert index.ledger_record(LedgerId(0)) is None
    assert (list(index.ledger_records()), index.ledger_count()) == ([], 0)
    assert index.highest_ledger() == -1
    update = index.begin()
    assert update.last_entry(LedgerId(0)) == NO_ENTRY
    assert update.rows_in_range(LedgerId(0), EntryId(0), EntryId(9)) == ([], None)
    update.abort()
    update.abort()


def test_row_at_is_the_last_row_at_or_below_the_entry(index: Index) -> None:
    put(index, {1: [row(MAX)], 2: [row(5, 9), row(20, 40, sparse=True)], 3: [row(0)]})
    for entry_id, expected in ((4, None), (5, 5), (6, 5), (19, 5), (20, 20), (MAX, 20)):
        found = index.row_at(LedgerId(2), EntryId(entry_id))
        assert (found.first_entry if found else None) == expected
    assert index.row_at(LedgerId(2), EntryId(30)) == row(20, 40, sparse=True)
    assert index.row_at(LedgerId(1), EntryId(MAX)) == row(MAX)
    assert index.row_at(LedgerId(4), EntryId(0)) is None
    assert index.rows(LedgerId(2)) == [row(5, 9), row(20, 40, sparse=True)]
    assert index.rows(LedgerId(4)) == []


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_rows_from_an_entry_begin_with_the_one_that_decides_about_it(
    index: Index, limit: int
) -> None:
    rows = [row(5, 9), row(20, 40, sparse=True), row(50)]
    put(index, {1: [row(MAX)], 2: rows, 3: [row(0)]})
    for entry_id, number in ((0, 0), (5, 0), (19, 0), (20, 1), (49, 1), (50, 2), (MAX, 2)):
        found = index.rows_from(LedgerId(2), EntryId(entry_id), limit)
        assert found == rows[number : number + limit], entry_id
    assert index.rows_from(LedgerId(4), EntryId(0), limit) == []


def test_update_is_visible_to_readers_after_its_commit(index: Index) -> None:
    update = index.begin()
    update.put_row(LedgerId(2), row(5, 9))
    update.put_ledger_record(LedgerId(2), LedgerRecord(b"h" * 32, True, EntryId(3), EntryId(9)))
    update.put_mark(Mark(1, 4096, 2, 3))
    assert update.last_entry(LedgerId(2)) == 9
    assert update.rows_in_range(LedgerId(2), EntryId(0), EntryId(5)).rows == [row(5, 9)]
    assert index.row_at(LedgerId(2), EntryId(5)) is None
    assert index.ledger_record(LedgerId(2)) is None and index.mark() is None
    update.commit()
    assert index.row_at(LedgerId(2), EntryId(5)) == row(5, 9)
    assert index.mark() == Mark(1, 4096, 2, 3)


def test_an_aborted_update_leaves_no_trace(index: Index) -> None:
    put(index, {1: [row(1)]})
    update = index.begin()
    update.put_row(LedgerId(1), row(1, 7))
    update.put_row(LedgerId(1), row(3))
    update.put_mark(Mark(1, 4096, 2, 3))
    update.abort()
    assert index.rows(LedgerId(1)) == [row(1)] and index.mark() is None


def test_everything_is_there_after_reopening(reopen: Callable[[], Index]) -> None:
    ledger_records = {
        LedgerId(1): LedgerRecord(),
        LedgerId(2): LedgerRecord(b"h" * 32, True, EntryId(5), EntryId(MAX)),
        LedgerId(300): LedgerRecord(b"", True, NO_ENTRY, NO_ENTRY),
        LedgerId(MAX): LedgerRecord(bytes(32), False, EntryId(0), EntryId(0)),
    }
    with closing(reopen()) as index:
        put(index, {1: [row(1)]})
        update = index.begin()
        for ledger_id, ledger_record in ledger_records.items():
            update.put_ledger_record(ledger_id, ledger_record)
        update.put_mark(Mark(1, 4096, 2, 3))
        update.commit()
        index.close()
    with closing(reopen()) as index:
        assert dict(index.ledger_records()) == ledger_records
        assert [index.ledger_record(ledger_id) for ledger_id in ledger_records] == list(
            ledger_records.values()
        )
        assert [ledger_id for ledger_id, _ledger_record in index.ledger_records()] == sorted(
            ledger_records
        )
        assert index.ledger_count() == 4
        assert index.highest_ledger() == max(ledger_records)
        assert index.rows(LedgerId(1)) == [row(1)]
        assert index.mark() == Mark(1, 4096, 2, 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    keys=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=12),
    ledger_id=st.integers(0, 3),
    first=st.integers(0, 32),
    length=st.integers(0, 20),
)
def test_ranges_agree_with_a_dict(
    keys: set[tuple[int, int]],
    ledger_id: int,
    first: int,
    length: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for index in (
        LmdbIndex(tmp_path_factory.mktemp("lmdb") / "index", map_bytes=MIB),
        MemoryIndex(MemoryFileSystem(), Path("/index")),
    ):
        with closing(index):
            put(index, {ledger: [row(e) for lg, e in keys if lg == ledger] for ledger in range(3)})
            mine = sorted(entry for ledger, entry in keys if ledger == ledger_id)
            last = first + length
            before = [e for e in mine if e <= first][-1:]
            inside = [e for e in mine if first < e <= last]
            behind = [e for e in mine if e > last]
            update = index.begin()
            found = update.rows_in_range(LedgerId(ledger_id), EntryId(first), EntryId(last))
            assert [one.first_entry for one in found.rows] == before + inside
            assert found.end == (behind[0] if behind else None)
            assert update.last_entry(LedgerId(ledger_id)) == (mine[-1] if mine else -1)
            update.abort()


def test_full_map_is_an_os_error_and_loses_nothing(tmp_path: Path) -> None:
    with closing(LmdbIndex(tmp_path / "index", map_bytes=MIB)) as index:
        put(index, {1: [row(1)]})
        update = index.begin()
        with pytest.raises(OSError, match="index_map_bytes") as caught:
            for entry_id in range(100_000):
                update.put_row(LedgerId(2), row(entry_id))
        assert caught.value.errno == errno.ENOSPC
        update.abort()
        put(index, {1: [row(2)]})
        assert index.rows(LedgerId(1)) == [row(1), row(2)]
        assert index.rows(LedgerId(2)) == []


def test_damaged_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    LmdbIndex(path, map_bytes=MIB).close()
    (path / "data.mdb").write_bytes(b"rubbish" * 4096)
    with pytest.raises(CorruptionError, match="index is damaged") as caught:
        LmdbIndex(path, map_bytes=MIB)
    assert str(path) in str(caught.value)
    path.joinpath("data.mdb").unlink()
    path.joinpath("data.mdb").mkdir()
    with pytest.raises(OSError, match=str(path)):
        LmdbIndex(path, map_bytes=MIB)


def stored_index(path: Path, ledgers: range, rows: int) -> None:
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        put(index, {ledger: [row(10 * e, 10 * e + 7) for e in range(rows)] for ledger in ledgers})
        update = index.begin()
        for ledger in ledgers:
            ledger_record = LedgerRecord(b"", ledger % 2 == 0, EntryId(5), EntryId(10 * rows - 3))
            update.put_ledger_record(LedgerId(ledger), ledger_record)
        update.commit()


@contextmanager
def tampering(path: Path) -> Iterator[tuple[Any, Callable[[bytes], Any]]]:
    """A transaction behind the index's back, and its tables."""
    environment = lmdb.open(str(path), map_size=8 * MIB, max_dbs=4)
    tables = {name: environment.open_db(name) for name in (b"rows", b"ledgers", b"proofs", b"meta")}
    with environment.begin(write=True) as transaction:
        yield transaction, tables.__getitem__
    environment.close()


@pytest.mark.parametrize("table", [b"rows", b"ledgers", b"proofs", b"meta"])
@pytest.mark.parametrize("bit", [0, 7])
def test_flipped_bit_in_any_value_is_refused(tmp_path: Path, table: bytes, bit: int) -> None:
    path = tmp_path / "index"
    stored_index(path, range(2), 3)
    with tampering(path) as (transaction, table_of):
        key, value = next(iter(transaction.cursor(table_of(table))))
    for place in range(len(value)):
        with tampering(path) as (transaction, table_of):
            flipped = bytearray(value)
            flipped[place] ^= 1 << bit
            transaction.put(key, bytes(flipped), db=table_of(table))
        with (
            pytest.raises(CorruptionError, match="is damaged"),
            closing(LmdbIndex(path, map_bytes=8 * MIB)) as index,
        ):
            index.row_at(LedgerId(0), EntryId(3))
        with tampering(path) as (transaction, table_of):
            transaction.put(key, value, db=table_of(table))


def test_entry_is_denied_only_if_all_rows_are_there(tmp_path: Path) -> None:
    """A row that is gone must not turn what it held into "no such entry"."""
    path = tmp_path / "index"
    stored_index(path, range(3), 4)
    with tampering(path) as (transaction, table_of):
        transaction.delete(struct.pack(">QQ", 1, 20), db=table_of(b"rows"))
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        assert index.row_at(LedgerId(1), EntryId(15)) == row(10, 17), "what is found is right"
        for entry_id in (8, 25, 99):
            with pytest.raises(CorruptionError, match="3 rows, which do not add up to the 4"):
                index.row_at(LedgerId(1), EntryId(entry_id))
        with pytest.raises(CorruptionError, match="do not add up"):
            index.rows(LedgerId(1))
        assert index.row_at(LedgerId(2), EntryId(99)) == row(30, 37)
        assert index.row_at(LedgerId(7), EntryId(0)) is None
        put(index, {2: [row(50)]})
        assert index.row_at(LedgerId(2), EntryId(50)) == row(50)
        assert index.row_at(LedgerId(2), EntryId(60)) == row(50)


def test_rows_from_an_entry_are_listed_only_if_all_are_there(tmp_path: Path) -> None:
    path = tmp_path / "index"
    stored_index(path, range(3), 4)
    with tampering(path) as (transaction, table_of):
        transaction.delete(struct.pack(">QQ", 1, 20), db=table_of(b"rows"))
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        for entry_id, limit in ((0, 1), (0, 9), (30, 1)):
            with pytest.raises(CorruptionError, match="3 rows, which do not add up to the 4"):
                index.rows_from(LedgerId(1), EntryId(entry_id), limit)
        assert index.rows_from(LedgerId(2), EntryId(30), 9) == [row(30, 37)]


def test_sparse_block_denies_nothing_while_a_row_is_lost(tmp_path: Path) -> None:
    """What it lacks may be in a block whose row was between its own and the next."""
    path = tmp_path / "index"
    sparse = row(0, 20, sparse=True)
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        put(index, {1: [sparse, row(5), row(30)]})
        assert index.row_at(LedgerId(1), EntryId(3)) == sparse
    with tampering(path) as (transaction, table_of):
        transaction.delete(struct.pack(">QQ", 1, 5), db=table_of(b"rows"))
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        for entry_id in (3, 6, 20):
            with pytest.raises(CorruptionError, match="do not add up"):
                index.row_at(LedgerId(1), EntryId(entry_id))


@pytest.mark.parametrize("table", [b"ledgers", b"proofs"])
def test_lost_ledger_is_noticed_at_the_start(tmp_path: Path, table: bytes) -> None:
    path = tmp_path / "index"
    stored_index(path, range(3), 1)
    with tampering(path) as (transaction, table_of):
        transaction.delete(struct.pack(">Q", 1), db=table_of(table))
    with pytest.raises(CorruptionError, match="do not add up"):
        LmdbIndex(path, map_bytes=8 * MIB)


def test_ledger_lost_after_the_start_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "index"
    stored_index(path, range(3), 1)
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        with index._env.begin(write=True) as transaction:
            transaction.delete(struct.pack(">Q", 2), db=index._ledgers)
        with pytest.raises(CorruptionError, match="ledger 2 is lost"):
            index.ledger_record(LedgerId(2))
        assert index.ledger_record(LedgerId(9)) is None
        update = index.begin()
        update.put_ledger_record(LedgerId(9), LedgerRecord(fenced=True))
        update.commit()
        with index._env.begin(write=True) as transaction:
            transaction.delete(struct.pack(">Q", 9), db=index._ledgers)
        with pytest.raises(CorruptionError, match="ledger 9 is lost"):
            index.ledger_record(LedgerId(9))


def test_state_while_the_ledger_is_committed_first_is_none_or_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read began before the commit, so it does not see the ledger, and ends after it, when the
    ledger is known. That is no damage. It came up in statistics, which ask for such ledgers."""
    with closing(LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)) as index:
        real = index._env
        transactions = 0

        @contextmanager
        def begin(**options: Any) -> Iterator[Any]:
            nonlocal transactions
            transactions += 1
            number = transactions
            with real.begin(**options) as transaction:
                yield transaction
            if number == 1:
                update = index.begin()
                update.put_ledger_record(LedgerId(9), LedgerRecord(fenced=True))
                update.commit()

        class Environment:
            def begin(self, **options: Any) -> Any:
                return real.begin(**options) if options.get("write") else begin(**options)

            def close(self) -> None:
                real.close()

        monkeypatch.setattr(index, "_env", Environment())
        assert index.ledger_record(LedgerId(9)) is None
        assert index.ledger_record(LedgerId(9)) == LedgerRecord(fenced=True)


def test_denial_reads_only_what_was_added_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader at the end of a long ledger asks again and again, with a commit in between."""
    path = tmp_path / "index"
    stored_index(path, range(2), 300)
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        counts: list[int] = []
        read = LmdbIndex._read_firsts

        def count(*arguments: Any) -> Any:
            proof, firsts = read(*arguments)
            counts.append(len(firsts))
            return proof, firsts

        monkeypatch.setattr(LmdbIndex, "_read_firsts", count)
        ledger_id, entry_id = LedgerId(1), EntryId(10**6)
        for _again in range(2):
            assert index.row_at(ledger_id, entry_id) == row(2990, 2997)
        put(index, {0: [row(5000)]})
        assert index.row_at(ledger_id, entry_id) == row(2990, 2997)
        put(index, {1: [row(5000), row(5001)]})
        assert index.row_at(ledger_id, entry_id) == row(5001)
        assert counts == [300, 2]
        put(index, {1: [row(2991, 2992)]})  # among the others: all are read again
        assert index.row_at(ledger_id, entry_id) == row(5001)
        assert index.row_at(ledger_id, EntryId(2995)) == row(2991, 2992)
        assert counts == [300, 2, 0, 303]


def test_row_lost_after_it_was_checked_denies_nothing(tmp_path: Path) -> None:
    path = tmp_path / "index"
    stored_index(path, range(1), 4)
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        assert index.row_at(LedgerId(0), EntryId(99)) == row(30, 37)
        with index._env.begin(write=True) as transaction:
            transaction.delete(struct.pack(">QQ", 0, 30), db=index._rows)
        with pytest.raises(CorruptionError, match="searching entry 99"):
            index.row_at(LedgerId(0), EntryId(99))


def test_search_led_to_the_wrong_row_denies_nothing(tmp_path: Path) -> None:
    """A damaged inner page leads a search elsewhere, though every row is there."""
    path = tmp_path / "index"
    stored_index(path, range(1), 4)
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        assert index.row_at(LedgerId(0), EntryId(99)) == row(30, 37)
        with index._env.begin(db=index._rows) as transaction:
            firsts = index._verified_firsts(transaction, LedgerId(0))
            for astray in (None, row(0, 7), row(10, 17)):
                with pytest.raises(CorruptionError, match="searching entry 99"):
                    index._check_denial(firsts, LedgerId(0), EntryId(99), astray)


def test_proofs_follow_replaced_rows_and_records(tmp_path: Path) -> None:
    path = tmp_path / "index"
    stored_index(path, range(2), 3)
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        put(index, {0: [row(10, 18), row(12)], 1: [row(0, 9)]})
        update = index.begin()
        update.put_ledger_record(LedgerId(1), LedgerRecord(fenced=True))
        update.put_ledger_record(LedgerId(1), LedgerRecord(fenced=True, last_entry=EntryId(1)))
        update.commit()
        aborted = index.begin()
        aborted.put_row(LedgerId(0), row(500))
        aborted.put_ledger_record(LedgerId(5), LedgerRecord())
        aborted.abort()
        assert index.ledger_record(LedgerId(5)) is None
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        assert [each.first_entry for each in index.rows(LedgerId(0))] == [0, 10, 12, 20]
        assert index.row_at(LedgerId(1), EntryId(9)) == row(0, 9)
        assert index.ledger_count() == 2


def test_damaged_memory_index_is_refused() -> None:
    memory = MemoryFileSystem()
    index = MemoryIndex(memory, Path("/index"))
    put(index, {1: [row(1)]})
    for place in range(len(memory.open(index.file_path).pread(1 << 20, 0))):
        files = memory.crash_clone(None)
        files.damage(index.file_path, place, b"~")
        with pytest.raises(CorruptionError, match="wrong checksum"):
            MemoryIndex(files, Path("/index"))
