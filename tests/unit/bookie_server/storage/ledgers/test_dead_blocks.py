"""What dead blocks take is given back in place, and nothing that is alive is touched (rule S25)."""

from __future__ import annotations

import errno
import os

import pytest

from bookie_server.storage.blocks import HEADER_BYTES
from bookie_server.storage.fs.memory_fs import MemoryFile
from bookie_server.storage.index.base import BlockLocation, LogUse, run_log_id
from bookie_server.storage.ledgers import dead_blocks, directory_store
from bookie_server.storage.ledgers.dead_blocks import DeadBlocks, hole_in
from bookie_server.storage.records import RECORD_HEADER_BYTES
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.ledgers.test_compaction import (
    EVEN,
    compact,
    delete,
    files_of,
    logs,
)
from tests.unit.bookie_server.storage.support import Machine, expected, formatted, small_config

CONFIG = small_config(
    journal_file_bytes=2 * MIB,
    journal_batch_bytes_max=256 * KIB,
    write_once_bytes=16 * KIB,
    write_cache_bytes=16 * MIB,
    entry_log_bytes=2 * MIB,
)
SIZE = 160 * KIB
HEADERS = RECORD_HEADER_BYTES + HEADER_BYTES


@pytest.fixture
def machine() -> Machine:
    """Large entries of ledgers 2, 4, 6 and 8 in turn, in the first files of the run log."""
    machine = Machine(formatted(), CONFIG)
    for number in range(9):
        for ledger_id in (2, 4, 6, 8):
            assert machine.add(ledger_id, [number], size=SIZE) is BookieStatus.OK
    machine.flush()
    return machine


def taken_bytes(machine: Machine) -> int:
    """What the logs of the even ledgers that take no more take on the disk."""
    return machine.bookie.stats().ledger_storage.compaction.directories[0].log_bytes


def given_back(machine: Machine) -> int:
    return machine.bookie.stats().ledger_storage.compaction.given_back_bytes


def copied(machine: Machine) -> int:
    return machine.bookie.stats().ledger_storage.compaction.copied_bytes


def test_dead_blocks_are_given_back_without_a_copy(machine: Machine) -> None:
    compact(machine, full=False)
    before = taken_bytes(machine)
    delete(machine, 2, 4)
    compact(machine, full=False)
    assert given_back(machine) > 0.45 * before and copied(machine) == 0
    assert taken_bytes(machine) == before - given_back(machine)
    for ledger_id in (6, 8):
        assert machine.held(ledger_id) == expected(ledger_id, range(9), SIZE)
    compact(machine, full=False)
    assert copied(machine) == 0, "what is left of the headers is worth no copy"
    machine.close()
    again = Machine(files_of(machine), CONFIG)
    assert again.held(8) == expected(8, range(9), SIZE) and again.held(2) == {}
    compact(again, full=False)
    assert taken_bytes(again) <= before - given_back(machine), "a start sees the holes"
    assert copied(again) == 0


def test_dead_blocks_of_a_log_that_is_removed_are_listed_no_more(machine: Machine) -> None:
    """The list has a bound: full of logs that are gone, it had no room for those that are there."""
    delete(machine, 2, 4, 6, 8)
    dead = machine.bookie._storage._stores[0].space._dead
    before = set(logs(machine)[1])
    compact(machine, full=False)
    gone = before - set(logs(machine)[1])
    assert gone and given_back(machine) == 0, "they were removed as a whole"
    assert not set(map(run_log_id, gone)) & dead._by_log.keys()
    assert dead._count == sum(len(holes) for holes in dead._by_log.values()) // 2


def test_blocks_behind_holes_are_found_by_a_copy(machine: Machine) -> None:
    delete(machine, 2, 6)
    compact(machine, full=False)
    delete(machine, 4)
    machine.bookie._storage._stores[0].space._has_holes = False
    compact(machine)
    assert machine.held(8) == expected(8, range(9), SIZE)
    assert copied(machine) > 0 and logs(machine)[0] != []
    use = machine.bookie.stats().ledger_storage.compaction.directories[0]
    assert use.damaged_logs == 0


def test_log_that_is_written_keeps_its_dead_blocks_until_it_is_full() -> None:
    machine = Machine(formatted(), CONFIG)
    for ledger_id in (2, 4):
        assert machine.add(ledger_id, [0], size=SIZE) is BookieStatus.OK
    machine.flush()
    delete(machine, 2)
    compact(machine)
    path = EVEN / "journal-0000000000000001.log"
    assert given_back(machine) == 0 and files_of(machine).open(path).hole_bytes() == 0
    for number in range(1, 14):
        assert machine.add(4, [number], size=SIZE) is BookieStatus.OK
    machine.flush()
    compact(machine)
    assert given_back(machine) >= 156 * KIB
    assert machine.held(4) == expected(4, range(14), SIZE)


