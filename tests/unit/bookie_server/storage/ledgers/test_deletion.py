"""Deleted ledgers leave memory, index and disk, beside whatever else goes on (rule S17)."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index.base import (
    BlockLocation,
    HeldLedger,
    Index,
    IndexRow,
    LogUse,
    run_log_location,
)
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.memory_index import MemoryIndex
from bookie_server.storage.ledgers import directory_store
from bookie_server.storage.ledgers.dead_blocks import DeadBlocks
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import access_key_hash
from tests.listed import listed
from tests.unit.bookie_server.storage.support import LEDGERS, Machine, expected, formatted
from tests.unit.bookie_server.storage.support import small_config as config

NO_LEDGER = BookieStatus.NO_SUCH_LEDGER


def status_of(machine: Machine, ledger_id: int, entry_id: int = 0) -> BookieStatus:
    entry = EntryId(entry_id)
    return machine.bookie.read(LedgerId(ledger_id), entry, entry, stride=1, max_bytes=1).status


def delete(machine: Machine, *ledger_ids: int) -> int:
    machine.keys.missing.update(ledger_ids)
    return machine.bookie.delete_ledgers(map(LedgerId, ledger_ids))


@pytest.fixture
def machine() -> Machine:
    return Machine(formatted(), config(write_once_bytes=4 * KIB))


def test_deleted_ledger_is_unknown_and_stays_so_after_a_restart(machine: Machine) -> None:
    for ledger_id in (2, 3, 4):
        assert machine.add(ledger_id, range(9), key=b"k", lac=5) is BookieStatus.OK
        assert machine.add(ledger_id, range(9, 12), key=b"k", size=3000) is BookieStatus.OK
    machine.flush()
    assert machine.add(2, [20], key=b"k") is BookieStatus.OK  # and something that is in memory
    freed = delete(machine, 2, 3)
    assert freed > 2 * (9 * 40 + 3 * 3000)
    files = machine.bookie._storage._stores[0]._file_system
    for again in range(2):
        for ledger_id in (2, 3):
            assert status_of(machine, ledger_id) is NO_LEDGER
            assert listed(machine.bookie, LedgerId(ledger_id)) is None
            end = machine.bookie.end_of_ledger(LedgerId(ledger_id), access_key=b"")
            assert end.status is NO_LEDGER
        assert list(machine.held(4)) == list(range(12)), "others keep what they have"
        assert [h.ledger_id for h in machine.bookie.held_ledgers(-1, 9)] == [4]
        assert machine.bookie.next_ledger_id() == 5
        if not again:
            machine.flush()
            machine.close()
            machine = Machine(files, config(write_once_bytes=4 * KIB))


def test_add_of_a_deleted_ledger_asks_the_metadata_and_is_refused(machine: Machine) -> None:
    assert machine.add(2, range(9)) is BookieStatus.OK
    delete(machine, 2)
    assert machine.add(2, [9]) is BookieStatus.UNAUTHORIZED
    assert machine.fence(2) is BookieStatus.UNAUTHORIZED
    assert status_of(machine, 2, 9) is NO_LEDGER


def test_ledger_that_a_failed_flush_has_frozen_goes_as_a_whole(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ledger_id in (2, 4):
        machine.add(ledger_id, range(9))
    with monkeypatch.context() as patch:
        patch.setattr(MemoryIndex, "begin", refuse)
        with pytest.raises(OSError, match="no"):
            machine.bookie.flush()
    machine.add(2, [9])
    assert machine.bookie.stats().ledger_storage.ledgers == 2
    delete(machine, 2)
    assert machine.bookie.stats().ledger_storage.ledgers == 1
    machine.flush()
    assert status_of(machine, 2) is NO_LEDGER
    assert machine.held(4) == expected(4, range(9))
    assert machine.bookie.stats().ledger_storage.cache_bytes == 0
    assert machine.bookie.stats().ledger_storage.ledgers == 1


def refuse(_index: MemoryIndex) -> None:
    raise OSError("no")


def test_add_decided_before_the_deletion_does_not_bring_half_a_ledger_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service thread stands between its decision and what it keeps in memory."""
    machine.add(2, range(9))
    machine.flush()
    storage = machine.bookie._storage
    store = storage.store_of(LedgerId(2))
    delete_some, begun, go_on = store.delete_some, threading.Event(), threading.Event()

    def slowly(ids: list[LedgerId], dead: DeadBlocks) -> tuple[int, LogUse]:
        begun.set()
        assert go_on.wait(10)
        return delete_some(ids, dead)

    monkeypatch.setattr(store, "delete_some", slowly)
    deleting = threading.Thread(target=delete, args=(machine, 2))

    def place_for(*_of: object) -> None:  # between the decision and the write cache
        deleting.start()
        assert begun.wait(10)

    monkeypatch.setattr(storage, "place_for", place_for)
    machine.add(2, [9])
    assert storage.ledger_record(LedgerId(2)) is None
    go_on.set()
    deleting.join()
    machine.flush()
    assert machine.bookie.held_ledgers(-1, 9) == []
    assert status_of(machine, 2, 9) is NO_LEDGER