@pytest.mark.parametrize("error_number", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_system_without_holes_has_copies(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error_number: int
) -> None:
    tries: list[int] = []

    def punch(_self: MemoryFile, offset: int, _length: int) -> None:
        tries.append(offset)
        raise OSError(error_number, os.strerror(error_number))

    monkeypatch.setattr(MemoryFile, "punch", punch)
    delete(machine, 2, 4, 6)
    compact(machine, full=False)
    assert (given_back(machine), len(tries)) == (0, 1)
    assert copied(machine) > 0 and machine.held(8) == expected(8, range(9), SIZE)


def test_disk_that_fails_at_a_hole_ends_the_pass(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def punch(_self: MemoryFile, _offset: int, _length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    delete(machine, 2, 4, 6)
    with monkeypatch.context() as failing:
        failing.setattr(MemoryFile, "punch", punch)
        with pytest.raises(OSError, match="Input/output"):
            compact(machine, full=False)
    compact(machine, full=False)
    assert copied(machine) > 0, "what was forgotten is freed by a copy"
    assert machine.held(8) == expected(8, range(9), SIZE)


def test_more_than_the_table_calls_dead_is_not_given_back(machine: Machine) -> None:
    compact(machine, full=False)
    space = machine.bookie._storage._stores[0].space
    for row in space._index.rows(LedgerId(8)):
        space.dead.add(row.location)  # as if it had been deleted
    compact(machine, full=False)
    assert given_back(machine) == 0 and machine.held(8) == expected(8, range(9), SIZE)


def test_blocks_stay_while_rows_of_their_ledger_are_left(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_store, "DELETED_ROWS_AT_ONCE", 4)
    store = machine.bookie._storage.store_of(LedgerId(2))
    delete_some = store.delete_some
    steps: list[int] = []

    def step(ids: list[LedgerId], dead: DeadBlocks) -> tuple[int, LogUse]:
        if len(steps) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        gone, use = delete_some(ids, dead)
        steps.append(use.rows)
        return gone, use

    with monkeypatch.context() as failing:
        failing.setattr(store, "delete_some", step)
        with pytest.raises(OSError, match="Input/output"):
            delete(machine, 2)
    compact(machine, full=False)
    assert steps == [4, 4] and given_back(machine) == 0
    assert len(store.index.rows(LedgerId(2))) == 1
    delete(machine, 2)
    compact(machine, full=False)
    assert given_back(machine) == 0, "the last block is in the file that is written"


def test_reader_with_a_row_of_before_is_told_of_no_damage(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = machine.bookie._storage._stores[0]
    read = store.read_block
    rows = store.index.rows(LedgerId(2))

    def slowly(ledger_id: LedgerId, row: object) -> object:
        if ledger_id == 2 and machine.bookie.stats().ledger_storage.ledgers == 4:
            delete(machine, 2)
            compact(machine, full=False)
            assert given_back(machine) > 0
        return read(ledger_id, row)  # type: ignore[arg-type]

    with monkeypatch.context() as slow:
        slow.setattr(store, "read_block", slowly)
        assert store.read(LedgerId(2), EntryId(0), EntryId(0), stride=1, max_bytes=MIB) is None
    with pytest.raises(CorruptionError):
        read(LedgerId(2), rows[0])
    assert store.scrub._damaged(LedgerId(2), rows[0]) is None, "its ledger was deleted"


def test_list_with_rows_of_before_is_told_of_no_damage(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = machine.bookie._storage._stores[0]
    assert machine.add(10, [0, 2, 4], size=SIZE, recovery=True) is BookieStatus.OK
    for number in range(1, 12):
        assert machine.add(8, [8 + number], size=SIZE) is BookieStatus.OK
    machine.flush()
    read = store.read_block

    def slowly(ledger_id: LedgerId, row: object) -> object:
        if ledger_id == 10 and store.index.rows(LedgerId(10)):
            delete(machine, 10)
            compact(machine, full=False)
        return read(ledger_id, row)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "read_block", slowly)
    page = store.entry_page(LedgerId(10), EntryId(0), 10)
    assert page.ranges == []


# -- which part of a block, and how many blocks ----------------------------------------------------


@pytest.mark.parametrize("offset", [4096, 4097, 8000, 12_288 - HEADERS, 12_289 - HEADERS])
@pytest.mark.parametrize("length", [100, 4096, 20_000, 100_001])
def test_hole_is_the_whole_pages_behind_the_headers(offset: int, length: int) -> None:
    hole = hole_in(BlockLocation(1, offset, length))
    end = offset + RECORD_HEADER_BYTES + length
    pages = [
        page
        for page in range(0, end + 4096, 4096)
        if page >= offset + HEADERS and page + 4096 <= end
    ]
    assert hole.length == 4096 * len(pages)
    assert not pages or hole.offset == pages[0]


def test_dead_blocks_are_kept_by_log_once_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_blocks, "DEAD_BLOCKS_MAX", 4)
    blocks, more = DeadBlocks(), DeadBlocks()
    blocks.add(BlockLocation(1, 4096, 16 * KIB))  # its headers leave too little
    assert blocks.pop(1) == []
    for offset in (90_112, 4096, 4096):
        blocks.add(BlockLocation(1, offset, 40 * KIB))
    blocks.add(BlockLocation(2, 4096, 40 * KIB))
    blocks.add(BlockLocation(3, 4096, 40 * KIB))
    more.take_from(blocks)
    assert blocks.pop(1) == [] and more.pop(3) == []
    assert [hole.offset for hole in more.pop(1)] == [8192, 94_208]
    more.add(BlockLocation(3, 4096, 40 * KIB))
    assert more.pop(3) == [(8192, 36 * KIB)] and len(more.pop(2)) == 1 and more.pop(2) == []


def test_blocks_that_were_taken_over_make_room_for_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For years: what is counted and not there would end it, unnoticed."""
    monkeypatch.setattr(dead_blocks, "DEAD_BLOCKS_MAX", 4)
    blocks, taken = DeadBlocks(), DeadBlocks()
    for log_id in range(1, 10):
        for offset in (4096, 90_112, 180_224):
            blocks.add(BlockLocation(log_id, offset, 40 * KIB))
        taken.take_from(blocks)
        assert len(taken.pop(log_id)) == 3, f"round {log_id}"