def test_large_ledger_goes_in_bounded_steps_and_flushes_come_between(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        machine.add(2, [2 * number])
        machine.add(4, [number])
        machine.flush()
    monkeypatch.setattr(directory_store, "DELETED_ROWS_AT_ONCE", 3)
    store = machine.bookie._storage.store_of(LedgerId(2))
    steps: list[int] = []
    delete_some = store.delete_some

    def step(ids: list[LedgerId], dead: DeadBlocks) -> tuple[int, LogUse]:
        gone, use = delete_some(ids, dead)
        steps.append(use.rows)
        machine.keys.learn(4, b"")
        return gone, use

    monkeypatch.setattr(store, "delete_some", step)
    delete(machine, 2)
    assert steps == [3, 3, 2]
    assert store.index.rows(LedgerId(2)) == []
    assert list(machine.held(4)) == list(range(8))


def test_crash_in_the_middle_leaves_a_ledger_that_is_found_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        machine.add(2, [2 * number], key=b"k")
        machine.flush()
    monkeypatch.setattr(directory_store, "DELETED_ROWS_AT_ONCE", 1)
    store = machine.bookie._storage.store_of(LedgerId(2))
    with machine.bookie._storage._flush_lock:
        store.forget(frozenset([LedgerId(2)]))
        assert store.delete_some([LedgerId(2)], DeadBlocks()) == (0, LogUse(1, ANY_BYTES))
    files = store._file_system
    assert isinstance(files, MemoryFileSystem)
    after = Machine(files.crash_clone(None), config())
    assert after.bookie.held_ledgers(-1, 9) == [HeldLedger(LedgerId(2), access_key_hash(b"k"))]
    assert delete(after, 2) > 0
    assert after.bookie.held_ledgers(-1, 9) == []


class _AnyBytes(int):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other > 0

    __hash__ = int.__hash__


ANY_BYTES = _AnyBytes()


def test_deletion_that_fails_at_any_step_leaves_no_ledger_out_and_is_ended_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is acknowledged after the failure is in memory, and then on the disk."""
    monkeypatch.setattr(directory_store, "DELETED_ROWS_AT_ONCE", 3)
    steps_left = 0

    def plan(_operation: Operation) -> Fault | None:
        nonlocal steps_left
        steps_left -= 1
        return Fault(errno.EIO) if steps_left == 0 else None

    ledgers = (2, 3, 4)
    for step in itertools.count(1):
        files = FaultFileSystem(formatted(), plan)
        machine = Machine(files, config())
        for entry in (0, 2, 4, 6):
            for ledger_id in ledgers:
                machine.add(ledger_id, [entry])
            machine.flush()
        steps_left = step
        try:
            delete(machine, *ledgers)
        except OSError:
            machine.keys.missing.clear()
        if steps_left > 0:
            assert step > 12, "each ledger takes steps of its own"
            return
        for ledger_id in ledgers:
            before = machine.held(ledger_id)
            assert machine.add(ledger_id, [8]) is BookieStatus.OK
            assert machine.held(ledger_id) == before | expected(ledger_id, [8])
        in_memory = [machine.held(ledger_id) for ledger_id in ledgers]
        machine.flush()
        machine.close()
        machine = Machine(files, config())
        assert [machine.held(ledger_id) for ledger_id in ledgers] == in_memory
        delete(machine, *ledgers)
        assert machine.bookie.held_ledgers(-1, 9) == []


def test_replay_may_bring_a_ledger_back_and_it_goes_again(machine: Machine) -> None:
    machine.add(2, range(3))
    files = machine.bookie._storage._stores[0]._file_system
    assert isinstance(files, MemoryFileSystem)
    delete(machine, 2)  # the journal has it, and no mark is behind it
    after = Machine(files.crash_clone(None), config())
    assert [each.ledger_id for each in after.bookie.held_ledgers(-1, 9)] == [2]
    delete(after, 2)
    assert after.bookie.held_ledgers(-1, 9) == []


def test_held_ledgers_come_page_by_page_over_all_directories(machine: Machine) -> None:
    for ledger_id in range(1, 12):
        machine.add(ledger_id, [0], key=b"k" if ledger_id % 3 else b"")
    assert machine.bookie.held_ledgers(-1, 99) == [], "no flush has stored one"
    machine.flush()
    found: list[HeldLedger] = []
    while page := machine.bookie.held_ledgers(found[-1].ledger_id if found else -1, 4):
        assert len(page) <= 4
        found += page
    assert found == [
        HeldLedger(LedgerId(i), access_key_hash(b"k") if i % 3 else b"") for i in range(1, 12)
    ]


# -- the index ------------------------------------------------------------------------------------


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


def row(first: int, location: BlockLocation) -> IndexRow:
    return IndexRow(EntryId(first), EntryId(first), location, False)


def fill(index: Index, ledgers: range, rows: int = 4) -> None:
    update = index.begin()
    for ledger in map(LedgerId, ledgers):
        for number in range(rows):
            place = BlockLocation(ledger + 1, 4096 * (number + 1), 100)
            if number % 2:
                place = run_log_location(ledger + 1, 4096 * (number + 1), 1000)
            update.append_row(ledger, row(number, place))
        update.put_ledger_record(ledger, LedgerRecord(last_entry=EntryId(rows - 1)))
    update.commit()


def deleted(index: Index, ledger: int) -> LogUse:
    update = index.begin()
    rows = update.delete_rows(LedgerId(ledger), 1000)
    update.delete_ledger_record(LedgerId(ledger))
    update.commit()
    return LogUse(len(rows), sum(row.byte_count for row in rows))


RUN = 1 << 31


def test_use_of_logs_follows_rows(reopen: Callable[[], Index]) -> None:
    with closing(reopen()) as index:
        assert not index.log_use()
        fill(index, range(2))
        first, second = LogUse(2, 2 * 124), LogUse(2, 2 * 1024)
        both = {1: first, 2: first, 1 | RUN: second, 2 | RUN: second}
        assert index.log_use() == both
        assert deleted(index, 0) == LogUse(4, 2 * 124 + 2 * 1024)
        assert index.log_use() == {2: first, 2 | RUN: second}
        update = index.begin()
        old = row(0, BlockLocation(2, 4096, 100))
        new = row(0, BlockLocation(7, 8192, 100))
        assert update.move_row(LedgerId(1), old, new)
        assert not update.move_row(LedgerId(1), old, new), "it has moved"
        assert not update.move_row(LedgerId(5), old, new), "it is gone"
        update.commit()
        assert index.log_use() == {2: LogUse(1, 124), 7: LogUse(1, 124), 2 | RUN: second}
        aborted = index.begin()
        aborted.delete_rows(LedgerId(1), 3)
        aborted.abort()
    with closing(reopen()) as index:
        assert index.log_use() == {2: LogUse(1, 124), 7: LogUse(1, 124), 2 | RUN: second}
        assert index.highest_log() == 7
        deleted(index, 1)
        assert index.log_use() == {} and index.highest_log() == 7, "an id is used once"


def test_deleted_ledger_is_denied_for_good(reopen: Callable[[], Index]) -> None:
    with closing(reopen()) as index:
        fill(index, range(3))
        assert index.row_at(LedgerId(2), EntryId(99)) is not None, "its rows were checked"
        deleted(index, 2)
        for _reopened in range(2):
            assert index.ledger_record(LedgerId(2)) is None and not index.knows(LedgerId(2))
            assert index.row_at(LedgerId(2), EntryId(1)) is None and index.rows(LedgerId(2)) == []
            assert index.ledger_count() == 2 and index.highest_ledger() == 2
            assert [each.ledger_id for each in index.held_ledgers(-1, 9)] == [0, 1]
            index.close()
            index = reopen()
        fill(index, range(5, 6))
        assert index.highest_ledger() == 5
        index.close()


def test_row_that_is_taken_out_is_denied_and_counts_no_more(reopen: Callable[[], Index]) -> None:
    with closing(reopen()) as index:
        fill(index, range(2))
        first = row(0, BlockLocation(2, 4096, 100))
        for number, each in enumerate(index.rows(LedgerId(1))):
            assert index.row_at(LedgerId(1), EntryId(3)) is not None, "its rows were checked"
            update = index.begin()
            assert update.delete_row(LedgerId(1), each)
            assert not update.delete_row(LedgerId(1), each), "it is gone"
            assert not update.delete_row(LedgerId(0), first), "it is another one"
            update.commit()
            assert len(index.rows(LedgerId(1))) == 3 - number
            assert index.row_at(LedgerId(1), EntryId(number)) is None
    with closing(reopen()) as index:
        assert index.log_use() == {1: LogUse(2, 2 * 124), 1 | RUN: LogUse(2, 2 * 1024)}
        assert index.ledger_record(LedgerId(1)) == LedgerRecord(last_entry=EntryId(3))
        update = index.begin()
        update.append_row(LedgerId(1), first)
        update.commit()
        assert index.rows(LedgerId(1)) == [first]


def test_rows_without_a_record_are_held_and_go(index: Index) -> None:
    update = index.begin()
    update.put_row(LedgerId(3), row(0, BlockLocation(1, 4096, 10)))
    update.commit()
    assert index.held_ledgers(2, 1) == [HeldLedger(LedgerId(3), b"")]
    assert index.held_ledgers(3, 1) == []
    deleted(index, 3)
    assert index.held_ledgers(-1, 1) == []


def test_rows_of_a_block_are_those_that_name_it(index: Index) -> None:
    shared, other = BlockLocation(1, 4096, 10), BlockLocation(1, 8192, 10)
    update = index.begin()
    for first, place in ((0, shared), (3, other), (5, shared), (9, shared)):
        update.put_row(LedgerId(3), row(first, place))
    update.commit()
    found = index.rows_of_block(LedgerId(3), EntryId(0), EntryId(8), shared)
    assert [each.first_entry for each in found] == [0, 5]
    assert index.rows_of_block(LedgerId(4), EntryId(0), EntryId(8), shared) == []


# -- LMDB -----------------------------------------------------------------------------------------


def test_index_of_an_older_program_counts_its_logs_with_the_next_commit(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        fill(index, range(2))
        wanted = index.log_use()
        with index._env.begin(write=True) as transaction:  # as if it had never been counted
            transaction.drop(index._tables.logs, delete=False)
            transaction.delete(b"logs", db=index._meta)
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        assert index.log_use() is None, "nothing is removed on a guess"
        index.begin().commit()
        assert index.log_use() == wanted and index.highest_log() == 2


@pytest.mark.parametrize("harm", ["hidden", "changed", "older program"])
def test_logs_that_do_not_add_up_are_counted_anew(tmp_path: Path, harm: str) -> None:
    """A log that seems unused although rows name it would be removed."""
    path = tmp_path / "index"
    with closing(LmdbIndex(path, map_bytes=8 * MIB)) as index:
        fill(index, range(2))
        wanted = index.log_use()
        assert wanted is not None
        key = (1).to_bytes(4, "big")
        writing: Any = index._env.begin(write=True)
        with writing as transaction:
            if harm == "hidden":
                transaction.delete(key, db=index._tables.logs)
            elif harm == "changed":
                stored = bytearray(transaction.get(key, db=index._tables.logs))
                stored[7] ^= 1
                transaction.put(key, bytes(stored), db=index._tables.logs)
            else:
                total = transaction.get(b"logs", db=index._meta)
                table = dict(transaction.cursor(index._tables.logs))
        if harm == "older program":
            fill(index, range(4, 5))
            wanted = index.log_use()
            writing = index._env.begin(write=True)
            with writing as transaction:
                transaction.put(b"logs", total, db=index._meta)
                transaction.drop(index._tables.logs, delete=False)
                transaction.cursor(index._tables.logs).putmulti(list(table.items()))
        assert index.log_use() is None
        index.begin().commit()
        assert index.log_use() == wanted


def test_lost_row_of_a_ledger_that_is_deleted_is_an_error(tmp_path: Path) -> None:
    with closing(LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)) as index:
        fill(index, range(2))
        with index._env.begin(write=True) as transaction:
            transaction.delete((1).to_bytes(8, "big") + bytes(8), db=index._rows)
        update = index.begin()
        with pytest.raises(CorruptionError, match="do not add up"):
            update.delete_rows(LedgerId(1), 1000)
        update.abort()
        assert index.ledger_record(LedgerId(1)) is not None


def test_record_that_is_deleted_during_a_read_is_none_and_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)) as index:
        fill(index, range(3))
        real: Any = index._env
        update = index.begin()
        update.delete_rows(LedgerId(2), 1000)
        update.delete_ledger_record(LedgerId(2))

        class Environment:
            def begin(self, **options: object) -> object:
                update.commit()
                return real.begin(**options)

            def close(self) -> None:
                real.close()

        monkeypatch.setattr(index, "_env", Environment())
        assert index.ledger_record(LedgerId(2)) is None


def test_ledgers_of_both_directories_are_deleted(machine: Machine) -> None:
    for ledger_id in range(2, 8):
        machine.add(ledger_id, range(3))
    machine.flush()
    delete(machine, 2, 3, 4, 5, 99)
    assert [each.ledger_id for each in machine.bookie.held_ledgers(-1, 9)] == [6, 7]
    assert len(LEDGERS) == 2
